"""Sample complexity: what the theorem says each notion needs, and how many rows it really needs (Theorem 5.5).

An overconfident predictor is recalibrated for each notion on more and more rows, without held-out stopping, and its
degree-2 error is measured against the true f* on fresh rows: how many rows bring it to 0.02?
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.experiment import Settings
from experiments.figures import COLOURS, MARKERS, new_figure
from experiments.parts import Parts
from experiments.results import Claim, Result, markdown_table, summarise_trees, verdict_lines
from lowcal.complexity import compare, show_rows
from lowcal.datasets import Dataset, make_miscalibrated
from lowcal.metrics import degree_error
from lowcal.solve.fitting import multicalibrate
from lowcal.subpopulations import Groups

NAME = "samples"
TARGET, ALPHA, MOST_UPDATES, FRESH = 0.02, 0.01, 30, 10_000
CLASSES = (2, 3, 5, 10)
NOTIONS = {"MA": "multiaccuracy", "MC2": "degree-2", "smooth": "smooth", "MC-full": "full-0.2"}
SIZES = (250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000)
GROUPS = ("g0", "g1", "g2", "g3")
#: The exact smooth supremum of several classes is a transport problem: beyond these rows it is not tried.
MOST_SMOOTH = 1_000


def run(parts: Parts, settings: Settings) -> Result:
    """Run every seed and number of classes that is not done yet, and sum up."""
    small = settings.is_small
    sizes = SIZES[:2] if small else SIZES
    found = {
        str(n_classes): parts.get_seeds(
            f"{NAME}-{n_classes}-classes",
            {"target": NAME, "classes": n_classes, "sizes": sizes, "alpha": ALPHA},
            settings.seeds,
            partial(one_seed, n_classes, sizes, 500 if small else FRESH),
        )
        for n_classes in ((2, 3) if small else CLASSES)
    }
    summary = sum_up(found, settings.seeds)
    claims = judge(summary)
    return Result(NAME, summary, claims, page(summary, claims), csv_rows(summary), draw=partial(draw, summary))


def one_seed(n_classes: int, sizes: Sequence[int], fresh: int, seed: int) -> dict[str, Any]:
    """Return the degree-2 error on fresh rows, by notion and number of fitted rows."""
    largest = max(sizes)
    data = make_miscalibrated(
        largest + fresh, n_columns=len(GROUPS), n_classes=n_classes, overconfidence=3.0, random_state=seed
    )
    test = data[largest:]
    errors: dict[str, Any] = {"start": _error(test, test.p)}
    for name, notion in NOTIONS.items():
        tried = [n for n in sizes if notion != "smooth" or n_classes == 2 or n <= MOST_SMOOTH]
        errors[name] = {str(n): _error_after(notion, data[:n], test) for n in tried}
    return errors


def _error_after(notion: str, rows: Dataset, test: Dataset) -> float:
    assert rows.p is not None
    assert test.p is not None
    kind: dict[str, Any] = {
        "subpopulations": Groups(GROUPS),
        "notion": notion,
        "alpha": ALPHA,
        "max_updates": MOST_UPDATES,
    }
    classes = list(range(2 if rows.p.ndim == 1 else rows.p.shape[1]))
    fit = multicalibrate(rows.y, rows.p, rows.X, classes=classes, guard=False, geometry="euclidean", **kind)
    return _error(test, fit.predictor(test.p, test.X))


def _error(test: Dataset, p: Any) -> float:
    assert test.f_star is not None
    return degree_error(test.f_star, p, test.X, degree=2, subpopulations=Groups(GROUPS))


def sum_up(found: dict[str, list[dict[str, Any]]], seeds: int) -> dict[str, Any]:
    """Return curves (mean, deviation), the rows needed, and the theorem's orders."""
    curves = {n: summarise_trees(ones) for n, ones in found.items()}
    needed = {n: {name: rows_needed(curve[name]) for name in NOTIONS} for n, curve in curves.items()}
    theory = {n: {row.trained: float(row.corrected) for row in _orders(int(n))} for n in found}
    return {
        "settings": {"seeds": seeds, "target": TARGET, "alpha": ALPHA},
        "curves": curves,
        "needed": needed,
        "theory": theory,
    }


def _orders(n_classes: int) -> Sequence[Any]:
    return [row for row in compare(TARGET, n_classes=n_classes, n_subpopulations=17).rows if "game" not in row.trained]


def rows_needed(curve: dict[str, dict[str, float]]) -> int | None:
    """Return the fewest rows from which on the mean error is at most the target; None if no size tried is enough.

    >>> rows_needed({"250": {"mean": 0.01}, "500": {"mean": 0.03}, "1000": {"mean": 0.015}})
    1000
    """
    enough: int | None = None
    for n in sorted(map(int, curve), reverse=True):
        if curve[str(n)]["mean"] > TARGET:
            break
        enough = n
    return enough


