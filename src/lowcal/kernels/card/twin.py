"""Formulas in NumPy: memory in the place of a card, and the definition of what kernels return."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.card.draws import Picking
from lowcal.kernels.card.formula import MOST_ODDS, TWIN_ROWS, Device, Formula, Inputs, chances
from lowcal.kernels.exact import Wholes

LN2_HIGH, LN2_LOW, LOG2E = 0.693359375, -2.12194440054690581e-4, 1.4426950408889634
#: 1 / k! for k = 7 .. 2, and 2 / k for k = 9, 7, .. 3.
EXP_TERMS = tuple(1.0 / f for f in (5040.0, 720.0, 120.0, 24.0, 6.0, 2.0))
LOG_TERMS = tuple(2.0 / k for k in (9.0, 7.0, 5.0, 3.0))


def exp_single(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return e^x for |x| <= 87: 2^k e^r with |r| <= log(2) / 2, by a polynomial.

    >>> x = np.linspace(-20, 20, 9, dtype=np.float32)
    >>> bool(np.abs(exp_single(x) / np.exp(x.astype(float)) - 1).max() < 2e-7)
    True
    """
    f = np.float32
    k = np.rint(x * f(LOG2E))
    r = (x - k * f(LN2_HIGH)) - k * f(LN2_LOW)
    p = np.full_like(r, EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        p = p * r + f(term)
    p = (p * r) * r + r + f(1)
    return np.asarray(p * ((k.astype(np.int32) + 127) << 23).view(f))


def log_single(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log x of normal numbers: x = 2^e m with m near 1, log m by the series of (m - 1) / (m + 1).

    >>> x = np.array([1e-9, 0.3, 1.0, 2.5, 1e9], dtype=np.float32)
    >>> bool(np.abs(log_single(x) - np.log(x.astype(float))).max() < 2e-6)
    True
    """
    f = np.float32
    bits = x.view(np.int32) - np.int32(0x3F3504F3)  # the square root of a half
    e = (bits >> 23).astype(f)
    m = ((bits & 0x7FFFFF) + np.int32(0x3F3504F3)).view(f)
    s = (m - f(1)) / (m + f(1))
    s2 = s * s
    p = np.full_like(s, LOG_TERMS[0])
    for term in LOG_TERMS[1:]:
        p = p * s2 + f(term)
    return np.asarray(e * f(LN2_HIGH) + ((p * s2) * s + e * f(LN2_LOW) + f(2) * s))


def _functions(kind: np.dtype[Any]) -> dict[str, Any]:
    """Return what formulas may call, for numbers of a kind."""
    number = kind.type
    exp = (lambda x: exp_single(np.clip(x, number(-87), number(87)))) if kind == np.float32 else np.exp
    log = log_single if kind == np.float32 else np.log

    def sigmoid(z: Any) -> Any:
        with np.errstate(over="ignore"):
            inside = number(1) / (number(1) + exp(-z))
        return np.where(np.isinf(z), (z > 0).astype(kind), inside)

    def logit(p: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = log(np.maximum(p, number(1e-37)) / np.maximum(number(1) - p, number(1e-37)))
        return np.where(p <= 0, number(-np.inf), np.where(p >= 1, number(np.inf), inside))

    return {
        "T": number,
        "exp_": exp,
        "log_": log,
        "sigmoid": sigmoid,
        "logit": logit,
        "least": np.minimum,
        "most": np.maximum,
        "size": np.abs,
        "pick": np.where,
        "near": np.rint,
        "whole": lambda x: np.floor(x).astype(np.int64),
        "inside": lambda z: np.minimum(np.maximum(z, number(-MOST_ODDS)), number(MOST_ODDS)),
    }


def _drawn(inputs: Inputs, part: slice, b: int, q: Any) -> NDArray[np.bool_]:
    return np.asarray(chances(inputs.keys[b], inputs.first + np.arange(part.start, part.stop)) < q)


def _looked_up(tables: NDArray[Any], at: Sequence[NDArray[np.int64]]) -> list[Any]:
    return [sum((tables[i, s] for i in at), tables.dtype.type(0)) for s in range(tables.shape[1])]


class Twin(Device):
    """Memory in the place of a card: the definition of what kernels return."""

    xp = np

    @cached_property
    def _names(self) -> dict[str, Any]:
        return _functions(self.kind)

    def _blocks(self, formula: Formula, inputs: Inputs) -> Any:
        """Yield slices of the rows, the code columns' places in all tables, the lines' values, and the terms."""
        constants = np.asarray(inputs.constants, dtype=np.float64).astype(self.kind)
        tables = None if inputs.tables is None else inputs.tables.astype(self.kind)
        for start in range(0, inputs.n, TWIN_ROWS):
            part = slice(start, min(start + TWIN_ROWS, inputs.n))
            here = {name: np.asarray(a[part]).astype(self.kind) for name, a in inputs.arrays.items()}
            at = [c[part].astype(np.int64) + o for c, o in zip(inputs.codes, inputs.offsets, strict=True)]
            known = {**self._names, **here, "k": constants}
            if tables is not None and not inputs.are_by_cell(formula):
                known["L"] = _looked_up(tables, at)
            known["drawn"] = partial(_drawn, inputs, part)
            for name, text in formula.lines:
                known[name] = eval(text, known)
                if name == "cell" and tables is not None and inputs.are_by_cell(formula):
                    known["L"] = _looked_up(tables, [i * formula.cells + known["cell"] for i in at])
            yield part, at, known, [eval(text, known) for text in formula.terms]

    def _sums(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes:
        total = np.zeros((inputs.size * formula.cells, len(scales)), dtype=np.int64)
        for part, at, known, terms in self._blocks(formula, inputs):
            for q, (term, scale) in enumerate(zip(terms, scales, strict=True)):
                term = np.broadcast_to(np.asarray(term, dtype=self.kind), part.stop - part.start)
                whole = np.rint(term * self.kind.type(scale)).astype(np.int64)
                for places in at:
                    cell = places * formula.cells + (known["cell"] if formula.cells > 1 else 0)
                    np.add.at(total[:, q], cell, whole)
        return total

    def _picks(
        self,
        formula: Formula,
        inputs: Inputs,
        belongs: NDArray[np.bool_],
        chances: tuple[str, ...],
        shape: Picking,
    ) -> NDArray[np.int64]:
        total = np.zeros((len(chances), len(inputs.keys), inputs.size, len(shape.digits)), dtype=np.int64)
        for part, at, known, terms in self._blocks(formula, inputs):
            size = part.stop - part.start
            wholes = [
                np.broadcast_to(np.rint(term * self.kind.type(unit)).astype(np.int64), size)
                for term, unit in zip(terms, shape.units, strict=True)
            ]
            for b, (k, name) in product(range(len(inputs.keys)), enumerate(chances)):
                held = np.flatnonzero(_drawn(inputs, part, b, np.broadcast_to(known[name], size)))
                for t, whole in enumerate(wholes):
                    for places in at:
                        np.add.at(total[k, b, :, t], places[held], whole[held])
        return np.asarray(np.einsum("kblt,lm->kbmt", total, belongs.astype(np.int64)))

    def _total(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes:
        total = np.zeros(len(scales), dtype=np.int64)
        for part, _, _, terms in self._blocks(formula, inputs):
            for q, (term, scale) in enumerate(zip(terms, scales, strict=True)):
                term = np.broadcast_to(np.asarray(term, dtype=self.kind), part.stop - part.start)
                total[q] += np.rint(term * self.kind.type(scale)).astype(np.int64).sum()
        return total

    def largest(self, formula: Formula, inputs: Inputs) -> float:
        """Return the largest size of the only term at any row."""
        return max(float(np.abs(term).max(initial=0.0)) for _, _, _, (term,) in self._blocks(formula, inputs))

    def rows(self, formula: Formula, inputs: Inputs, kind: Any) -> Any:
        """Return the only term at every row."""
        found = np.empty(inputs.n, dtype=kind)
        for part, _, _, (term,) in self._blocks(formula, inputs):
            found[part] = term
        return found

    def columns(self, formula: Formula, inputs: Inputs, kind: Any) -> Any:
        """Return all terms at every row."""
        found = self.block(len(formula.terms), inputs.n, kind)
        for part, _, _, terms in self._blocks(formula, inputs):
            for row, term in zip(found, terms, strict=True):
                row[part] = term
        return found

    def extremes(self, formula: Formula, inputs: Inputs) -> NDArray[np.float64]:
        """Return the least and the largest value of the only term by cell."""
        found = np.tile([np.inf, 0.0], (formula.cells, 1))
        for _, _, known, (term,) in self._blocks(formula, inputs):
            np.minimum.at(found[:, 0], known["cell"], term.astype(np.float64))
            np.maximum.at(found[:, 1], known["cell"], term.astype(np.float64))
        return found

    def picked(self, text: str, inputs: Inputs, most: int, lines: tuple[tuple[str, str], ...] = ()) -> Wholes:
        """Return the numbers of up to `most` rows for which a condition holds."""
        held = self.rows(Formula((text,), lines), inputs, np.bool_)
        return np.flatnonzero(held)[:most]

    def own(self, array: Any) -> Any:
        """Return the array without gaps."""
        return np.ascontiguousarray(array)

    def upload(self, array: NDArray[Any]) -> Any:
        """Return the array."""
        return np.ascontiguousarray(array)

    def download(self, array: Any) -> NDArray[Any]:
        """Return the array."""
        return np.asarray(array)
