"""Pictures (matplotlib, an extra) of plain values, on axes that are given or made.

Colours are two of the Okabe-Ito palette and the map cividis: distinct for every kind of colour vision and in grey;
marks, hatches and numbers say the same. No setting of matplotlib is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self

import numpy as np

from lowcal.errors import InvalidInput, MissingExtra, abbreviate, suggest
from lowcal.simplex import FloatArray

#: Vermilion and blue of the Okabe-Ito palette.
BEFORE, AFTER = "#D55E00", "#0072B2"
#: The number of groups drawn unless more are asked for.
SHOWN = 40
#: The height of a row of a picture, in inches.
ROW = 0.24
LONGEST = 44

#: (name, violation before, violation after)
Pair = tuple[str, float, float]


def new_axes(ax: Any, width: float, height: float) -> tuple[Any, Any]:
    """Return the figure and the axes: those given, or new ones of pyplot, as scikit-learn's displays do."""
    pyplot = _pyplot()
    if ax is not None:
        return ax.figure, ax
    figure, made = pyplot.subplots(figsize=(width, height), layout="constrained")
    return figure, made


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtra("matplotlib is not installed; run: pip install 'lowcal[plot]'") from error
    return plt


def short(name: str, length: int = LONGEST) -> str:
    """Return a name on one line, of at most `length` characters; the middle is left out, as ends tell groups apart.

    >>> short("education=Some-college", 12)
    'educat…llege'
    """
    return abbreviate(" ".join(str(name).split()), length)


def _plain_text(labels: Sequence[Any]) -> None:
    """Show dollar signs in names as they are."""
    for label in labels:
        label.set_parse_math(False)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _rest(shown: int, total: int) -> str:
    """Say how many groups are left out."""
    left = total - shown
    return "" if left <= 0 else f"\n{left:,} of {total:,} groups, ranked below these, are not shown"


