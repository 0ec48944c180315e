"""Lanes: neighbouring numbers added by one instruction, neighbouring bytes read by one.

A table in cache is bound by how many numbers a core can store in a cycle. numba turns `a[k] += x; a[k + 1] += y` into
two additions and two stores; LLVM's vectors make one of each. Sums are those of plain loops, bit by bit. The vectors
are LLVM's own, so every processor runs them, with as many instructions as it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from lowcal.kernels.kernels import ByteArray
from lowcal.kernels.simplex import FloatArray

Adder = Callable[[FloatArray, int | np.intp, FloatArray, int | np.intp], None]


def adder(lanes: int) -> Adder:
    """Return a function for kernels: out[i : i + lanes] += R[j : j + lanes], of flat contiguous arrays of floats."""

    def add(_typing: Any, out: Any, _i: Any, R: Any, _j: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def pointer(array: int) -> Any:
                data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
                vector = ir.VectorType(ir.DoubleType(), lanes).as_pointer()
                return builder.bitcast(builder.gep(data, [arguments[array + 1]]), vector)

            here, there = (builder.load(pointer(array), align=8) for array in (0, 2))
            builder.store(builder.fadd(here, there), pointer(0), align=8)
            return context.get_dummy_value()

        return numba.void(out, numba.intp, R, numba.intp), generate

    return cast(Adder, intrinsic(add))


def _read(_typing: Any, array: Any, _i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        word = ir.IntType(64).as_pointer()
        return builder.load(builder.bitcast(builder.gep(data, [arguments[1]]), word), align=1)

    return numba.uint64(array, numba.intp), generate


#: For kernels: the eight bytes from array[i] on of a flat contiguous array, the first one lowest.
read_eight = cast(Callable[[ByteArray, int | np.intp], np.uint64], intrinsic(_read))
