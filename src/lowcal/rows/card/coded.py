"""Encoded rows on a device: weights as formulas, families as code columns, updates as look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lowcal.kernels.card.formula import Device, Formula, Inputs
from lowcal.kernels.reference import Codes, Stacked, stack
from lowcal.kernels.simplex import FloatArray, Geometry
from lowcal.notions.weights import Cell, LogOdds, Monomial, Weight, cells_of_one_grid, n_intervals
from lowcal.rows.updates import Term
from lowcal.subpopulations.base import Encoded, Everyone, Family
from lowcal.subpopulations.codes import look_ups_of
from lowcal.subpopulations.memberships import Members
from lowcal.subpopulations.trees import TreeNodes
from lowcal.subpopulations.union import Part

#: What every formula may use: log odds that are never infinite, and the prediction.
ROW = (("s", "inside(z)"), ("f", "sigmoid(z)"))


def weight_text(u: Weight) -> str | None:
    """Return a weight as a formula of f and the log odds s; None: there is none.

    >>> weight_text(Monomial((0, 0))), weight_text(LogOdds())
    ('f*f', 's')
    """
    if isinstance(u, Monomial):
        return "*".join(["f"] * len(u.factors)) or "T(1)"
    return "s" if isinstance(u, LogOdds) else None


@dataclass(frozen=True, eq=False)
class Coded:
    """Encoded rows on a device, and the code columns that families read there."""

    device: Device
    rows: Encoded
    n: int

    @cached_property
    def _zeros(self) -> Any:
        """The code column of the whole population."""
        return self.device.own(self.device.xp.zeros(self.n, dtype=np.uint8))

    def design(self, families: Sequence[Family]) -> Codes | None:
        """Return the memberships in all families, if they are code columns of 0 and 1."""
        if not all(self._is_coded(family, self.rows) for family in families):
            return None
        design = stack(Stacked(tuple(family.design(self.rows) for family in families)).joined())
        if not isinstance(design, Codes) or design.power(2) is not design:
            return None
        is_here = self.device.xp.ndarray
        return Codes(tuple(c if isinstance(c, is_here) else self._zeros for c in design.codes), design.decode)

    def _is_coded(self, family: Family, rows: Encoded) -> bool:
        """Whether a family is made of code columns; the leaves of a tree are found here, so that it finds them."""
        if isinstance(family, Part):
            return self._is_coded(family.family, rows[family.index])
        if isinstance(family, TreeNodes):
            rows.once(family.tree, lambda: rows.leaves(self.device, family.tree))
        return look_ups_of(family) is not None or isinstance(family, Everyone | Members | TreeNodes)


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
    """The displacement of rows by terms: look-ups in code columns, times weights, or one for each cell."""

    codes: tuple[Any, ...]
    levels: tuple[int, ...]
    tables: FloatArray
    texts: tuple[str, ...]
    width: float | None = None

    @classmethod
    def of(cls, terms: Sequence[Term], coded: Coded) -> Moves | None:
        """Collect the look-ups of terms; None: they are made of more."""
        weights = tuple(dict.fromkeys(u for term in terms for u in term.weights))
        cells, texts = cells_of_one_grid(weights), [weight_text(u) for u in weights]
        designs = [coded.design([term.family]) for term in terms]
        if not weights or None in designs or (not cells and None in texts):
            return None
        width = cells[0].width if cells else None
        places = [u.index[0] if isinstance(u, Cell) else k for k, u in enumerate(weights)]
        size = len(weights) if width is None else n_intervals(width)
        found: dict[int, tuple[Any, FloatArray]] = {}
        for term, design in zip(terms, designs, strict=True):
            assert design is not None
            own = [places[weights.index(u)] for u in term.weights]
            for column, table in zip(design.codes, design._spread(term.theta[:, :, 0]), strict=True):
                _, total = found.setdefault(id(column), (column, np.zeros((len(table), size))))
                np.add.at(total.T, own, table.T)
        columns, tables = zip(*found.values(), strict=True)
        sizes = tuple(len(table) for table in tables)
        return cls(columns, sizes, np.concatenate(tables), tuple(t or "" for t in texts), width)

    def _inputs(self, **given: Any) -> Inputs:
        return Inputs(len(next(iter(given.values()))), given, self.codes, self.levels, self.tables)

    def _lines(self, kind: np.dtype[Any]) -> tuple[tuple[str, str], ...]:
        if self.width is None:
            return (*ROW, ("delta", " + ".join(f"L[{s}]*({text})" for s, text in enumerate(self.texts))))
        count = self.tables.shape[1]
        chosen = "".join(f"pick(cell == {s}, L[{s}], " for s in range(count)) + "T(0)" + ")" * count
        return (*ROW, ("cell", cell_text(self.width, kind)), ("delta", chosen))

    def size(self, device: Device, z: Any) -> Any:
        """Return the displacement of every row."""
        return device.rows(Formula(("delta",), self._lines(device.kind)), self._inputs(z=z), device.kind)

    def after(self, device: Device, z: Any, geometry: Geometry) -> Any:
        """Return the log odds of every row after the move."""
        return device.rows(Formula((MOVED[geometry],), self._lines(device.kind)), self._inputs(z=z), device.kind)

    def between(self, device: Device, given: Any, geometry: Geometry, is_first: bool, is_last: bool) -> Any:
        """Return the same from probabilities, if it is the first move, and as probabilities, if it is the last."""
        lines = self._lines(device.kind)
        if is_first:
            lines = (("z", "logit(p)"), *lines)
        moved = f"sigmoid({MOVED[geometry]})" if is_last else MOVED[geometry]
        inputs = self._inputs(p=given) if is_first else self._inputs(z=given)
        return device.rows(Formula((moved,), lines), inputs, device.kind)


#: The log odds of a row after a move.
MOVED = {"mirror": "inside(s + delta)", "euclidean": "logit(least(most(f + delta, T(0)), T(1)))"}


def cell_text(width: float, kind: np.dtype[Any]) -> str:
    """Return the cell of a prediction as a formula; one that lies on an edge, up to rounding, is in the upper cell."""
    k = n_intervals(width)
    scale = float(k) if abs(k * width - 1.0) <= 1e-9 else 1.0 / width
    return f"whole(least(f*T({scale!r}) + T({4 * scale * float(np.finfo(kind).eps)!r}), T({k - 1})))"
