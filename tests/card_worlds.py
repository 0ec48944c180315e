"""Rows on a card, or without one: its twin in NumPy, and its kernels on this machine's processor."""

from __future__ import annotations

import os
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda_on_cpu import CardOnCpu, has_compiler, room_for
from lowcal.kernels.card import cuda, trees
from lowcal.kernels.card.cuda import Cuda
from lowcal.kernels.card.twin import Twin


class OnTwin(np.ndarray):
    """An array that says it lies on a card."""

    __cuda_array_interface__ = property(lambda self: self.__array_interface__)


def has_card() -> bool:
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        return False


class World:
    """Where the arrays of a test lie."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def put(self, x: Any) -> Any:
        """Return an array, or a dict of columns, on the card."""
        if isinstance(x, dict):
            return {name: self.put(column) for name, column in x.items()}
        return np.asarray(x).view(OnTwin) if self.xp is np else self.xp.asarray(x)

    def get(self, x: Any) -> np.ndarray:
        """Return an array of the card in memory."""
        return np.asarray(x) if self.xp is np else x.get()


@pytest.fixture(scope="session")
def processor(request: pytest.FixtureRequest) -> CardOnCpu:
    """What stands for CuPy and runs its kernels here."""
    if not has_compiler():
        pytest.skip("There is no g++ here, which compiles kernels of a card for the processor.")
    sanitizer = os.environ.get("SANITIZER")
    if sanitizer == "thread":  # which follows a few thousand threads at most
        Cuda.__init__.__defaults__ = ("single", 64, 3, None)
    return CardOnCpu(request.config.cache.mkdir("cuda-on-cpu"), sanitizer)


def stand_in(stand: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let something be imported in the place of CuPy, and know no kernels of another."""
    monkeypatch.setitem(sys.modules, "cupy", stand)
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(empty_pinned=room_for))
    for module, name in ((cuda, "_compiled"), (trees, "_module")):
        monkeypatch.setattr(module, name, cache(getattr(module, name).__wrapped__))
    return stand


PROCESSOR = pytest.param("processor", marks=pytest.mark.integration)
CARD = pytest.param("card", marks=pytest.mark.gpu)


@pytest.fixture(params=[PROCESSOR, CARD])
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy, or what stands for it."""
    if request.param == "processor":
        return stand_in(request.getfixturevalue("processor"), monkeypatch)
    if not has_card():
        pytest.skip("There is no graphics card here, or no CuPy.")
    return pytest.importorskip("cupy")


@pytest.fixture(params=["twin", PROCESSOR, CARD])
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    if request.param != "twin":
        return World(cupy.__wrapped__(request, monkeypatch))
    monkeypatch.setattr("lowcal.rows.card.reading.open_device", Twin)
    for module in ("data.cards", "rows.card.inputs"):
        monkeypatch.setattr(f"lowcal.{module}.read_card", lambda x, *_: np.asarray(x))
    return World(np)
