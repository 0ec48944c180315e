"""The logistic function by additions and products alone: the same bits in NumPy's loops and in compiled ones.

exp(x) = 2^k exp(r) with |r| <= log(2) / 2, and exp(r) is a Taylor polynomial; off by less than 2^-50 of its value.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from lowcal.simplex import FloatArray

#: Beyond these log odds the logistic function is 0 or 1 to the last bit of a sum of outcomes.
FAR_OUT = 40.0
#: 1 / log(2), and log(2) in two parts: products of the first with small whole numbers are exact.
PER_LOG_2, LOG_2, LOG_2_REST = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
#: What is added to this number and taken off again is rounded to a whole one.
SHIFT = 1.5 * 2.0**52
#: The coefficients of the polynomial, the highest power first.
TAYLOR = tuple(1.0 / factorial(k) for k in range(13, -1, -1))
#: The powers of two that are needed.
MOST_POWER = 58
POWERS = 2.0 ** np.arange(-MOST_POWER, MOST_POWER + 1)


def portable_sigmoid(z: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(-z)).

    >>> portable_sigmoid(np.array([-50.0, 0.0, 50.0])).round(15)
    array([0. , 0.5, 1. ])
    """
    x = np.minimum(np.maximum(-z, -FAR_OUT), FAR_OUT)
    k = (x * PER_LOG_2 + SHIFT) - SHIFT
    x = (x - k * LOG_2) - k * LOG_2_REST
    e = np.full(x.shape, TAYLOR[0])
    for c in TAYLOR[1:]:
        e *= x
        e += c
    e *= POWERS[k.astype(np.intp) + MOST_POWER]
    return np.asarray(1.0 / (1.0 + e))
