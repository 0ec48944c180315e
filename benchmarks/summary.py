"""The first lines of docs/benchmarks.md: one table and one figure, of nothing but figures that the page has below.

Run: python benchmarks/summary.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURE = DOCS / "_static" / "benchmarks.svg"
LARGE, ADULT = "made up, 100,000 rows, 100 groups", "UCI Adult, 24,421 rows, 63 groups"
#: The methods of the figure: the name shown, and whether it is above the mark (8 points) or below it (-16).
METHODS = {
    "lowcal degree-2": ("lowcal degree-2", -16),
    "lowcal Trees": ("lowcal Trees", 8),
    "MCGrad": ("MCGrad", 8),
    "MCGrad, 5 rounds": ("5 rounds", -16),
    "HKRR, 5 passes": ("HKRR", 8),
    "isotonic": ("isotonic", 8),
    "sigmoid": ("sigmoid", -16),
}
TEXT = (
    "Held-out log loss against CPU seconds of the fit, lowcal and its peers, on two data sets; low and left is better."
)

Sections = Mapping[str, str]


def summary(sections: Sections) -> str:
    """Return the table and the figure in Markdown; empty where the page lacks a section."""
    if not {name for _, name, _ in ROWS} <= sections.keys():
        return ""
    rows = "\n".join(
        f"| {what} | {answer(find, sections[name])} | [{name}](#{slug(sections[name])}) |" for what, name, find in ROWS
    )
    head = "## In short\n\nEvery figure is one of those below, taken over by `python benchmarks/summary.py`."
    picture = f"![{TEXT}](_static/{PICTURE.name})"
    return f"{head}\n\n| question | answer | section |\n|---|---|---|\n{rows}\n\n{picture}\n\n{CAPTION}\n\n"


CAPTION = """\
The made-up task has interactions of columns, which groups alone cannot see; trees and MCGrad can. "5 rounds" is MCGrad
with a fixed number of them."""


# --- what is taken over -------------------------------------------------------------------------------------------


def answer(find: Callable[[str], str], section: str) -> str:
    """Return the figures of a section; one that failed or is written otherwise must not cost the page."""
    try:
        return find(section)
    except (AssertionError, LookupError, StopIteration, ValueError):
        return "not found"


def table(section: str, heading: str, first: str) -> dict[str, str]:
    """Return the row of a table that begins with some name, by column; the table comes after a heading or a line."""
    after = section.split(heading, 1)[1] if heading else section
    lines = [line for line in after.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return dict(zip(cells[0], next(row for row in cells if row[0] == first), strict=True))


def cost(cell: str) -> tuple[float, str]:
    """Return the seconds of a cell, and how many times those of lowcal degree-2.

    >>> cost("57, 1,552x (1,204 to 1,823)")
    (57.0, '1,552')
    """
    found = re.match(r"([\d.]+)(?:, ([\d.,]+)x)?", cell)
    assert found is not None, cell
    return float(found[1]), found[2] or "1"


def slug(section: str) -> str:
    """Return the anchor of a section's heading."""
    heading = section.partition("\n")[0].removeprefix("## ").lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def _harm(section: str) -> str:
    found = re.search(r"([\d,]+) cells of 5 seeds, ([\d,]+) fits: \*\*(\d+) cells harmed", section)
    assert found is not None
    return f"{found[3]} of {found[1]} cells, {found[2]} fits"


def _intervals(section: str) -> str:
    shares = [float(row.split("|")[4]) for row in section.splitlines() if "| bootstrap |" in row]
    return f"in {min(shares):.1%} to {max(shares):.1%} of data sets, by case; 95% is stated"


def _monitoring(section: str) -> str:
    rows = [row.split("|") for row in section.splitlines() if re.match(r"\| .* \| [\d.]+ \|", row)]
    alarms, found = ([float(row[k]) for row in rows] for k in (2, 5))
    return (
        f"false alarms in {min(alarms):.1%} to {max(alarms):.1%} of runs, 5% is stated; "
        f"a drift is found within 3 months in {min(found):.1%} to {max(found):.1%}"
    )


def _recalibrate(section: str) -> str:
    parts = []
    for rival in ("MCGrad", "isotonic", "Platt or matrix scaling"):
        row = table(section, "All sets:", rival)
        parts.append(f"{rival}: {row['log loss: cells lower / alike / higher']}")
    return "; ".join(parts)


def _speed(section: str) -> str:
    return "; ".join(
        f"{name}: {cost(table(section, LARGE, name)['fit, CPU s'])[1]}"
        for name in ("MCGrad", "MCGrad, 5 rounds", "HKRR, 5 passes", "isotonic")
    )


def _quality(section: str) -> str:
    names = ("start", "lowcal degree-2", "lowcal Trees", "MCGrad", "isotonic")
    return "; ".join(f"{name}: {table(section, LARGE, name)['log loss']}" for name in names)


def _baseline(section: str) -> str:
    row = table(section, ADULT, "lowcal degree-2")
    return f"{cost(row['fit, CPU s'])[1]} times its CPU seconds; log loss {row['log loss - logistic']}"


#: A question, the section that answers it, and how its figures are found there.
ROWS = (
    ("Does recalibration with default settings make any model worse?", "harm", _harm),
    ("How often do all intervals of an audit hold?", "intervals", _intervals),
    ("Can alarms be trusted?", "monitoring", _monitoring),
    ("`recalibrate` on real data: log loss lower / alike / higher than that of", "recalibrate", _recalibrate),
    ("CPU seconds of a fit, as multiples of lowcal degree-2; 100,000 rows, 100 groups", "peers", _speed),
    ("Held-out log loss in the same task", "peers", _quality),
    ("Beside logistic regression on groups x log odds, UCI Adult", "baseline", _baseline),
)


# --- the figure ---------------------------------------------------------------------------------------------------


def draw(sections: Sections, path: Path = PICTURE) -> None:
    """Draw log loss against seconds, for two of the tasks."""
    sys.path.insert(0, str(DOCS))
    import figures

    figures.use_style()
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.9))
    for ax, task in zip(axes, (LARGE, ADULT), strict=True):
        for method, (label, at) in METHODS.items():
            row = table(sections["peers"], task, method)
            seconds, loss = cost(row["fit, CPU s"])[0], float(row["log loss"])
            ours = method.startswith("lowcal")
            ax.plot(seconds, loss, "o" if ours else "s", color=figures.AFTER if ours else figures.BEFORE, markersize=8)
            ax.annotate(label, (seconds, loss), xytext=(0, at), textcoords="offset points", ha="center", fontsize=9)
        ax.set_xscale("log")
        ax.margins(0.2)
        ax.set_title(task, fontsize=10)
        ax.set_xlabel("CPU seconds of the fit")
    axes[0].set_ylabel("held-out log loss")
    figures.save(figure, path, TEXT)
    plt.close(figure)


if __name__ == "__main__":
    import run

    run.write(run.PAGE, {})
    draw(run.sections(run.PAGE))
