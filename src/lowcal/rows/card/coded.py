"""Encoded rows on a device: weights as formulas, families as code columns, updates as look-ups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from lowcal.kernels.card.formula import Device, Formula, Inputs, OneLevel, power_above
from lowcal.kernels.reference import Codes, Stacked, stack
from lowcal.kernels.simplex import FLOOR, FloatArray, Geometry, IntArray
from lowcal.notions.weights import Cell, Knots, LogOdds, Monomial, Weight, cells_of_one_grid, n_intervals
from lowcal.rows.grids import POINTS
from lowcal.rows.updates import Term
from lowcal.subpopulations.base import Encoded, Everyone, Family
from lowcal.subpopulations.memberships import Bits, Members
from lowcal.subpopulations.trees import TreeNodes
from lowcal.subpopulations.union import Part, look_ups_of

#: The unit of the first of two parts of a term, see `in_two`.
COARSE = 1 << 17
#: The most cells of a grid whose places are looked up.
MOST_CELLS = 1 << 20
#: The most piecewise linear weights of an update: each looks up its height at 65,537 points.
MOST_KNOTS = 64

Lines = tuple[tuple[str, str], ...]

#: What every formula of two classes may use: log odds that are never infinite, and the prediction.
ROW: Lines = (("s", "inside(z)"), ("f", "sigmoid(z)"))


def each(stem: str, d: int) -> tuple[str, ...]:
    """Return the names of something in every coordinate.

    >>> each("f", 1), each("f", 3)
    (('f',), ('f0', 'f1', 'f2'))
    """
    return (stem,) if d == 1 else tuple(f"{stem}{a}" for a in range(d))


def arrays_of(z: Any, stem: str = "") -> dict[str, Any]:
    """Return predictions as formulas read them: log odds of two classes, or probabilities of several by label."""
    return {stem or "z": z} if z.ndim == 1 else dict(zip(each(stem or "f", len(z)), z, strict=True))


def own_predictions(device: Device, z: Any) -> Any:
    """Return predictions, (n,) or (d, n), as kernels read them."""
    if z.ndim == 1:
        return device.own(z)
    found = device.block(len(z), z.shape[1], device.kind)
    found[...] = z
    return found


def score_lines(d: int) -> Lines:
    """Return the lines of scores and predictions."""
    return ROW if d == 1 else tuple((f"s{a}", f"log_(most(f{a}, T({FLOOR!r})))") for a in range(d))


def row_lines(d: int) -> Lines:
    """Return the lines of scores, predictions and outcomes: of several classes y is a label, and y0, y1, .. are 0 or 1.

    >>> row_lines(3)[-1]
    ('y2', 'pick(y == T(2), T(1), T(0))')
    """
    labels = () if d == 1 else tuple((f"y{a}", f"pick(y == T({a}), T(1), T(0))") for a in range(d))
    return (*score_lines(d), *labels)


def weight_text(u: Weight, d: int = 1) -> str | None:
    """Return a weight as a formula of predictions and their scores; None: there is none.

    >>> weight_text(Monomial((0, 0))), weight_text(LogOdds()), weight_text(Monomial((0, 2)), 3)
    ('f*f', 's', 'f0*f2')
    """
    if isinstance(u, Monomial):
        return "*".join(each("f", d)[a] for a in u.factors) or "T(1)"
    return each("s", d)[u.coordinate] if isinstance(u, LogOdds) else None


def bound_of_text(text: str) -> float:
    """Return the largest size of a weight that is given as a formula: scores are larger than 1."""
    return 32.0 if text.startswith("s") else 1.0


@dataclass(frozen=True, eq=False)
class Coded:
    """Encoded rows on a device, and the code columns that families read there."""

    device: Device
    rows: Encoded
    n: int

    @cached_property
    def zeros(self) -> OneLevel:
        """The code column of the whole population."""
        return OneLevel(self.n)

    @cached_property
    def bytes_(self) -> tuple[Any, ...]:
        """The code columns that hold eight memberships each."""
        return tuple(_bytes_of(self.rows))

    def design(self, families: Sequence[Family]) -> Codes | None:
        """Return the memberships in all families, if they are code columns of 0 and 1."""
        if not all(self._is_coded(family, self.rows) for family in families):
            return None
        design = stack(Stacked(tuple(family.design(self.rows) for family in families)).joined())
        if not isinstance(design, Codes) or design.power(2) is not design:
            return None
        pairs = zip(design.codes, design.decode, strict=True)
        codes: tuple[Any, ...] = tuple(self.zeros if t.shape[0] == 1 else c for c, t in pairs)
        return Codes(codes, design.decode)

    def _is_coded(self, family: Family, rows: Encoded) -> bool:
        """Whether a family is made of code columns; the leaves of a tree are found here, so that it finds them."""
        if isinstance(family, Part):
            return self._is_coded(family.family, rows[family.index])
        if isinstance(family, TreeNodes):
            rows.once(family.tree, lambda: rows.leaves(self.device, family.tree))
        return look_ups_of(family) is not None or isinstance(family, Everyone | Members | TreeNodes)


def _bytes_of(rows: Encoded) -> Iterator[Any]:
    """Yield the bytes of memberships of rows and of their parts."""
    if isinstance(rows, Bits):
        yield from rows.packed
    for part in rows if isinstance(rows, tuple) else ():
        yield from _bytes_of(part)


def flat_on(rows: Encoded) -> tuple[list[Any], Any]:
    """Return the arrays that rows on a device are made of, and how they are put together again."""
    if isinstance(rows, tuple):
        parts = [flat_on(part) for part in rows]
        each = [rebuild for _, rebuild in parts]
        return [a for arrays, _ in parts for a in arrays], lambda arrays: tuple(one(arrays) for one in each)
    if hasattr(rows, "flat") and callable(rows.flat):
        arrays, rebuild = rows.flat()
        return list(arrays), rebuild
    return [rows], next


@dataclass(frozen=True, eq=False)
class Moves:
    """The displacement of rows by terms: look-ups in code columns, times weights, or one for each cell.

    `constants` hold the heights of weights that are linear between the points of a grid, or where cells are listed.
    """

    codes: tuple[Any, ...]
    levels: tuple[int, ...]
    tables: FloatArray
    d: int
    texts: tuple[str, ...] = ()
    lines: Lines = ()
    constants: FloatArray = field(default_factory=lambda: np.zeros(0))
    cells: int = 1

    @classmethod
    def of(cls, terms: Sequence[Term], coded: Coded) -> Moves | None:
        """Collect the look-ups of terms; None: they are made of more."""
        weights = tuple(dict.fromkeys(u for term in terms for u in term.weights))
        designs = [coded.design([term.family]) for term in terms]
        if not weights or None in designs:
            return None
        d, S = terms[0].theta.shape[2], len(weights)
        found: dict[int, tuple[Any, FloatArray]] = {}
        for term, design in zip(terms, designs, strict=True):
            assert design is not None
            own = [weights.index(u) for u in term.weights]
            spread = design._spread(term.theta.reshape(len(term.theta), -1))
            for column, table in zip(design.codes, spread, strict=True):
                _, total = found.setdefault(id(column), (column, np.zeros((len(table), S, d))))
                for k, s in enumerate(own):
                    total[:, s] += table[:, k * d : (k + 1) * d]
        columns, tables = zip(*found.values(), strict=True)
        sizes = tuple(len(table) for table in tables)
        return cls(columns, sizes, np.concatenate(tables), d)._with(weights, coded.device.kind)

    def _with(self, weights: Sequence[Weight], kind: np.dtype[Any]) -> Moves | None:
        """Return the same with formulas of the weights."""
        cells, (levels, S, d) = cells_of_one_grid(weights), self.tables.shape
        if cells:
            listed = listed_cells(cells, kind)
            if listed is None:
                return None
            wide = np.concatenate([self.tables, np.zeros((levels, 1, d))], axis=1).reshape(-1, 1, d)
            return replace(self, tables=wide, lines=listed.lines, constants=listed.constants, cells=S + 1)
        known = [weight_text(u, d) for u in weights]
        knots = [u for u, text in zip(weights, known, strict=True) if text is None]
        laid = grid_knots(knots, d)
        if laid is None:
            return None
        lines, heights, of_knots = laid
        texts = tuple(next(of_knots) if text is None else text for text in known)
        return replace(self, texts=texts, lines=lines, constants=heights)

    def _inputs(self, given: dict[str, Any], a: int = 0) -> Inputs:
        n, table = len(next(iter(given.values()))), np.ascontiguousarray(self.tables[:, :, a])
        return Inputs(n, given, self.codes, self.levels, table, self.constants)

    @property
    def _lines(self) -> Lines:
        """The lines up to the displacement of a label."""
        products = " + ".join(f"L[{s}]*({text})" for s, text in enumerate(self.texts))
        return (*score_lines(self.d), *self.lines, ("delta", "L[0]" if self.cells > 1 else products))

    def size(self, device: Device, z: Any) -> Any:
        """Return the displacement of every row, label by label: one kernel serves them all."""
        formula, given = Formula(("delta",), self._lines, cells=self.cells), arrays_of(z)
        if self.d == 1:
            return device.rows(formula, self._inputs(given), device.kind)
        found = device.block(self.d, z.shape[1], device.kind)
        for a in range(self.d):
            found[a] = device.rows(formula, self._inputs(given, a), device.kind)
        return found

    def after(self, device: Device, z: Any, geometry: Geometry) -> Any:
        """Return the log odds of every row after the move, or the probabilities of several classes."""
        if self.d == 1:
            formula = Formula((MOVED[geometry],), self._lines, cells=self.cells)
            return device.rows(formula, self._inputs(arrays_of(z)), device.kind)
        return moved_by(device, z, self.size(device, z), geometry)

    def between(self, device: Device, given: Any, geometry: Geometry, is_first: bool, is_last: bool) -> Any:
        """Return the same from probabilities, if it is the first move, and as probabilities, if it is the last."""
        if self.d > 1:
            return self.after(device, given, geometry)
        lines = (("z", "logit(p)"), *self._lines) if is_first else self._lines
        after = f"sigmoid({MOVED[geometry]})" if is_last else MOVED[geometry]
        inputs = self._inputs({"p" if is_first else "z": given})
        return device.rows(Formula((after,), lines, cells=self.cells), inputs, device.kind)


#: The log odds of a row after a move; one that does not move keeps its own to the last bit, as probabilities do.
MOVED = {
    "mirror": "inside(s + delta)",
    "euclidean": "pick(delta == T(0), z, logit(least(most(f + delta, T(0)), T(1))))",
}


def moved_by(device: Device, z: Any, delta: Any, geometry: Geometry) -> Any:
    """Return the log odds of every row after a displacement, or the probabilities of several classes."""
    d = 1 if z.ndim == 1 else len(z)
    lines, texts = moved(d, geometry, device.kind)
    formula, given = Formula(texts, (*score_lines(d), *lines)), {**arrays_of(z), **arrays_of(delta, "delta")}
    found = device.columns(formula, Inputs(z.shape[-1], given), device.kind)
    return found if d > 1 else found[0]


def moved(d: int, geometry: Geometry, kind: np.dtype[Any], step: str = "") -> tuple[Lines, tuple[str, ...]]:
    """Return lines, and formulas of where a row is after a move by delta, or by a step times delta."""
    if d == 1:
        return (), (MOVED[geometry],)
    stem = "s" if geometry == "mirror" else "f"
    ahead = [f"{stem}{a} + {step}delta{a}" for a in range(d)]
    return softmax_lines(ahead, kind) if geometry == "mirror" else projection_lines(ahead)


def softmax_lines(z: Sequence[str], kind: np.dtype[Any], stem: str = "e") -> tuple[Lines, tuple[str, ...]]:
    """Return lines and formulas of `from_scores` of several classes."""
    d = len(z)
    lines = [
        *((f"{stem}z{a}", text) for a, text in enumerate(z)),
        (f"{stem}most", largest([f"{stem}z{a}" for a in range(d)])),
    ]
    lines += [(f"{stem}{a}", f"exp_({stem}z{a} - {stem}most)") for a in range(d)]
    lines.append((f"{stem}sum", " + ".join(each(stem, d))))
    below_one = 1.0 - float(np.finfo(kind).epsneg)
    return tuple(lines), tuple(f"least({name}/{stem}sum, T({below_one!r}))" for name in each(stem, d))


def projection_lines(v: Sequence[str]) -> tuple[Lines, tuple[str, ...]]:
    """Return lines and formulas of `project`: the threshold of all coordinates, then of those above it, and so on.

    The coordinates above a threshold are fewer each time, or the same ones: then it is the last.
    """
    d = len(v)
    lines = [*((f"v{a}", text) for a, text in enumerate(v)), ("vmost", largest(each("v", d)))]
    lines += [(f"u{a}", f"v{a} - vmost") for a in range(d)]
    lines.append(("th0", f"({' + '.join(each('u', d))} - T(1))/T({d})"))
    for turn in range(1, d):
        above = [f"u{a} > th{turn - 1}" for a in range(d)]
        lines.append((f"n{turn}", " + ".join(f"pick({one}, T(1), T(0))" for one in above)))
        lines.append((f"m{turn}", " + ".join(f"pick({one}, u{a}, T(0))" for a, one in enumerate(above))))
        lines.append((f"th{turn}", f"(m{turn} - T(1))/n{turn}"))
    return tuple(lines), tuple(f"most(u{a} - th{d - 1}, T(0))" for a in range(d))


def in_two(terms: Sequence[str], bounds: Sequence[float]) -> tuple[Lines, tuple[str, ...], tuple[float, ...]]:
    """Return terms as sums of two: multiples of a unit, 1 / COARSE of a bound, and the rest.

    Terms that are small at most rows, as squares are, then lose nothing to the unit of the largest.
    """
    names = {text: f"x{q}" for q, text in enumerate(dict.fromkeys(terms))}
    wide = [power_above(bound) for bound in bounds]
    units = [(names[text], COARSE / bound, bound / COARSE) for text, bound in zip(terms, wide, strict=True)]
    high = [f"near({name}*T({per!r}))*T({unit!r})" for name, per, unit in units]
    low = [f"{name} - {text}" for (name, _, _), text in zip(units, high, strict=True)]
    return tuple((name, text) for text, name in names.items()), (*high, *low), (*wide, *(unit for _, _, unit in units))


def largest(texts: Sequence[str]) -> str:
    """Return the largest of some formulas.

    >>> largest(["a", "b", "c"])
    'most(most(a, b), c)'
    """
    return reduce(lambda a, b: f"most({a}, {b})", texts)


# --- weights that are looked up -------------------------------------------------------------------------------


class Listed(NamedTuple):
    """The line `cell`: where the cell of a row stands in a list, or the length of the list; and what it looks up."""

    lines: Lines
    constants: FloatArray


def listed_cells(cells: Sequence[Cell], kind: np.dtype[Any]) -> Listed | None:
    """Return the place of a row's cell among some cells of a grid; None: the grid has too many cells."""
    width, d = cells[0].width, len(cells[0].index)
    k = n_intervals(width)
    if k**d > MOST_CELLS:
        return None
    places = np.full(k**d, float(len(cells)))
    places[(np.array([cell.index for cell in cells]) * radix(k, d)).sum(axis=1)] = np.arange(len(cells))
    return Listed((("cell", f"whole(k[{grid_text(width, d, kind)}])"),), places)


