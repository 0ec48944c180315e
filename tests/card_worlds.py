"""Rows on a card, or on its twin in NumPy where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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


@pytest.fixture(params=["twin", pytest.param("card", marks=pytest.mark.gpu)])
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    if request.param == "card":
        if not has_card():
            pytest.skip("There is no graphics card here, or no CuPy.")
        import cupy

        return World(cupy)
    monkeypatch.setattr("lowcal.rows.card.reading.open_device", Twin)
    monkeypatch.setattr("lowcal.data.cards.read_card", np.asarray)
    monkeypatch.setattr("lowcal.rows.card.reading.read_card", np.asarray)
    return World(np)
