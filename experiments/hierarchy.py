"""The hierarchy, measured: the violation of every notion after training for each (Section 3).

The inclusions are theorems about any distribution, so also about the fitted rows: trained for one notion, the violation
of another is at most `lowcal.hierarchy.implied_alpha` of the trained one's. On fresh rows the table shows what lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from experiments.experiment import Settings
from experiments.figures import new_figure
from experiments.parts import Parts
from experiments.results import Claim, Result, markdown_table, summarise_trees, verdict_lines
from lowcal import hierarchy as theory
from lowcal.auditing.audits import measure
from lowcal.datasets import Dataset, make_miscalibrated
from lowcal.solve.fitting import multicalibrate
from lowcal.subpopulations import Groups

NAME = "hierarchy"
NOTIONS = {
    2: ("multiaccuracy", "degree-2", "degree-3", "degree-4", "degree-5", "smooth", "full-0.1"),
    3: ("multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.25"),
}
ROWS = {2: 5_000, 3: 1_000}
FRESH = 20_000
ALPHA = 0.002
MOST_UPDATES = 60
START = "start"


def run(parts: Parts, settings: Settings) -> Result:
    """Measure for two and for three classes on every seed, and compare with what theory implies."""
    small = settings.is_small
    found = {
        str(n_classes): parts.get_seeds(
            f"{NAME}-{n_classes}-classes",
            {"target": NAME, "classes": n_classes, "small": small, "alpha": ALPHA},
            settings.seeds,
            partial(one_seed, n_classes, small),
        )
        for n_classes in NOTIONS
    }
    rows = {str(n): _rows(n, small) for n in NOTIONS}
    summary: dict[str, Any] = {"settings": {"seeds": settings.seeds, "alpha": ALPHA, "rows": rows}}
    summary |= {"classes": {n: sum_up(int(n), seeds) for n, seeds in found.items()}}
    claims = tuple(judge(int(n), found[n]) for n in found)
    return Result(NAME, summary, claims, page(summary, claims), csv_rows(summary), draw=partial(draw, summary))


def one_seed(n_classes: int, small: bool, seed: int) -> dict[str, Any]:
    """Return violations[trained][measured], on the fitted rows and against f* on fresh ones."""
    n, fresh = (_rows(n_classes, small), 300 if small else FRESH)
    data = make_miscalibrated(
        n + fresh, n_columns=3, n_levels=3, n_classes=n_classes, overconfidence=3.0, random_state=seed
    )
    fit_rows, fresh_rows = data[:n], data[n:]
    found: dict[str, Any] = {"fitted": {}, "fresh": {}}
    for trained in (START, *NOTIONS[n_classes]):
        predictor = None if trained == START else _train(trained, fit_rows)
        for name, rows, truth in (("fitted", fit_rows, fit_rows.y), ("fresh", fresh_rows, fresh_rows.f_star)):
            p = rows.p if predictor is None else predictor(rows.p, _groups(rows))
            found[name][trained] = {want: _measure(want, truth, p, rows, n_classes) for want in NOTIONS[n_classes]}
    return found


def _rows(n_classes: int, small: bool) -> int:
    return {2: 150, 3: 60}[n_classes] if small else ROWS[n_classes]


def _groups(rows: Dataset) -> dict[str, Any]:
    return {name: column for name, column in rows.X.items() if name.startswith("g")}


def _train(notion: str, rows: Dataset) -> Any:
    assert rows.p is not None
    kind: dict[str, Any] = {"subpopulations": Groups(), "notion": notion, "alpha": ALPHA, "max_updates": MOST_UPDATES}
    return multicalibrate(rows.y, rows.p, _groups(rows), guard=False, geometry="euclidean", **kind).predictor


def _measure(notion: str, truth: Any, p: Any, rows: Dataset, n_classes: int) -> float:
    """Return the violation that a weight attains; on many rows of several classes the smooth one of the first 1,000."""
    if notion == "smooth" and n_classes > 2 and len(p) > 1_000:
        rows, truth, p = rows[:1_000], truth[:1_000], p[:1_000]
    return measure(truth, p, _groups(rows), subpopulations=Groups(), notion=notion).largest


def sum_up(n_classes: int, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and deviation of every violation, and the bound that theory gives for the mean."""
    table: dict[str, Any] = summarise_trees(found)
    implied = {
        have: {want: _finite(_implied(n_classes, have, want, table["fitted"][have][have]["mean"])) for want in row}
        for have, row in table["fitted"].items()
        if have != START
    }
    return {**table, "implied": implied}


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _implied(n_classes: int, have: str, want: str, alpha: float) -> float:
    """Return the violation of `want` that theory allows; full errors are suprema over all functions of the cell."""
    return theory.implied_alpha(have, want, alpha, n_classes, constants="best", per_cell=False)


