"""The one switch between NumPy's loops and compiled ones: numba is imported here, when a problem is worth it.

| idea | definition, in NumPy or Python | compiled twin |
|---|---|---|
| code columns and tables | `loops` | `compiled_loops` |
| Lipschitz weights on a line | `line` | `compiled_line` |
| histogram trees | `subpopulations.growing` | `trees` |

`compiling` holds what the twins share.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from types import ModuleType

from lowcal.kernels import loops

#: From this many table entries touched in one pass (rows x columns x moments), numba's import pays for itself: it takes
#: 0.2 s, and the first call of a kernel as long (`benchmarks/engines.py`, first calls).
COMPILE_FROM = 1 << 21

#: Total rows / rows in this batch.
_times: ContextVar[float] = ContextVar("times", default=1.0)

#: The compiled loops once they are in use, or NumPy's where there are none.
_at_hand: list[ModuleType] = []


def kernels_for(numbers: int) -> ModuleType:
    """Return the compiled loops for a pass that touches many table entries where numba is installed, else NumPy's.

    The choice depends on the size alone, so the same problem always gives the same bytes.

    >>> kernels_for(100).IS_COMPILED
    False
    """
    return _compiled_loops() if round(numbers * _times.get()) >= COMPILE_FROM else loops


def kernels_at_hand(numbers: int = 0) -> ModuleType:
    """Return the compiled loops if they are in use already, or pay: for loops that give the same bits either way."""
    return _at_hand[0] if _at_hand else kernels_for(numbers)


def _compiled_loops() -> ModuleType:
    if not _at_hand:
        _at_hand.append(compiled("compiled_loops") or loops)
    return _at_hand[0]


@contextmanager
def part_of(n: int, total: int) -> Iterator[None]:
    """Choose kernels as for all `total` rows, of which n are in this batch: batches must not change the choice.

    >>> with part_of(10, 1000):
    ...     _times.get()
    100.0
    """
    token = _times.set(total / max(n, 1))
    try:
        yield
    finally:
        _times.reset(token)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let an interrupt (Ctrl-C) take effect at the end of the block; Python delivers it to the main thread alone.

    numba that is stopped halfway, while it is imported or compiles, may not compile again.

    >>> with interrupts_wait():
    ...     pass
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting = []
    signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(*waiting[0])


@cache
@interrupts_wait()
def compiled(name: str) -> ModuleType | None:
    """Import compiled loops by the name of their module here; None without numba, or where nothing is compiled."""
    try:
        numba = import_module("numba")
        return None if numba.config.DISABLE_JIT else import_module(f"lowcal.kernels.{name}")
    except ImportError:
        return None
