"""Why a prediction changed: what each group, the trees and the score alone contributed to a row.

A mirror update adds to the log odds, so its terms are contributions as they are, and those of several updates add up.
With several classes the log odds of a class are log p less the mean of log p over the classes: normalising takes away
what all classes share, and a contribution sums to zero over them. A Euclidean update adds to the probabilities, and
what the projection takes off again is a contribution of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from lowcal.data.errors import aligned, brief, brief_names
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import read_features, read_probabilities
from lowcal.kernels.simplex import FloatArray, IntArray, centred, from_scores, project, scores
from lowcal.notions.weights import CellIds, evaluate
from lowcal.subpopulations.base import EVERYONE, Breakdown, breakdown_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lowcal.rows.updates import Predictor, Term, Update

Scale: TypeAlias = Literal["log odds", "probability"]
#: A number; with several classes, one for each.
Amount: TypeAlias = float | tuple[float, ...]

#: What every row with this probability gets, and what keeping probabilities within their limits takes off.
SCORE, LIMITS = "score", "kept between 0 and 1"
#: A table lists this many contributions and classes.
MOST_SHOWN, MOST_CLASSES = 12, 4
#: Of the rows that changed most, this many are explained.
MOST_CHANGED = 5
#: This many rows are explained at a time.
PIECE = 1024


@dataclass(frozen=True)
class Contribution:
    """What one cause adds on the scale of its explanation, and the probability once it and all before it are added."""

    name: str
    value: Amount
    after: Amount

    def to_dict(self) -> dict[str, Any]:
        """Return the contribution as plain data."""
        return {"name": self.name, "value": np.array(self.value).tolist(), "after": np.array(self.after).tolist()}


@dataclass(frozen=True)
class Explanation:
    """Why a probability changed: contributions, the largest first, that sum to the change.

    `scale` is what they add to: the "log odds", or the "probability" where all updates are Euclidean. With several
    classes, `start`, `end` and all values have a number for each, and the log odds of a class are log p less the mean
    of log p over the classes. `print(explanation)` shows a table.
    """

    start: Amount
    end: Amount
    scale: Scale
    contributions: tuple[Contribution, ...]
    #: The classes, where there are more than two.
    classes: tuple[Any, ...] = ()

    @property
    def change(self) -> float:
        """How far the probability moved; with several classes, the one that moved most."""
        return float(np.abs(np.subtract(self.end, self.start)).max())

    def why(self, most: int = 3) -> str:
        """Return the largest contributions in a few words, such as "sex=F -0.41; score -0.22"."""
        return "; ".join(map(self._words, self.contributions[:most])) or "no change"

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        classes = {"classes": list(self.classes)} if self.classes else {}
        listed = [one.to_dict() for one in self.contributions]
        start, end = np.array(self.start).tolist(), np.array(self.end).tolist()
        return {"start": start, "end": end, "scale": self.scale, **classes, "contributions": listed}

    def __str__(self) -> str:
        head = f"{self.headline}."
        if not self.contributions:
            return head
        rows = self.table()
        return "\n".join([head, "", *aligned(rows, "l" + "r" * (len(rows[0]) - 1))])

    @property
    def headline(self) -> str:
        """How the probability changed; with several classes, those that changed most."""
        if not self.classes:
            return _became(self.start, self.end)
        ends = np.transpose([self.start, self.end]).tolist()
        every = [f"{brief(name)}: {_became(*pair)}" for name, pair in zip(self.classes, ends, strict=True)]
        return "; ".join(every[a] for a in self._shown)

    def table(self) -> list[list[str]]:
        """Return the largest contributions, what the others add up to, and the sum of all, below their headings."""
        n = len(self.contributions)
        first = self.contributions[: n if n <= MOST_SHOWN + 1 else MOST_SHOWN]
        rest, names = self.contributions[len(first) :], brief_names(one.name for one in first)
        rows = [self._row(name, one.value, one.after) for name, one in zip(names, first, strict=True)]
        if rest:
            rows.append(self._row(f"{len(rest)} others", _total(rest), self.end))
        added = f"Added to the {self.scale}"
        head = [added, *(brief(self.classes[a]) for a in self._shown)] if self.classes else ["", added, "Probability"]
        return [head, *rows, self._row("sum", _total(self.contributions), self.end)]

    def _row(self, name: str, value: Amount, after: Amount) -> list[str]:
        if self.classes:
            return [name, *(f"{np.atleast_1d(value)[a]:+.4f}" for a in self._shown)]
        return [name, f"{value:+.4f}", f"{after:.4f}"]

    @property
    def _shown(self) -> list[int]:
        """The classes whose probabilities changed most, in their own order."""
        moved = np.abs(np.subtract(self.end, self.start))
        return sorted(np.argsort(-moved, kind="stable")[:MOST_CLASSES].tolist())

    def _words(self, one: Contribution) -> str:
        """Return a contribution in a few words; with several classes, for the class that it changes most."""
        if not self.classes:
            return f"{brief(one.name)} {one.value:+.2f}"
        a = int(np.abs(one.value).argmax())
        return f"{brief(one.name)} {np.atleast_1d(one.value)[a]:+.2f} ({brief(self.classes[a])})"


def _amount(numbers: FloatArray) -> Amount:
    return float(numbers[0]) if len(numbers) == 1 else tuple(numbers.tolist())


def _total(some: Sequence[Contribution]) -> Amount:
    return _amount(np.sum([np.atleast_1d(one.value) for one in some], axis=0))


def _became(start: Any, end: Any) -> str:
    """Describe how a probability changed, with enough decimals to distinguish it from before, and from 0 and 1.

    >>> _became(0.3012, 0.0702), _became(0.0004, 0.0125), _became(0.5, 0.5)
    ('0.30 became 0.07', '0.0004 became 0.0125', '0.50 stayed 0.50')
    """
    if start == end:
        return f"{start:.2f} stayed {end:.2f}"
    each = [[f"{p:.{k}f}" for p in (start, end)] for k in range(2, 7)]
    clear = (one for one in each if one[0] != one[1] and all(0.0 < float(text) < 1.0 for text in one))
    return " became ".join(next(clear, each[-1]))


# --- from updates to contributions ----------------------------------------------------------------------------


def explain_rows(predictor: Predictor, p: FloatArray, table: Frame) -> Iterator[Explanation]:
    """Yield the explanation of every row of a table, for checked predictions p."""
    for start in range(0, len(p), PIECE):
        some = np.arange(start, min(start + PIECE, len(p)))
        yield from _explain(predictor, p[some], table if len(some) == len(p) else table.take(some))


def most_changed(predictor: Predictor, p: ArrayLike, X: object, n: int = MOST_CHANGED) -> dict[int, Explanation]:
    """Return the explanations of the n rows whose predictions change most, by their numbers from 1 on."""
    given = read_probabilities(p, predictor.layout)
    table = read_features(X, len(given))
    change = np.abs(predictor.replay(given, predictor.rows(given, table)) - given).max(axis=1, initial=0.0)
    top = [k for k in np.argsort(-change, kind="stable")[:n].tolist() if change[k] > 0.0]
    return dict(
        zip([k + 1 for k in top], explain_rows(predictor, given[top], table.take(np.array(top, int))), strict=True)
    )


def _explain(predictor: Predictor, p: FloatArray, table: Frame) -> Iterator[Explanation]:
    scale, account, end, rows = _scale(predictor.updates), _Account(), p, predictor.rows(p, table)
    for number, update in enumerate(predictor.updates, 1):
        before, end = end, update(end, rows)
        change = _place(end, scale) - _place(before, scale)
        if scale == "log odds" and update.geometry == "euclidean":
            account.add_all(f"update {number}", change)
            continue
        for term in update.terms:
            parts = breakdown_of(term.family, predictor.encoder, rows)
            change = change - account.add(parts.names, *_amounts(term, parts, before), len(p))
        account.add_all(LIMITS, change)
    layout = predictor.layout
    classes = () if layout.d == 1 else layout.classes or tuple(range(layout.d))
    for k, (names, values) in enumerate(account.rows(*p.shape)):
        yield Explanation(_amount(p[k]), _amount(end[k]), scale, _in_order(p[[k]], scale, names, values), classes)


def _scale(updates: Sequence[Update]) -> Scale:
    """Return what the contributions of all updates are added to; where geometries are mixed, the log odds."""
    geometries = {update.geometry for update in updates if update.terms}
    return "probability" if geometries == {"euclidean"} else "log odds"


def _place(p: FloatArray, scale: Scale) -> FloatArray:
    """Return where predictions stand on a scale."""
    return p if scale == "probability" else centred(scores(p))


def _amounts(term: Term, parts: Breakdown, p: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Return rows, parts of the term's members that they have, and what each adds to the row, shape (entries, d)."""
    held = parts.matrix.tocoo()
    theta, U = term.theta[parts.member[held.col]], evaluate(term.weights, p)
    if isinstance(U, CellIds):
        ids = U.ids[held.row]
        own = theta[np.arange(len(ids)), np.minimum(ids, U.n_cells - 1)]
        factor = np.where((ids < U.n_cells)[:, None], own, 0.0)
    else:
        factor = np.einsum("ks,ksa->ka", U[held.row], theta)
    return held.row, held.col, centred(held.data[:, None] * factor)


