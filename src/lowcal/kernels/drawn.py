"""Exact sums of many draws at once, where chance picks rows: each draw visits those with the rarer outcome, no others.

A row has two outcomes, and what either adds to the sums is the same in all draws. So every row is added once with its
likelier outcome, and in each draw the rows with the other one add the difference, which lies on the grid too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowcal.kernels.exact import BLOCK, ExactSums, Grid, Wholes
from lowcal.kernels.loops import OTHER_SIDE
from lowcal.kernels.reference import Codes, code_rows, pad
from lowcal.kernels.simplex import FloatArray
from lowcal.kernels.switch import kernels_at_hand
from lowcal.kernels.threads import MAX_THREADS, spread


class DrawnSums:
    """C'R of many draws under construction, by level of every code column: shape (draws, levels, q)."""

    def __init__(self, design: Codes, q: int, grid: Grid, keys: Sequence[np.uint64]) -> None:
        self.grid, self.keys, self.n, self.held = grid, np.array(keys, dtype=np.uint64), design.shape[0], 0
        self.columns = [design.codes[k] for k in design.firsts.values()]
        edges = np.cumsum([0, *(design.decode[k].shape[0] for k in design.firsts.values())])
        self.starts, self.passed = edges[:-1], ExactSums(design, q, grid)
        self.tables = np.zeros((len(keys), edges[-1], self.passed.sums.tables()[0].shape[1]))
        self.total = np.zeros(self.tables.shape, dtype=np.int64)
        self.add_drawn = kernels_at_hand(self.n * q * len(self.columns)).add_drawn

    def add(self, part: slice, first: int, chance: FloatArray, picked: FloatArray, passed: FloatArray) -> None:
        """Add the rows of a slice, the first of which has a number that its chance belongs to (`lay_uniforms`).

        A draw picks a row if its number in [0, 1) is below `chance`; the row adds a row of `picked` or of `passed`.
        """
        more, base = (self.grid.round(pad(one)) for one in (picked, passed))
        if self.held + len(more) > BLOCK:
            self._flush()
        self.held += len(more)
        more -= base
        is_likely = chance > 0.5
        base[is_likely] += more[is_likely]
        more[is_likely] *= -1.0
        self.passed.add_rounded(part, base)
        bars, codes = np.ceil(chance * 2.0**53).astype(np.uint64), code_rows(self.columns, part)
        bars[is_likely] += OTHER_SIDE

        def add(some: slice) -> None:
            self.add_drawn(self.keys[some], first, bars, more, codes, self.starts, self.tables[some])

        size = -(-len(self.keys) // MAX_THREADS)
        spread(add, [slice(k, k + size) for k in range(0, len(self.keys), size)], self.n)

    def _flush(self) -> None:
        self.total += self.grid.wholes(self.tables)
        self.tables[...], self.held = 0.0, 0

    def wholes(self) -> Wholes:
        """Return all that was added."""
        self._flush()
        return np.asarray(self.total + np.concatenate(self.passed.wholes()))


def decode_draws(design: Codes, q: int, grid: Grid, total: Wholes) -> FloatArray:
    """Return C'R of every draw, shape (draws, m, q), from the sums of all shards; `design` is that of any rows."""
    tables, found, place = grid.floats(total)[:, :, :q], {}, 0
    for k in design.firsts.values():
        stop = place + design.decode[k].shape[0]
        found[id(design.codes[k])] = tables[:, place:stop].transpose(1, 0, 2).reshape(stop - place, -1)
        place = stop
    pairs = zip(design.codes, design.decode, strict=True)
    return np.concatenate([t.gather(found[id(c)]) for c, t in pairs]).reshape(-1, len(total), q).transpose(1, 0, 2)
