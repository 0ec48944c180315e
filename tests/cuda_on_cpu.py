"""A graphics card that is none: kernels are compiled for this machine's processor and run there, thread by thread.

Kernels are the very sources that a card compiles; `cuda_on_cpu.h` gives them what CUDA does, tensor cores included.
What stands for CuPy keeps its arrays apart from NumPy's: to mix them is an error, as on a card. So whatever a card
computes can be tested without one, and sanitizers can watch it; all but its speed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from weakref import finalize

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

HEADER, RUNTIME = Path(__file__).with_suffix(".h"), Path(__file__).with_suffix(".cpp")
#: Products and sums are rounded one by one, as on a card.
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
#: What finds reads and writes beyond an array, numbers that overflow, and places that two threads use at once.
SANITIZERS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "address": ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DSANITIZED"),
    "thread": ("-g", "-fsanitize=thread", "-DSANITIZED", "-DSANITIZED_THREADS"),
}
#: Those of one H200, but for the number of processors, which decides how many blocks follow one another.
SHARED_BYTES, PROCESSORS, MOST_THREADS = 227 << 10, 4, 1024
#: Memory of a card begins at multiples of this.
ALIGNED = 512
LIBC = ctypes.CDLL(None)


def has_compiler() -> bool:
    """Whether kernels can be compiled here."""
    return shutil.which("g++") is not None


# --- kernels ----------------------------------------------------------------------------------------------------


def on_cpu(source: str, name: str) -> str:
    """Return a kernel of a source in C++: shared memory, instructions, and how the kernel is called."""
    source = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"\1* const \2 = (\1*)shared_();", source)
    source = re.sub(r'asm\("([\w.]+) [^;]*;"(.*?)\);', _instruction, source, flags=re.DOTALL)
    head = rf"__global__ void (?:__launch_bounds__\([^()]*\) )?{name}\((.*?)\)\s*{{"
    (parameters,) = re.findall(head, source, re.DOTALL)
    kinds = [one.replace("__restrict__", "").rsplit(None, 1)[0] for one in parameters.split(",")]
    values = ", ".join(f"*(Same<{kind}>*)values[{i}]" for i, kind in enumerate(kinds))
    return f'#include "{HEADER.name}"\n{source}\nextern "C" void call(void** values) {{ {name}({values}); }}\n'


def _instruction(found: re.Match[str]) -> str:
    """Return an instruction as a call of the function that does the same."""
    operands = re.findall(r'"[+=]?r"\(([^()]*)\)', found[2])
    return f"{found[1].replace('.', '_')}({', '.join(operands)});"


class Kernel:
    """A kernel, compiled when it is first launched."""

    def __init__(self, source: str, name: str, card: CardOnCpu) -> None:
        self.source, self.name, self.card, self.max_dynamic_shared_size_bytes = source, name, card, 0

    @cached_property
    def _call(self) -> Any:
        return ctypes.cast(self.card.library(on_cpu(self.source, self.name), self.card.flags).call, ctypes.c_void_p)

    def __call__(self, grid: tuple[int, ...], block: tuple[int], args: tuple[Any, ...], shared_mem: int = 0) -> None:
        (threads,) = block
        assert min(grid) > 0, f"The grid {grid} has no blocks."
        assert 0 < threads <= MOST_THREADS, f"A block can't have {threads} threads."
        assert threads % 32 == 0, "Some warps are not whole."
        most = self.card.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
        assert shared_mem <= self.max_dynamic_shared_size_bytes <= most, f"{shared_mem} bytes are too many."
        assert all(isinstance(one, Array | np.generic) for one in args), (
            "Only arrays of the card, and numbers, are given."
        )
        self.launch(grid, threads, args, shared_mem)

    def launch(self, grid: tuple[int, ...], threads: int, args: tuple[Any, ...], shared: int) -> None:
        """Run all threads."""
        runtime = self.card.runtime  # which a kernel needs when it is loaded
        values = (ctypes.c_uint64 * len(args))(*map(_word, args))
        places = (ctypes.c_void_p * len(args))(*(ctypes.addressof(values) + 8 * k for k in range(len(args))))
        blocks = (ctypes.c_uint * 3)(*grid, *[1] * (3 - len(grid)))
        left = runtime.launch(self._call, blocks, ctypes.c_uint(threads), ctypes.c_ulong(shared), places)
        assert left == 0, f"{left} threads of a block wait for each other in vain."


def _word(x: Any) -> int:
    """Return the address of an array, or the bytes of a number."""
    return int(x.data.ptr) if isinstance(x, Array) else int.from_bytes(x.tobytes().ljust(8, b"\0"), "little")


# --- arrays -----------------------------------------------------------------------------------------------------


def unwrapped(x: Any) -> Any:
    """Return what NumPy works on; arrays of this machine's memory are no arrays of a card."""
    if isinstance(x, list | tuple):
        return type(x)(map(unwrapped, x))
    if isinstance(x, np.ndarray) and x.ndim:
        raise TypeError("An array of NumPy is used as one of a card.")
    return x.near if isinstance(x, Array) else x


def wrapped(x: Any) -> Any:
    """Return what NumPy found as arrays of a card."""
    if isinstance(x, tuple):
        return tuple(map(wrapped, x))
    return Array(np.asarray(x)) if isinstance(x, np.ndarray | np.generic) else x


def _index(at: Any) -> Any:
    """Return places, which CuPy takes from either memory."""
    return tuple(map(_index, at)) if isinstance(at, tuple) else getattr(at, "near", at)