def radix(k: int, d: int) -> IntArray:
    """Return what a step in each coordinate adds to the number of a cell."""
    return np.asarray(k ** np.arange(d)[::-1])


def grid_text(width: float, d: int, kind: np.dtype[Any]) -> str:
    """Return the number of a prediction's cell among all of the grid."""
    k = n_intervals(width)
    return " + ".join(
        f"{cell_text(width, kind, name)}*{size}" for name, size in zip(each("f", d), radix(k, d).tolist(), strict=True)
    )


def cell_text(width: float, kind: np.dtype[Any], f: str = "f") -> str:
    """Return the cell of a prediction as a formula; one that lies on an edge, up to rounding, is in the upper cell."""
    k = n_intervals(width)
    scale = float(k) if abs(k * width - 1.0) <= 1e-9 else 1.0 / width
    return f"whole(least({f}*T({scale!r}) + T({4 * scale * float(np.finfo(kind).eps)!r}), T({k - 1})))"


def grid_knots(weights: Sequence[Weight], d: int) -> tuple[Lines, FloatArray, Iterator[str]] | None:
    """Return lines, heights at all points of a grid, and formulas of piecewise linear weights with knots there.

    None: a weight is another, or its knots lie elsewhere, as those of smooth weights in memory do.
    """
    knots = [u for u in weights if isinstance(u, Knots) and not (u.positions * POINTS % 1.0).any()]
    if len(knots) < len(weights) or len(knots) > MOST_KNOTS:
        return None
    at = np.arange(POINTS + 1) / POINTS
    heights = [np.interp(at, u.positions, u.heights) for u in knots]
    names, lines = each("f", d), []
    for a in sorted({u.coordinate for u in knots}):
        lines += [(f"at{a}", f"whole(least({names[a]}*T({POINTS}), T({POINTS - 1})))")]
        lines += [(f"up{a}", f"{names[a]}*T({POINTS}) - T(at{a})")]
    texts = []
    for j, u in enumerate(knots):
        low, up = f"k[{j * (POINTS + 1)} + at{u.coordinate}]", f"up{u.coordinate}"
        texts.append(f"{low} + {up}*(k[{j * (POINTS + 1) + 1} + at{u.coordinate}] - {low})")
    return tuple(lines), np.concatenate([np.zeros(0), *heights]), iter(texts)