def judge(n_classes: int, found: Sequence[dict[str, Any]]) -> Claim:
    """Check every inclusion on every seed's fitted rows."""
    checked, broken, closest = 0, 0, 0.0
    for one in found:
        for have, row in one["fitted"].items():
            for want, value in row.items() if have != START else ():
                bound = _implied(n_classes, have, want, row[have])
                if have == want or not isfinite(bound) or bound >= 1.0:
                    continue
                checked, broken = checked + 1, broken + (value > bound + 1e-9)
                closest = max(closest, value / bound)
    return Claim(
        f"Every inclusion of the hierarchy holds with the corrected constants, {n_classes} classes",
        "Section 3",
        f"{checked} implications checked on fitted rows, {broken} broken, the closest at {closest:.0%} of its bound",
        broken == 0 and checked > 0,
        "" if n_classes == 2 else "(Degree 3 and smooth are the values that a weight attains: lower bounds.)",
    )


def csv_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each number of classes, set, trained and measured notion."""
    return [
        {"classes": n, "rows": part, "trained": have, "measured": want, **value}
        for n, tables in summary["classes"].items()
        for part in ("fitted", "fresh")
        for have, row in tables[part].items()
        for want, value in row.items()
    ]


def draw(summary: dict[str, Any]) -> Any:
    """Draw what is measured (columns) after what was trained (rows), on fitted and on fresh rows."""
    figure = new_figure(11.5, 8)
    axes = figure.subplots(len(summary["classes"]), 2, squeeze=False)
    for i, (n, tables) in enumerate(summary["classes"].items()):
        for j, part in enumerate(("fitted", "fresh")):
            _draw_map(axes[i, j], tables[part], f"{n} classes, {part} rows{' (against f*)' if j else ''}")
    figure.suptitle("Largest violation of each notion (columns) after training for each (rows)")
    return figure


def _draw_map(ax: Any, table: dict[str, Any], title: str) -> None:
    trained, measured = list(table), list(table[START])
    values = np.array([[table[t][m]["mean"] for m in measured] for t in trained])
    ax.imshow(np.log10(np.maximum(values, 1e-4)), cmap="cividis", vmin=-3, vmax=-0.5, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        shade = "white" if np.log10(max(value, 1e-4)) < -1.6 else "black"
        ax.text(j, i, f"{value:.4f}", ha="center", va="center", color=shade, fontsize=8)
    ax.set_xticks(range(len(measured)), measured, rotation=25, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(trained)), trained)
    ax.set(xlabel="measured", ylabel="trained for")
    ax.set_title(title, fontsize=10)


def page(summary: dict[str, Any], claims: Sequence[Claim]) -> str:
    """Return the page of the documentation."""
    s = summary["settings"]
    sizes = " and ".join(f"{rows:,} rows of {n} classes" for n, rows in s["rows"].items())
    texts = []
    for n, tables in summary["classes"].items():
        for part, title in (("fitted", "on the fitted rows"), ("fresh", "on fresh rows, against the true f*")):
            rows = [
                {"trained for": have, **{want: _cell(tables, part, have, want) for want in row}}
                for have, row in tables[part].items()
            ]
            texts.append(f"### {n} classes, {title}\n\n{markdown_table(rows)}")
    return f"""# The hierarchy, measured

`python -m experiments hierarchy --seeds {s["seeds"]}` wrote this page, [hierarchy.json](hierarchy.json) and the
picture.

An overconfident predictor (`make_miscalibrated`, three columns of three groups) is recalibrated for each notion, by
Euclidean steps as in the paper, at alpha = {s["alpha"]:g} on {sizes}. Then the violation of every notion is measured,
as a supremum over its whole weight class: means over {s["seeds"]} seeds. In brackets: what theory allows
(`lowcal.hierarchy`, best constants), where it says less than 1.

![Violations of every notion after training for each](hierarchy.png)

## What theory says

{verdict_lines(claims)}
{chr(10).join(texts)}"""


def _cell(tables: dict[str, Any], part: str, have: str, want: str) -> str:
    value = f"{tables[part][have][want]['mean']:.4f}"
    bound = tables["implied"].get(have, {}).get(want)
    return f"{value} ({bound:.4f})" if part == "fitted" and bound is not None and bound < 1 and have != want else value