def judge(summary: dict[str, Any]) -> tuple[Claim, ...]:
    """Say for each number of classes whether degree 2 needs no more rows than the stronger notions."""
    return tuple(_fewest(n, needed, summary["curves"][n]) for n, needed in summary["needed"].items())


def _fewest(n_classes: str, needed: dict[str, int | None], curves: dict[str, Any]) -> Claim:
    own = needed["MC2"]
    others = [v for name, v in needed.items() if name in ("smooth", "MC-full") and v is not None]
    holds = own is not None and all(own <= v for v in others)
    told = ", ".join(f"{name} {_said(needed[name], curves[name])}" for name in NOTIONS)
    return Claim(
        f"To reach a degree-2 error of {TARGET:g} with {n_classes} classes, degree 2 needs no more than full or smooth",
        "Theorem 5.5",
        told,
        holds,
        _cut_short(own, curves) if holds else _why_not(own, others, curves),
    )


def _cut_short(own: int | None, curves: dict[str, Any]) -> str:
    """Say how the notions compare at the last size that smooth was tried on, if that is below what degree 2 needs."""
    last = max(map(int, curves["smooth"]))
    if own is None or last >= own:
        return ""
    smooth, two = (curves[name][str(last)]["mean"] for name in ("smooth", "MC2"))
    return f"Smooth was tried on at most {last:,} rows: its error there is {smooth:.3f}, that of degree 2 {two:.3f}."


def _why_not(own: int | None, others: Sequence[int], curves: dict[str, Any]) -> str:
    if own is None:
        return "No size tried was enough for degree 2."
    rows = min(others)
    there = {name: curve[str(rows)] for name, curve in curves.items() if name in NOTIONS and str(rows) in curve}
    told = ", ".join(f"{name} {error['mean']:.4f} ± {error['sd']:.4f}" for name, error in there.items())
    return (
        f"A stronger notion needed {rows:,} rows. The errors there, mean ± standard deviation over the seeds: {told}. "
        "With few classes the cells of full and smooth are well filled."
    )


def _said(rows: int | None, curve: dict[str, Any]) -> str:
    return f"more than {max(map(int, curve)):,}" if rows is None else f"{rows:,}"


def csv_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each number of classes, notion and size."""
    return [
        {"classes": n, "trained": name, "rows": size, **value}
        for n, curves in summary["curves"].items()
        for name in NOTIONS
        for size, value in curves[name].items()
    ]


def draw(summary: dict[str, Any]) -> Any:
    """Draw the error on fresh rows against the fitted rows, one panel for each number of classes."""
    n = len(summary["curves"])
    figure = new_figure(3.1 * n, 3.8)
    axes = figure.subplots(1, n, sharey=True, squeeze=False)
    for ax, (n_classes, curves) in zip(axes[0], summary["curves"].items(), strict=True):
        for name in NOTIONS:
            sizes = sorted(map(int, curves[name]))
            mean, sd = (np.array([curves[name][str(k)][what] for k in sizes]) for what in ("mean", "sd"))
            ax.plot(sizes, mean, color=COLOURS[name], marker=MARKERS[name], markersize=4, label=name)
            ax.fill_between(sizes, np.maximum(mean - sd, 1e-4), mean + sd, color=COLOURS[name], alpha=0.15, linewidth=0)
        ax.axhline(TARGET, color="0.4", linewidth=1, linestyle=":", label="target")
        ax.set(xscale="log", yscale="log", xlabel="fitted rows", title=f"{n_classes} classes")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("degree-2 error on fresh rows")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def page(summary: dict[str, Any], claims: Sequence[Claim]) -> str:
    """Return the page of the documentation."""
    s = summary["settings"]
    rows = [
        {"classes": n, **{name: _said(needed[name], summary["curves"][n][name]) for name in NOTIONS}}
        for n, needed in summary["needed"].items()
    ]
    orders = [{"classes": n, **{k: show_rows(v) for k, v in row.items()}} for n, row in summary["theory"].items()]
    return f"""# How many rows each notion needs

`python -m experiments samples --seeds {s["seeds"]}` wrote this page, [samples.json](samples.json) and the picture.

An overconfident predictor (`make_miscalibrated`, four columns of four groups) is recalibrated for each notion, by
Euclidean steps as in the paper, at alpha = {s["alpha"]:g} on more and more rows, without held-out stopping; the
degree-2 error is taken against the true f* on
{FRESH:,} fresh rows. Full has cells of width 0.2. The exact smooth step for three or more classes is slow and was tried
on at most {MOST_SMOOTH:,} rows.

![Degree-2 error on fresh rows against fitted rows](samples.png)

## Rows that bring the mean degree-2 error over {s["seeds"]} seeds to {s["target"]:g}

{markdown_table(rows)}
{verdict_lines(claims)}
## What the theorem says for the same target

Orders only (`lowcal.complexity.compare`, corrected reading, constant 1): they are guarantees for the worst world, and
the ratio between the notions is what they tell.

{markdown_table(orders)}"""