# --- violations of groups -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Violations:
    """Violations of groups, the largest first, to be drawn as intervals or by degree.

    `by_degree[j, k]` = E[c_j f^k (y - f)], of the label where it is largest; `before` are the violations of an earlier
    model, nan where it has no such group. `unit` names what is drawn: violations, or errors per person.
    """

    names: tuple[str, ...]
    violation: FloatArray
    lower: FloatArray
    upper: FloatArray
    by_degree: FloatArray
    alpha: float
    confidence: float
    before: FloatArray | None = None
    unit: str = "violation"
    ax_: Any = field(init=False, repr=False, default=None)
    figure_: Any = field(init=False, repr=False, default=None)

    def plot(self, kind: str = "intervals", *, n: int | None = SHOWN, ax: Any = None) -> Self:
        """Draw the n worst groups (None: all) and return the display.

        `kind` is "intervals", each violation with its limits, or "heatmap", violations by degree.
        """
        kinds = {"intervals": self._intervals, "heatmap": self._heat_map}
        if kind not in kinds:
            raise InvalidInput(f"Unknown kind {kind!r}; valid: {', '.join(kinds)}.{suggest(str(kind), kinds)}")
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InvalidInput(f"n must be a whole number of at least 1, or None for all groups, but {n!r} was given.")
        shown = len(self.names) if n is None else min(n, len(self.names))
        self.figure_, self.ax_ = new_axes(ax, 8.0, 1.6 + ROW * max(shown, 3))
        kinds[kind](self.ax_, shown)
        return self

    def _rows(self, axes: Any, shown: int) -> None:
        """Name the rows, the worst on top."""
        axes.set_yticks(np.arange(shown), [short(name) for name in self.names[:shown]])
        _plain_text(axes.get_yticklabels())
        axes.set_ylim(shown - 0.5, -0.5)

    def _intervals(self, axes: Any, shown: int) -> None:
        at = np.arange(shown)
        value, lower, upper = self.violation[:shown], self.lower[:shown], self.upper[:shown]
        axes.axvspan(-self.alpha, self.alpha, color="0.9", zorder=0, label=f"tolerated, ±{self.alpha:g}")
        axes.axvline(0.0, color="0.4", linewidth=1, zorder=1)
        if self.before is not None:
            axes.plot(self.before[:shown], at, "s", color=BEFORE, markersize=5, label="before", zorder=2)
        axes.hlines(at, lower, upper, color=AFTER, linewidth=2, zorder=3)
        name = self.unit if self.before is None else "after"
        axes.plot(value, at, "o", color=AFTER, markersize=6, label=f"{name}, {self.confidence:.0%} interval", zorder=4)
        self._rows(axes, shown)
        side = f"predictions too high  ←  {self.unit}  →  too low"
        axes.set_xlabel(side + _rest(shown, len(self.names)))
        axes.xaxis.get_major_locator().set_params(nbins=5)  # more would touch each other
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
        _tidy(axes)

    def _heat_map(self, axes: Any, shown: int) -> None:
        table = self.by_degree[:shown]
        reach = max(float(np.nanmax(np.abs(table), initial=0.0)), self.alpha)
        image = axes.imshow(table, cmap="cividis", vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
        for (j, k), value in np.ndenumerate(table):
            color = _readable(image.cmap(image.norm(value)))
            weight = "bold" if abs(value) > self.alpha else "normal"
            axes.text(k, j, f"{value:+.4f}", ha="center", va="center", color=color, fontsize=8, fontweight=weight)
        self._rows(axes, shown)
        axes.set_xticks(np.arange(table.shape[1]), [f"degree {k + 1}" for k in range(table.shape[1])])
        axes.set_xlabel(f"bold: beyond the tolerated ±{self.alpha:g}{_rest(shown, len(self.names))}")
        axes.figure.colorbar(image, ax=axes, label=f"{self.unit} (+: predictions too low)", aspect=40)


def _readable(color: Sequence[float]) -> str:
    """Return black or white, whichever stands out more: they are equal at a luminance of 0.179 (WCAG 2)."""
    rgb = np.array(color[:3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return "black" if linear @ (0.2126, 0.7152, 0.0722) > 0.179 else "white"


# --- reliability, trajectories, levels, moments -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean outcomes against mean predictions, with limits."""

    prediction: FloatArray
    outcome: FloatArray
    lower: FloatArray
    upper: FloatArray


def draw_reliability(axes: Any, curve: Curve, before: Curve | None, title: str, confidence: float) -> None:
    """Draw one group's reliability diagram with the band of its outcomes, for one or two models."""
    axes.plot([0, 1], [0, 1], ":", color="0.4", label="perfect")
    if before is not None:
        axes.plot(before.prediction, before.outcome, "s--", color=BEFORE, markersize=5, label="before")
    axes.fill_between(curve.prediction, curve.lower, curve.upper, color=AFTER, alpha=0.2, linewidth=0)
    axes.vlines(curve.prediction, curve.lower, curve.upper, color=AFTER, linewidth=1)
    name = "model" if before is None else "after"
    label = f"{name}, {confidence:.0%} band"
    axes.plot(curve.prediction, curve.outcome, "o-", color=AFTER, markersize=5, label=label)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("mean prediction")
    axes.set_ylabel("mean outcome")
    axes.set_title(short(title, 40), parse_math=False)
    axes.legend(frameon=False, loc="upper left")
    _tidy(axes)


def draw_trajectory(
    axes: Any,
    metric: str,
    training: FloatArray,
    held_out: FloatArray,
    alpha: float | None,
    kept: int | None,
) -> None:
    """Draw a figure after every update, on the fitted and on the held-out rows."""
    at = np.arange(1, len(training) + 1)
    marks = {} if len(at) > 60 else {"markersize": 4}
    axes.plot(at, training, "-" if len(at) > 60 else "o-", color=AFTER, label="fitted rows", **marks)
    if np.isfinite(held_out).any():
        axes.plot(at, held_out, "--" if len(at) > 60 else "s--", color=BEFORE, label="held-out rows", **marks)
    if alpha is not None:
        axes.axhline(alpha, color="0.4", linewidth=1, linestyle=":", label=f"alpha {alpha:g}")
    if kept is not None:
        axes.axvline(kept, color="0.4", linewidth=1, label=f"kept: {kept} updates")
    axes.set_xlabel("updates")
    axes.set_ylabel(metric)
    if alpha is not None:
        axes.set_ylim(bottom=0.0)
    axes.set_xlim(0.5, max(len(at), kept or 0) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.legend(frameon=False)
    _tidy(axes)


def draw_levels(axes: Any, levels: Sequence[str], after: FloatArray, before: FloatArray | None) -> None:
    """Draw the largest violation at each level, for one or two models."""
    at = np.arange(len(levels))
    if before is None:
        axes.bar(at, after, 0.6, color=AFTER)
    else:
        axes.bar(at - 0.2, before, 0.4, label="before", color=BEFORE)
        axes.bar(at + 0.2, after, 0.4, label="after", color=AFTER, hatch="//", edgecolor="white")
        axes.legend(frameon=False)
    axes.set_xticks(at, levels, rotation=25, ha="right", rotation_mode="anchor")
    axes.set_ylabel("largest violation over all groups")
    _tidy(axes)


def draw_sandwich(axes: Any, degrees: Sequence[int], moment: FloatArray, lower: FloatArray, upper: FloatArray) -> None:
    """Draw the moments of the predictions between their bounds; an upper bound that is not known is left out."""
    is_known = bool(np.isfinite(upper).all())
    if is_known:
        axes.fill_between(degrees, lower, upper, color="0.9", label="allowed")
        axes.plot(degrees, upper, "v--", color=BEFORE, markersize=5, label="at most: the truth's moment")
    axes.plot(degrees, lower, "^:", color="black", markersize=5, label="at least: mean outcome x moment below")
    axes.plot(degrees, moment, "o-", color=AFTER, markersize=6, label="moment of the predictions")
    axes.set_xticks(list(degrees))
    axes.set_xlabel(
        "degree (bounds include their slack)"
        + ("" if is_known else "\nthe upper bound needs the truth: pass f_star or replicates")
    )
    axes.set_ylabel("moment")
    axes.set_ylim(bottom=min(0.0, float(np.nanmin(lower))))
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize="small")
    _tidy(axes)


# --- two pictures side by side ------------------------------------------------------------------------------


def draw_before_after(
    levels: Sequence[Pair], groups: Sequence[Pair], path: str | PathLike[str], n_groups: int = 15
) -> None:
    """Draw the largest violation at each level and the worst groups, before and after, and save the picture."""
    _pyplot()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.5), layout="constrained")  # no screen is needed, and no pyplot
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.6]})
    names, before, after = zip(*levels, strict=True)
    draw_levels(left, names, np.array(after), np.array(before))
    left.set_title("Each level of the hierarchy")
    _draw_pairs(right, sorted(groups, key=lambda pair: -pair[1])[:n_groups])
    figure.suptitle("Violations on held-out rows, before and after recalibration")
    figure.savefig(path, dpi=120)


def _draw_pairs(axes: Any, groups: Sequence[Pair]) -> None:
    at = np.arange(len(groups))[::-1]
    before, after = [b for _, b, _ in groups], [a for _, _, a in groups]
    axes.hlines(at, after, before, color="0.75", linewidth=2, zorder=1)
    axes.scatter(before, at, color=BEFORE, label="before", zorder=2)
    axes.scatter(after, at, color=AFTER, label="after", marker="s", zorder=2)
    axes.set_yticks(at, [short(name, 48) for name, _, _ in groups])
    _plain_text(axes.get_yticklabels())
    axes.set_xlabel("degree-2 violation")
    axes.set_xlim(left=0)
    axes.set_title(f"The {len(groups)} worst groups")
    axes.legend(frameon=False, loc="lower right")
    _tidy(axes)
