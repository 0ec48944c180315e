"""The paper's experiment: an overconfident network on semi-synthetic data, recalibrated, and judged (Section 6).

Three independent sets: one trains the network, one recalibrates it, one judges. Metrics are those of spec 7, against
the true f*, as suprema over sigmoids of linear functions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.networks import Network, fit_network
from experiments.rivals import Sample
from experiments.semi_synthetic import SemiSynthetic
from lowcal.datasets import Dataset
from lowcal.kernels.simplex import FloatArray, brier, log_loss, sigmoid
from lowcal.metrics import degree_error, excess_variance, multiaccuracy_error
from lowcal.subpopulations import Linear, Memberships

#: How the paper and its figure name the notions.
METHODS = {
    "MA": "multiaccuracy",
    "MC2": "degree-2",
    "MC3": "degree-3",
    "smooth": "smooth",
    "MC-full": "full-0.1",
}
#: Random sigmoids among which every supremum is also sought, beside those learned for it.
N_SIGMOIDS = 50


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment, and where the world comes from.

    Parameters
    ----------
    seeds : how many random data sets.
    engine : "torch", "numpy" or "auto", as in `SemiSynthetic`.
    pretrain, train, test : rows of the three sets.
    hidden, epochs : the network and the passes over its rows, many enough to make it overconfident.
    updates, step : boosting rounds, and the share of each step that is taken.
    world_rows : rows of Adult that the generator learns from; None is all.
    cache : folder of trained models, as in `SemiSynthetic`.
    data : folder with other data sets; None: the variable LOWCAL_DATA.
    """

    seeds: int = 5
    engine: str = "auto"
    pretrain: int = 1_000
    train: int = 2_000
    test: int = 20_000
    hidden: tuple[int, ...] = (64, 64)
    epochs: int = 150
    updates: int = 30
    step: float = 0.3
    world_rows: int | None = None
    cache: str | Path | bool | None = None
    data: str | Path | None = None
    is_small: bool = False

    @cached_property
    def world(self) -> SemiSynthetic:
        """The generator; the same for all seeds, which draw different rows from it."""
        return SemiSynthetic(self.engine, n_rows=self.world_rows, cache=self.cache)

    @property
    def key(self) -> dict[str, Any]:
        """What results on this world depend on."""
        sizes = {k: v for k, v in asdict(self).items() if k not in ("seeds", "engine", "cache", "data")}
        return {"engine": self.world.trained_by, "world": self.world.checksum, **sizes}


def small_settings(**changes: Any) -> Settings:
    """Return sizes at which everything runs in seconds, to see that it does; its figures mean little."""
    sizes: dict[str, Any] = {
        "seeds": 2,
        "engine": "numpy",
        "pretrain": 200,
        "train": 300,
        "test": 600,
        "hidden": (16, 16),
        "epochs": 60,
        "updates": 6,
        "world_rows": 1_000,
        "cache": False,
        "is_small": True,
    }
    return Settings(**{**sizes, **changes})


@dataclass(frozen=True, eq=False)
class Rows(Sample):
    """Rows with the network's probabilities and the truth."""

    f_star: FloatArray


def draw_rows(settings: Settings, seed: int) -> tuple[Rows, Rows]:
    """Draw the three sets of one seed and pretrain the network; return the calibration and the test set."""
    world = settings.world
    sizes = (settings.pretrain, settings.train, settings.test)
    sets = [world.sample(n, np.random.default_rng([seed, part])) for part, n in enumerate(sizes)]
    X = [world.features(data.X) for data in sets]
    network = fit_network(
        X[0], sets[0].y, hidden=settings.hidden, epochs=settings.epochs, engine=world.trained_by, seed=seed
    )
    train, test = (_rows(x, d, network) for x, d in zip(X[1:], sets[1:], strict=True))
    return train, test


def _rows(X: FloatArray, data: Dataset, network: Network) -> Rows:
    assert data.f_star is not None
    return Rows(X, data.X, data.y, network.probability(X), data.f_star)


class Judge:
    """Measures predictions on given rows against the true f*, as suprema over sigmoids of linear functions.

    The class can't be searched exactly. Sought are c = 1, random sigmoids (the same for every prediction), and those
    learned for this prediction: in the direction of f* - f, of f (f* - f), and of (f - E f)^2 - (f* - E f*)^2, the
    slope of the excess variance at c = 1.
    """

    def __init__(self, rows: Rows, seed: int = 0) -> None:
        self.rows = rows
        self.learner = Linear().prepare(rows.X)
        rng = np.random.default_rng([seed, 17])
        theta = rng.standard_normal((rows.X.shape[1], N_SIGMOIDS))
        score = self.learner.rows @ theta
        steepness = rng.choice([1.0, 3.0], size=N_SIGMOIDS) / np.maximum(score.std(axis=0), 1e-12)
        self.known = sigmoid(score * steepness + rng.standard_normal(N_SIGMOIDS))

    def __call__(self, f: FloatArray) -> dict[str, float]:
        """Return the metrics of the predictions f of these rows."""
        truth, C = self.rows.f_star, self.members(f)
        kind: dict[str, Any] = {"subpopulations": Memberships(min_mass=0)}
        weight = np.full(len(f), 1.0 / len(f))
        y = self.rows.y[:, None].astype(np.float64)
        return {
            "multiaccuracy error": multiaccuracy_error(truth, f, C, signed_members=True, **kind),
            "excess variance": excess_variance(truth, f, C, **kind),
            "degree-2 error": degree_error(truth, f, C, degree=2, **kind),
            "squared distance": float(np.mean((f - truth) ** 2)),
            "Brier score": brier(f[:, None], y, weight),
            "log loss": log_loss(f[:, None], y, weight),
        }

    def members(self, f: FloatArray) -> FloatArray:
        """Return the memberships among which the suprema are sought, each with its complement."""
        truth = self.rows.f_star
        spread = np.square(f - f.mean()) - np.square(truth - truth.mean())
        Z = np.column_stack([truth - f, f * (truth - f), spread]) / len(f)
        assert callable(self.learner.learner)
        learned = [family.design(self.learner.rows).dense() for family in self.learner.learner(Z)]
        C = np.column_stack([self.known, *learned])
        return np.column_stack([C, 1.0 - C])
