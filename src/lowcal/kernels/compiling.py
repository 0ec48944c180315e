"""How loops are compiled: by numba, an optional extra, once for each machine, and kept on disk (NUMBA_CACHE_DIR).

The compiled modules are imported when a problem is large enough, never before (`switch`). They take the same steps as
their definitions, and release the GIL.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

from lowcal.kernels.simplex import FloatArray
from lowcal.kernels.switch import interrupts_wait

F = TypeVar("F", bound=Callable[..., Any])
Adder: TypeAlias = Callable[[FloatArray, int | np.intp, FloatArray, int | np.intp], None]

#: Changes with any file of this folder: kernels are made of functions and numbers of several of them.
SOURCES = [zlib.crc32(path.read_bytes()) for path in sorted(Path(__file__).parent.glob("*.py"))]


class KeptKernels(FunctionCache):
    """Compiled kernels on disk, which save time and nothing else: whatever is wrong with the files, kernels compile.

    Where a file can't be read or written, the index goes: it may name data files that hold something else.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file._source_stamp = SOURCES  # numba's own stamp is that of the kernel's file alone

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel for these types; None if it is not there, or can't be read."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # what the bytes of a damaged file raise, there is no list of
            self._forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel, if there is room."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError:
            self._forget()

    def _forget(self) -> None:
        with suppress(OSError):
            Path(self._cache_file._index_path).unlink()


def compile_kernel(function: F, **options: Any) -> F:
    """Compile on first call, with numba's options, and keep the result on disk if there is a place to keep it.

    numba looks for a place at once, next to the file and then in the user's cache, and refuses when neither is
    writable: then the kernel lives as long as the process. An interrupt waits until a kernel is compiled.
    """
    kernel = numba.njit(nogil=True, **options)(function)
    if kernel is function:  # under a debugger's setting, NUMBA_DISABLE_JIT
        return function
    with suppress(RuntimeError):
        kernel._cache = KeptKernels(function)
    kernel.compile = interrupts_wait()(kernel.compile)
    return cast(F, kernel)


def adder(lanes: int) -> Adder:
    """Return a function for kernels: out[i : i + lanes] += R[j : j + lanes], of flat contiguous arrays of floats.

    A table in cache is bound by how many numbers a core can store in a cycle. numba turns `a[k] += x; a[k + 1] += y`
    into two additions and two stores; LLVM's vectors make one of each, two thirds of the time (`benchmarks/engines.py`,
    passes). Sums are those of plain loops, bit by bit, and every processor runs them.
    """

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
