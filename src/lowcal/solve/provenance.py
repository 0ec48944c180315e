"""Which rows a model was fitted on: an audit on those certifies nothing, so it should say so.

Every fit of this process leaves a sketch: a few evenly spaced rows with their outcome and calibrated prediction. An
audit that is given the same rows recognises them. Nothing else of the data is kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from lowcal.kernels.simplex import FloatArray, IntArray

#: Rows in a sketch: that many labels and probabilities do not agree by chance.
ROWS = 64
#: Fits remembered; the oldest are forgotten.
FITS = 256


@dataclass(frozen=True, eq=False)
class Sketch:
    """The number of rows of a fit, and the outcomes and predictions of some of them."""

    n: int
    y: FloatArray
    p: FloatArray

    def matches(self, n: int, y: FloatArray, p: FloatArray) -> bool:
        """Whether these are the same of n rows with the fitted predictions."""
        is_alike = n == self.n and np.array_equal(y, self.y)
        return is_alike and bool(np.allclose(p, self.p, rtol=0.0, atol=1e-9))


_sketches: deque[Sketch] = deque(maxlen=FITS)


def sketch_rows(n: int) -> IntArray:
    """Return evenly spaced rows.

    >>> sketch_rows(3).tolist(), len(sketch_rows(1000))
    ([0, 1, 2], 64)
    """
    return np.linspace(0, n - 1, min(n, ROWS)).astype(np.intp)


def remember(n: int, y: FloatArray, p: FloatArray) -> None:
    """Keep the sketch of a fit on n rows: outcomes and calibrated predictions at `sketch_rows(n)`."""
    _sketches.append(Sketch(n, y.copy(), p.copy()))


def was_fitted_on(n: int, y: FloatArray, p: FloatArray) -> bool:
    """Whether a fit of this process was given these n rows, from outcomes and predictions at `sketch_rows(n)`."""
    return any(sketch.matches(n, y, p) for sketch in _sketches)
