"""The logistic function by additions and products alone: the same bits in NumPy's loops and in compiled ones.

exp(x) = exp(x / 128)^128: a Taylor polynomial and seven squares, off by less than 2^-45 of the value.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from lowcal.kernels.simplex import FloatArray

#: Beyond these log odds the logistic function is 0 or 1 to the last bit of a sum of outcomes.
FAR_OUT = 40.0
#: How often the polynomial is squared.
SQUARES = 7
#: The coefficients of the polynomial, the highest power first.
TAYLOR = tuple(1.0 / factorial(k) for k in range(12, -1, -1))


def portable_sigmoid(z: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(-z)).

    >>> portable_sigmoid(np.array([-50.0, 0.0, 50.0])).round(15)
    array([0. , 0.5, 1. ])
    """
    x = np.minimum(np.maximum(z, -FAR_OUT), FAR_OUT)
    x *= -(2.0**-SQUARES)
    e = x * TAYLOR[0]
    for c in TAYLOR[1:-1]:
        e += c
        e *= x
    e += TAYLOR[-1]
    for _ in range(SQUARES):
        e *= e
    e += 1.0
    return np.asarray(np.divide(1.0, e, out=e))
