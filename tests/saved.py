"""Small worlds for saved models: every hypothesis class, columns of every kind, and rows that no fit has seen."""

from __future__ import annotations

import numpy as np

from lowcal import Groups, Intersections, Linear, Memberships, Private, Subpopulations, Thresholds, Trees

N = 90
AGE, CITY, DAY = "age", 'the "city",\nof birth', "día\t☂"

#: Seen and unseen values, missing in several ways.
UNSEEN = {
    AGE: [31.0, None, np.nan, np.inf, -np.inf, 1e9, 44.5],
    CITY: ["Rome", None, "Paris", "rome", 'O"slo\n', "", "Bern"],
    "member": [True, False, None, True, False, None, True],
    "kids": [0, 1, None, 7, 2, -1, 0.5],
    DAY: ["2024-01-01", "2024-02-30", None, "", "2024-01-02", "x", "2024-01-01"],
    "mixed": [1, "1", 2.5, True, None, "two", 10**30],
}


def people(kind: int | str = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, list]]:
    """Outcomes of two or three classes or in [0, 1] ("bounded"), poor predictions, columns of many kinds."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, N).astype(float)
    age[::17], age[5], age[6:12] = np.nan, np.inf, -np.inf
    city = rng.choice(np.array(["Rome", 'O"slo\n', "Bern", None], dtype=object), N)
    X = {
        AGE: age.tolist(),
        CITY: city.tolist(),
        "member": rng.choice(np.array([True, False, None], dtype=object), N).tolist(),
        "kids": rng.integers(0, 3, N).tolist(),
        DAY: rng.choice(["2024-01-01", "2024-01-02", "2024-01-03"], N).tolist(),
        "mixed": rng.choice(np.array([1, "1", 2.5, "two", 10**30], dtype=object), N).tolist(),
    }
    truth = np.clip(0.3 + 0.3 * (city == "Rome") + 0.2 * (np.array(X["kids"]) == 1) - 0.2 * (age > 50), 0.02, 0.98)
    p = np.clip(0.5 + 0.3 * rng.normal(size=N), 0.0, 1.0)
    if kind == "bounded":
        return np.clip(truth + 0.1 * rng.normal(size=N), 0.01, 0.99), p, X
    if kind == 2:
        return np.where(rng.random(N) < truth, "yes", "no"), p, X
    return (rng.random(N) * 3 * truth).astype(int) % 3, rng.dirichlet(np.ones(3), N), X


CLASSES: dict[str, Subpopulations] = {
    "groups": Groups(min_mass=5),
    "intersections": Intersections([AGE, CITY, "mixed"], min_mass=5),
    "thresholds": Thresholds([AGE, "kids"], min_mass=5),
    "trees": Trees(max_depth=2, min_mass=5),
    "boosted trees": Trees(max_depth=2, min_mass=5, n_trees=3),
    "linear": Linear([AGE, CITY, "kids", "mixed"]),
    "union": Groups([CITY], min_mass=5) + Thresholds(AGE, min_mass=5),
    "mixed union": Groups([CITY], min_mass=5) + Trees(max_depth=1, min_mass=5) + Linear([AGE]),
    "private": Private(Groups([CITY, "kids"]) + Groups([DAY]), epsilon=100.0, max_rounds=4),
}


def tables(name: str, X: dict[str, list]) -> tuple[Subpopulations, object, object]:
    """Return a class, the table to fit it on, and rows that were not fitted."""
    if not name.startswith("memberships"):
        return CLASSES[name], X, UNSEEN
    rng = np.random.default_rng(1)
    C = rng.random((N + 7, 10)) if name == "memberships" else (rng.random((N + 7, 10)) < 0.4).astype(float)
    named = {f"group {j} <b>": C[:, j] for j in range(10)}
    here = {column: values[:N] for column, values in named.items()}
    return Memberships(min_mass=3), here, {column: values[N:] for column, values in named.items()}


NAMES = (*CLASSES, "memberships", "memberships of 0 and 1")
