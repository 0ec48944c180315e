"""Joint codes, compiled: the loop of `joint` in one pass over two columns. Needs numba; `joint` is the definition."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lowcal.kernels.compiled import compile_kernel


@compile_kernel
def lay_pair(a: NDArray[Any], table_a: NDArray[Any], b: NDArray[Any], table_b: NDArray[Any], out: NDArray[Any]) -> None:
    """Fill out[i] with table_a[a_i] + table_b[b_i]."""
    for i in range(len(out)):
        out[i] = table_a[a[i]] + table_b[b[i]]
