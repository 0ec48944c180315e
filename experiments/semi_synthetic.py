"""SemiSynthetic: UCI Adult with a known truth, the generator of the paper's experiment (Section 6).

A network fitted to the real labels plays f*, a model of the real features draws new x, and y ~ Bernoulli(f*(x)). So f*
is realistic and known, and there are as many rows as one asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.cache import cached_arrays
from experiments.feature_models import Autoencoder, Copula, FeatureModel, fit_autoencoder, fit_copula
from experiments.networks import Engine, Floats, Network, choose_engine, fit_network
from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import check_whole
from lowcal.datasets import Dataset, load_adult

Ints = NDArray[np.int64]

NUMERIC = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
TEXT = ("workclass", "marital_status", "occupation", "relationship", "race", "sex", "native_country")
#: Columns with a long tail enter the networks as log(1 + value).
LONG_TAILED = ("capital_gain", "capital_loss")
#: The most parts that a number is cut into, and the number of values that represent a part.
N_PARTS, N_VALUES = 16, 9
HIDDEN = (64, 64)
#: Changes when what is trained changes, so that no older cached model is read.
VERSION = 1


@dataclass(frozen=True)
class SemiSynthetic:
    """The paper's generator: real features and labels of UCI Adult in, any number of rows with their f* out.

    With torch, x comes from a variational autoencoder and f* is a network with two hidden layers. Without it, x comes
    from a Gaussian copula and f* from scikit-learn's network: the same interface, another world. Training takes
    about a minute, once: the result is cached as arrays, with a checksum.

    Parameters
    ----------
    engine : "torch", "numpy", or "auto" (torch where it is installed).
    random_state : seed of the training, a whole number of at least 0.
    n_rows : how many rows of Adult to learn from; None is all 48,842.
    cache : folder of trained models; None: the variable LOWCAL_CACHE or ~/.cache/lowcal; False: no cache.

    Examples
    --------
    >>> world = SemiSynthetic("numpy", n_rows=1000, cache=False)
    >>> data = world.sample(500, random_state=0)
    >>> sorted(set(data.X["sex"])), data.f_star.shape, bool(np.array_equal(data.f_star, world.f_star(data.X)))
    (['Female', 'Male'], (500,), True)
    """

    engine: str = "auto"
    random_state: int = 0
    n_rows: int | None = None
    cache: str | Path | bool | None = field(default=None, compare=False)

    def sample(self, n: int, random_state: int | np.random.Generator | None = None) -> Dataset:
        """Draw n rows with their labels and their f*.

        Parameters
        ----------
        n : how many, at least 1.
        random_state : seed of the rows; the world itself stays the same.
        """
        check_whole("n", n, 1)
        rng = np.random.default_rng(random_state)
        features, _ = self._models
        X = self._columns.decode(features.draw(n, rng), rng)
        f_star = self.f_star(X)
        return Dataset(
            X=X,
            y=(rng.random(n) < f_star).astype(np.int64),
            f_star=f_star,
            description=f"semi-synthetic UCI Adult ({self.trained_by}, seed {self.random_state}): f* is a network",
        )

    def f_star(self, X: Mapping[str, NDArray[Any]]) -> Floats:
        """Return E[y | x] for rows with Adult's columns."""
        return self._models[1].probability(self.features(X))

    def features(self, X: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the matrix that the networks read: numbers scaled, one column for each category."""
        return self._columns.matrix(X)

    @cached_property
    def trained_by(self) -> Engine:
        """The engine that "auto" stands for here."""
        return choose_engine(self.engine)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the trained models' numbers: equal worlds have equal checksums."""
        from hashlib import sha256

        features, truth = self._models
        arrays = features.to_arrays() | truth.to_arrays("truth.")
        return sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()

    @cached_property
    def _adult(self) -> Dataset:
        if self.n_rows is not None:
            check_whole("n_rows", self.n_rows, 100)
        check_whole("random_state", self.random_state, 0)
        data = load_adult()
        if self.n_rows is None or self.n_rows >= len(data.y):
            return data
        return data[np.random.default_rng(0).permutation(len(data.y))[: self.n_rows]]

    @cached_property
    def _columns(self) -> Columns:
        adult = load_adult()  # all of it: a few rows may lack a country
        return Columns.learn(adult.X, adult.y)

    @cached_property
    def _models(self) -> tuple[FeatureModel, Network]:
        """The model of the features and the network that plays f*, trained or read from the cache."""
        key = f"semi-synthetic-{VERSION}-{self.trained_by}-{self.random_state}-{self.n_rows or 'all'}"
        stored = cached_arrays(key, self._train, self.cache)
        sizes = self._columns.sizes
        truth = Network.from_arrays(stored, "truth.")
        if self.trained_by == "torch":
            return Autoencoder(Network.from_arrays(stored, "decoder."), sizes), truth
        return Copula(stored["root"], tuple(stored[f"cuts{j}"] for j in range(len(sizes)))), truth

    def _train(self) -> dict[str, Floats]:
        codes, sizes, engine = self._columns.codes(self._adult.X), self._columns.sizes, self.trained_by
        features: FeatureModel
        if engine == "torch":
            features = fit_autoencoder(codes, sizes, epochs=30, seed=self.random_state)
        else:
            features = fit_copula(codes, sizes)
        truth = fit_network(
            self.features(self._adult.X),
            self._adult.y,
            hidden=HIDDEN if engine == "torch" else (32,),
            epochs=8,
            engine=engine,
            seed=self.random_state,
            batch=256,
            decay=1e-4,
        )
        return features.to_arrays() | truth.to_arrays("truth.")


@dataclass(frozen=True, eq=False)
class Columns:
    """How Adult's columns become codes and matrices, and codes become columns again."""

    parts: dict[str, tuple[Floats, Floats]]  # of a number: upper edges of the parts, values of each (parts, N_VALUES)
    levels: dict[str, tuple[str | None, ...]]
    scales: dict[str, tuple[float, float]]

    @staticmethod
    def learn(X: Mapping[str, NDArray[Any]], y: Ints) -> Columns:
        """Cut the numbers, order the categories by their share of label 1, and take means and deviations."""
        return Columns(
            {name: _cut(X[name]) for name in NUMERIC},
            {name: _order(X[name], y) for name in TEXT},
            {name: (float(v.mean()), float(v.std()) or 1.0) for name in NUMERIC for v in (_unwound(name, X[name]),)},
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many codes each column has."""
        return tuple(len(values) for _, values in self.parts.values()) + tuple(map(len, self.levels.values()))

    def codes(self, X: Mapping[str, NDArray[Any]]) -> Ints:
        """Return the codes of the rows."""
        numbers = [np.searchsorted(edges, X[name]) for name, (edges, _) in self.parts.items()]
        return np.column_stack([*numbers, *(self._text(name, X[name]) for name in TEXT)])

    def decode(self, codes: Ints, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Return columns like Adult's; within its part, a number is one of the values seen there."""
        found: dict[str, NDArray[Any]] = {}
        for j, name in enumerate(NUMERIC):
            values = self.parts[name][1]
            found[name] = values[codes[:, j], rng.integers(N_VALUES, size=len(codes))].astype(np.int64)
        for j, name in enumerate(TEXT, start=len(NUMERIC)):
            found[name] = np.array(self.levels[name], dtype=object)[codes[:, j]]
        return found

    def matrix(self, X: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the features that the networks read."""
        absent = [name for name in (*NUMERIC, *TEXT) if name not in X]
        if absent:
            raise InvalidInput(
                f"X lacks Adult's columns {', '.join(absent)}; pass rows of load_adult() or of sample()."
            )
        numbers = [(_unwound(name, X[name]) - mean) / spread for name, (mean, spread) in self.scales.items()]
        text = [self._text(name, X[name])[:, None] == np.arange(len(self.levels[name])) for name in TEXT]
        return np.column_stack([*numbers, *text]).astype(np.float64)

    def _text(self, name: str, values: NDArray[Any]) -> Ints:
        code = {level: k for k, level in enumerate(self.levels[name])}
        unknown = {v for v in values if v not in code}
        if unknown:
            raise InvalidInput(f"the column {name} holds {sorted(map(str, unknown))[0]!r}, which Adult does not.")
        return np.array([code[v] for v in values], dtype=np.int64)


def _unwound(name: str, values: NDArray[Any]) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    return np.log1p(numbers) if name in LONG_TAILED else numbers


def _cut(values: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the upper edges of parts (the last is open) and representative values of each.

    A value that most rows share is a part of its own; the others are cut at quantiles.

    >>> edges, values = _cut(np.array([0] * 90 + list(range(1, 11))))
    >>> float(edges[0]), values[0].tolist()[:2], bool(values[1:].min() > 0)
    (0.0, [0.0, 0.0], True)
    """
    found, counts = np.unique(values, return_counts=True)
    is_common = counts.max() > len(values) / 2
    rest = values[values != found[counts.argmax()]] if is_common else values
    edges = np.unique(np.quantile(rest, np.linspace(0, 1, N_PARTS)[1:-1], method="lower")).astype(np.float64)
    if is_common:
        edges = np.unique(np.append(edges, [found[counts.argmax()]]))
    code = np.searchsorted(edges, values)
    # an edge may be the largest value itself: then nothing lies beyond it
    edges = edges[: code.max()]
    code = np.searchsorted(edges, values)
    quantiles = np.linspace(0, 1, N_VALUES)
    table = [np.quantile(values[code == k], quantiles, method="nearest") for k in range(len(edges) + 1)]
    return edges, np.array(table, dtype=np.float64)


def _order(values: NDArray[Any], y: Ints) -> tuple[str | None, ...]:
    """Return the categories, None among them where it occurs, by their share of label 1."""
    shares = {level: float(y[values == level].mean()) for level in set(values) if level is not None}
    missing = np.array([v is None for v in values])
    if missing.any():
        shares[None] = float(y[missing].mean())
    return tuple(sorted(shares, key=lambda level: (shares[level], str(level))))