class _Account:
    """What moved some rows, by name."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.entries: list[tuple[IntArray, IntArray, FloatArray]] = []

    def add(self, names: Sequence[str], rows: IntArray, which: IntArray, amounts: FloatArray, n: int) -> FloatArray:
        """Note amounts, each with its row and which of the names it has; return the sum for each of n rows."""
        used, inverse = np.unique(which, return_inverse=True)
        places = [self.places.setdefault(names[k], len(self.places)) for k in used.tolist()]
        self.entries.append((rows, np.array(places, dtype=np.intp)[inverse], amounts))
        total = np.zeros((n, amounts.shape[1]))
        np.add.at(total, rows, amounts)
        return total

    def add_all(self, name: str, amounts: FloatArray) -> None:
        """Note an amount for every row."""
        n = len(amounts)
        self.add([name], np.arange(n), np.zeros(n, dtype=np.intp), amounts, n)

    def rows(self, n: int, d: int) -> Iterator[tuple[list[str], FloatArray]]:
        """Yield for each of n rows the names that moved it and their amounts, shape (names, d)."""
        names = [SCORE if name == EVERYONE else name for name in self.places]
        none = (np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp), np.zeros((0, d)))
        row, place, amounts = (np.concatenate(each) for each in zip(none, *self.entries, strict=True))
        keys, inverse = np.unique(row * len(names) + place, return_inverse=True)
        sums = np.zeros((len(keys), d))
        np.add.at(sums, inverse, amounts)
        # contributions sum to the change at least this closely: a smaller difference, or contribution, is rounding
        least = np.where(keys % max(1, len(names)) == self.places.get(LIMITS, -1), 5e-13, 1e-15)
        kept = np.abs(sums).max(axis=1, initial=0.0) > least
        keys, sums = keys[kept], sums[kept]
        ends = np.searchsorted(keys, len(names) * np.arange(1, n))
        for key, some in zip(np.split(keys, ends), np.split(sums, ends), strict=True):
            yield [names[k] for k in (key % max(1, len(names))).tolist()], some


def _in_order(p: FloatArray, scale: Scale, names: Sequence[str], values: FloatArray) -> tuple[Contribution, ...]:
    """Return contributions to a row, the largest first; what the limits take off comes last, as it depends on all."""
    size = np.abs(values).max(axis=1, initial=0.0)
    order = sorted(range(len(names)), key=lambda k: (names[k] == LIMITS, -size[k], names[k]))
    values = values[order]
    there = _place(p, scale) + np.cumsum(values, axis=0)
    after = project(there) if scale == "probability" else from_scores(there)
    each = zip(order, values, after, strict=True)
    return tuple(Contribution(names[k], _amount(value), _amount(then)) for k, value, then in each)