class Array(NDArrayOperatorsMixin):
    """An array of the card."""

    def __init__(self, near: np.ndarray) -> None:
        self.near = near

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **how: Any) -> Any:
        return wrapped(getattr(ufunc, method)(*map(unwrapped, inputs), **how))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("An array of a card is used as one of NumPy.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # NumPy would look into the array
            raise AttributeError(name)
        found = getattr(self.__dict__["near"], name)
        if callable(found):
            return lambda *args, **how: wrapped(found(*map(unwrapped, args), **how))
        return wrapped(found) if isinstance(found, np.ndarray) else found

    def __getitem__(self, at: Any) -> Any:
        return wrapped(self.near[_index(at)])

    def __setitem__(self, at: Any, value: Any) -> None:
        self.near[_index(at)] = unwrapped(value)

    def __len__(self) -> int:
        return len(self.near)

    def __bool__(self) -> bool:
        return bool(self.near)

    def __float__(self) -> float:
        return float(self.near)

    def __int__(self) -> int:
        return int(self.near)

    __index__ = __int__

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=0)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.near.ctypes.data)

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.near.__array_interface__

    def get(self, out: np.ndarray | None = None, **_: Any) -> np.ndarray:
        if out is None:
            return self.near.copy()
        out[...] = self.near
        return out

    def set(self, array: np.ndarray, **_: Any) -> None:
        assert isinstance(array, np.ndarray)
        assert array.dtype == self.dtype
        self.near[...] = array


def room_for(shape: Any, dtype: Any) -> np.ndarray:
    """Return an array of anything in memory of its own, which begins where memory of a card may."""
    kind, place = np.dtype(dtype), ctypes.c_void_p()
    size = int(np.prod(shape)) * kind.itemsize
    if size == 0:
        return np.empty(shape, kind)
    assert LIBC.posix_memalign(ctypes.byref(place), ctypes.c_size_t(ALIGNED), ctypes.c_size_t(size)) == 0
    held = (ctypes.c_uint8 * size).from_address(place.value or 0)
    finalize(held, LIBC.free, place)
    found = np.frombuffer(held, dtype=np.uint8)
    found[...] = 0xA5
    return found.view(kind).reshape(shape)


# --- CuPy -------------------------------------------------------------------------------------------------------


class Stream:
    """What is asked for is done at once."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...


class Pool:
    """Memory of the card, of which a limit leaves nothing."""

    def __init__(self) -> None:
        self.limit = 0

    def set_limit(self, size: int) -> None:
        self.limit = size

    def total_bytes(self) -> int:
        return 1

    def free_all_blocks(self) -> None: ...


class CardOnCpu:
    """What stands for the module CuPy; a folder keeps compiled kernels, which a sanitizer may watch."""

    ndarray = Array

    def __init__(self, folder: Path, sanitizer: Literal["address", "thread"] | None = None) -> None:
        self.folder, self.flags = folder, SANITIZERS[sanitizer]
        self._pool = Pool()
        self._kernels: dict[tuple[str, str], Kernel] = {}
        facts = {"MaxSharedMemoryPerBlockOptin": SHARED_BYTES, "MultiProcessorCount": PROCESSORS}
        card = SimpleNamespace(id=0, compute_capability="90", attributes=facts, mem_info=(1 << 30, 1 << 31))
        runtime = SimpleNamespace(getDevice=lambda: 0, CUDARuntimeError=RuntimeError)
        self.cuda = SimpleNamespace(Device=lambda: card, Stream=Stream, get_current_stream=Stream, runtime=runtime)

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:
        assert "--fmad=false" in options, "Products would not be rounded."
        return SimpleNamespace(
            get_function=lambda name: self._kernels.setdefault((code, name), Kernel(code, name, self))
        )

    @cached_property
    def runtime(self) -> Any:
        """What runs the threads of a launch; it waits for nobody, so that no sanitizer need watch it."""
        return self.library(
            RUNTIME.read_text(), [flag for flag in self.flags if flag.startswith("-D")], ctypes.RTLD_GLOBAL
        )

    def library(self, source: str, flags: Sequence[str], mode: int = ctypes.DEFAULT_MODE) -> Any:
        """Return a compiled source."""
        flags = (*FLAGS, *flags)
        made_of = "\0".join((source, HEADER.read_text(), *flags))
        path = self.folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.so"
        if not path.exists():
            own = path.with_suffix(f".{os.getpid()}")
            command = ["g++", *flags, f"-I{HEADER.parent}", "-x", "c++", "-", "-o", str(own)]
            done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
            assert done.returncode == 0, f"{done.stderr}\n{source}"
            own.replace(path)
        return ctypes.CDLL(str(path), mode)

    def get_default_memory_pool(self) -> Pool:
        return self._pool

    def empty(self, shape: Any, dtype: Any = np.float64) -> Array:
        if self._pool.limit:
            raise MemoryError("Out of memory allocating bytes")
        return Array(room_for(shape, dtype))

    def zeros(self, shape: Any, dtype: Any = np.float64) -> Array:
        found = self.empty(shape, dtype)
        found.near[...] = 0
        return found

    def asarray(self, x: Any, dtype: Any = None) -> Array:
        if isinstance(x, Array) and dtype in (None, x.dtype):
            return x
        near = np.asarray([unwrapped(one) for one in x] if isinstance(x, list) else getattr(x, "near", x), dtype=dtype)
        if near.dtype.kind not in "biufc":
            raise ValueError(f"Unsupported dtype {near.dtype}")
        found = self.empty(near.shape, near.dtype)
        found.near[...] = near
        return found

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **how: wrapped(getattr(np, name)(*map(unwrapped, args), **how))
