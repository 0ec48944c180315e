"""Pictures (matplotlib, an extra): violations before and after mending, by level and by group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lowcal.errors import MissingExtra

#: Blue and orange of the Okabe-Ito palette: distinct for every kind of colour vision, and in grey.
BEFORE, AFTER = "#D55E00", "#0072B2"

#: (name, violation before, violation after)
Pair = tuple[str, float, float]


def draw_before_after(levels: Sequence[Pair], groups: Sequence[Pair], path: Path, n_groups: int = 15) -> None:
    """Draw the largest violation at each level and the worst groups, before and after, and save the picture."""
    plt = _pyplot()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 5.5), layout="constrained", gridspec_kw={"width_ratios": [1, 1.6]}
    )
    _draw_levels(left, levels)
    _draw_groups(right, sorted(groups, key=lambda pair: -pair[1])[:n_groups])
    figure.suptitle("Violations on held-out rows, before and after mending")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtra("matplotlib is not installed; run: pip install 'lowcal[plot]'") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _draw_levels(axes: Any, levels: Sequence[Pair]) -> None:
    at = np.arange(len(levels))
    axes.bar(at - 0.2, [before for _, before, _ in levels], 0.4, label="before", color=BEFORE)
    axes.bar(
        at + 0.2, [after for _, _, after in levels], 0.4, label="after", color=AFTER, hatch="//", edgecolor="white"
    )
    axes.set_xticks(at, [name for name, _, _ in levels], rotation=25, ha="right", rotation_mode="anchor")
    axes.set_ylabel("largest violation over all groups")
    axes.set_title("Each level of the hierarchy")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_groups(axes: Any, groups: Sequence[Pair]) -> None:
    at = np.arange(len(groups))[::-1]
    before, after = [b for _, b, _ in groups], [a for _, _, a in groups]
    axes.hlines(at, after, before, color="0.75", linewidth=2, zorder=1)
    axes.scatter(before, at, color=BEFORE, label="before", zorder=2)
    axes.scatter(after, at, color=AFTER, label="after", marker="s", zorder=2)
    axes.set_yticks(at, [_short(name) for name, _, _ in groups])
    axes.set_xlabel("degree-2 violation")
    axes.set_xlim(left=0)
    axes.set_title(f"The {len(groups)} worst groups")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)


def _short(name: str, length: int = 48) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
