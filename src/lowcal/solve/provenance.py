"""Which rows a model was fitted on: an audit on those certifies nothing, so it should warn.

Every fit of this process leaves a sketch: a few evenly spaced rows with their outcome and calibrated prediction. An
audit that is given the same rows recognises them. Nothing else of the data is kept.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from lowcal.kernels.simplex import FloatArray, IntArray

#: Rows in a sketch: that many labels and probabilities do not agree by chance.
ROWS = 64
#: The number of rows, outcomes and predictions of the last 256 fits; the oldest are forgotten.
_sketches: deque[tuple[int, FloatArray, FloatArray]] = deque(maxlen=256)


def sketch_rows(n: int) -> IntArray:
    """Return evenly spaced rows, no two alike."""
    return np.linspace(0, n - 1, min(n, ROWS)).astype(np.intp)


def remember(n: int, y: FloatArray, p: FloatArray) -> None:
    """Keep the sketch of a fit on n rows: outcomes and calibrated predictions at `sketch_rows(n)`."""
    _sketches.append((n, y.copy(), p.copy()))


def was_fitted_on(n: int, y: FloatArray, p: FloatArray) -> bool:
    """Whether a fit of this process was given these n rows, from outcomes and predictions at `sketch_rows(n)`."""
    alike = (q for m, z, q in _sketches if m == n and np.array_equal(y, z))
    return any(np.allclose(p, q, rtol=0.0, atol=1e-9) for q in alike)
