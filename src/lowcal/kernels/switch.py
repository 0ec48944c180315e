"""The one switch between NumPy's loops and compiled ones: numba is imported here, when a problem is worth it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from lowcal.kernels.interrupts import interrupts_wait


@cache
@interrupts_wait()
def compiled(name: str) -> ModuleType | None:
    """Import compiled loops by the name of their module here; None without numba, or where nothing is compiled."""
    try:
        numba = import_module("numba")
        return None if numba.config.DISABLE_JIT else import_module(f"lowcal.kernels.{name}")
    except ImportError:
        return None
