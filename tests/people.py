"""Rows of one or several classes, whose predictions are wrong by group."""

from __future__ import annotations

from typing import Any

import numpy as np


def people(n: int, d: int, seed: int = 0) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
    """Return columns, predictions that are wrong by group, outcomes and uneven weights."""
    rng = np.random.default_rng(seed)
    X: dict[str, Any] = {name: np.array(list("efghij"))[rng.integers(0, 6, n)] for name in "abc"}
    X |= {name: (rng.random(n) < 0.4).astype(float) for name in "stu"} | {name: rng.random(n) for name in "vw"}
    X["x"] = np.round(8 * X["w"])
    z = rng.normal(0.0, 1.2, (n, d))
    lift = 0.6 * (X["a"] == "e") - 0.8 * X["s"] * (X["b"] == "f") + 0.9 * (X["w"] - 0.5)
    truth = (0.7 * z + lift[:, None] * np.linspace(1.0, -1.0, max(d, 2))[:d]) if d > 1 else 0.7 * z + lift[:, None]
    p, f = (1 / (1 + np.exp(-each)) if d == 1 else softmax(each) for each in (z, truth))
    u = rng.random((n, 1))
    y = (u < f).astype(float) if d == 1 else np.eye(d)[np.minimum((u > f.cumsum(axis=1)).sum(axis=1), d - 1)]
    weight = rng.uniform(0.5, 1.5, n)
    return X, p, y, weight / weight.sum()


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z)
    return np.asarray(e / e.sum(axis=1, keepdims=True))
