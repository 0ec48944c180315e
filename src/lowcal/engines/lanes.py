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
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from lowcal.engines.kernels import ByteArray
from lowcal.simplex import FloatArray

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


#: So many neighbouring bytes are one strip, and so many strips are summed at a time: two sums for each byte stay in
#: the registers of a core that holds 16 numbers in one.
STRIP, STRIPS = 16, 7

Summer = Callable[[ByteArray, int, int, int, int, NDArray[np.float32], NDArray[np.float32], ByteArray], None]


def _sum(
    _typing: Any, flat: Any, _at: Any, _stride: Any, _last: Any, _rows: Any, pairs: Any, out: Any, seen: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def number(k: int) -> Any:
            return ir.Constant(ir.IntType(64), k)

        def vector(array: int, place: Any, kind: Any) -> Any:
            return builder.bitcast(builder.gep(data[array], [place]), kind.as_pointer())

        def spread(place: Any) -> Any:
            one = builder.insert_element(nothing, builder.load(builder.gep(data[5], [place])), ir.IntType(32)(0))
            return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), STRIP), [0] * STRIP))

        data = {k: context.make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 5, 6, 7)}
        _, at, stride, last, rows, _, _, _ = arguments
        some, floats = ir.VectorType(ir.IntType(8), STRIP), ir.VectorType(ir.FloatType(), STRIP)
        zero, nothing = ir.Constant(some, [0] * STRIP), ir.Constant(floats, [0.0] * STRIP)
        keep: Any = cgutils.alloca_once_value
        every = keep(builder, builder.load(vector(7, number(0), some), align=1))
        sums = [[keep(builder, nothing) for _ in range(2)] for _ in range(STRIPS)]
        places = [number(STRIP * s) for s in range(STRIPS)]
        places = [builder.select(builder.icmp_signed("<", place, last), place, last) for place in places]
        with cgutils.for_range(builder, rows) as loop:
            row, first = builder.add(at, builder.mul(loop.index, stride)), builder.mul(loop.index, number(2))
            pair = spread(first), spread(builder.add(first, number(1)))
            for place, two in zip(places, sums, strict=True):
                # "> 0" of signed bytes, as LLVM turns "!= 0" round, and then finds no masked addition
                bytes_ = builder.load(vector(0, builder.add(row, place), some), align=1)
                inside = builder.icmp_signed(">", bytes_, zero)
                builder.store(builder.or_(builder.load(every), bytes_), every)
                for total, x in zip(two, pair, strict=True):
                    before = builder.load(total)
                    builder.store(builder.select(inside, builder.fadd(before, x), before), total)
        for k, total in enumerate(total for two in sums for total in two):
            builder.store(builder.load(total), vector(6, number(STRIP * k), floats), align=4)
        builder.store(builder.load(every), vector(7, number(0), some), align=1)
        return context.get_dummy_value()

    four = (numba.intp,) * 4
    return numba.void(flat, *four, pairs, out, seen), generate


#: For kernels: sum_strips(flat, at, stride, last, rows, pairs, out, seen). out[s, k, j] = sum_i pairs[i, k] over those
#: of `rows` rows whose byte flat[at + stride i + min(16 s, last) + j] is 1, for 7 strips of 16 bytes; all arrays are
#: flat. The bits of all bytes that were read are added to the 16 bytes `seen`.
sum_strips = cast(Summer, intrinsic(_sum))
