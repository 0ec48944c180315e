"""Who is compared: each notion with held-out stopping, and the peers that are installed. Binary problems.

A rival is prepared (not timed: frames, lists of rows), fitted (timed) and applied. Peers are optional: pip install
'lowcal[peers]' gives MCGrad and HKRR.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from time import process_time
from typing import Any, Protocol

import numpy as np

from experiments import peers
from lowcal.data.frames import Table
from lowcal.kernels.simplex import FloatArray, IntArray, log_sum_exp
from lowcal.solve.fitting import Fit, multicalibrate
from lowcal.subpopulations import Groups, Subpopulations

#: The tolerance of ours: held-out rows stop earlier.
ALPHA = 0.001
HELD_OUT = 0.2
REPEATS, SLOW = 3, 3.0


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of a task: the features our class reads, the columns as people write them, labels, start predictions."""

    X: Any
    columns: Mapping[str, Any]
    y: IntArray
    p: FloatArray


class Rival(Protocol):
    """Fits on one sample and predicts on another."""

    def fit(self) -> None:
        """Learn from the rows given."""
        ...

    def predict(self) -> FloatArray:
        """Return the probabilities of the other rows."""
        ...


Make = Callable[[Sample, Sample], Rival]


class Ours:
    """One notion: held-out rows choose the number of updates, then all rows fit them."""

    def __init__(self, train: Sample, test: Sample, notion: str, subpopulations: Subpopulations, **more: Any) -> None:
        self.train, self.test, self.notion, self.subpopulations, self.more = train, test, notion, subpopulations, more

    def fit(self) -> None:
        """Fit twice: with held-out rows, then with all."""
        self.found = self._run(validation_fraction=HELD_OUT)
        if kept := len(self.found.predictor):
            self.found = self._run(max_updates=kept, guard=False)

    def _run(self, **how: Any) -> Fit:
        rows, kind = self.train, {**self.more, "alpha": ALPHA, "random_state": 0, **how}
        return multicalibrate(rows.y, rows.p, rows.X, subpopulations=self.subpopulations, notion=self.notion, **kind)

    def predict(self) -> FloatArray:
        """Replay the updates."""
        return self.found.predictor(self.test.p, self.test.X)


class Grouped(Ours):
    """One notion on the groups of the columns, in one call with the default alpha; a fifth of the rows stops it."""

    def fit(self) -> None:
        """Fit once."""
        rows, kind = self.train, {"subpopulations": self.subpopulations, "notion": self.notion}
        how: dict[str, Any] = {"validation_fraction": HELD_OUT, "random_state": 0, **kind}
        self.found = multicalibrate(rows.y, rows.p, rows.columns, **how)

    def predict(self) -> FloatArray:
        """Replay the updates."""
        return self.found.predictor(self.test.p, self.test.columns)


class Temperature:
    """Temperature scaling: softmax of log p / T, with the T of least log loss."""

    def __init__(self, train: Sample, test: Sample) -> None:
        self.train, self.test = train, test

    def fit(self) -> None:
        """Find T on a logarithmic scale from 1/20 to 20."""
        from scipy.optimize import minimize_scalar

        y, log_p = self.train.y, _log(self.train.p)

        def loss(log_t: float) -> float:
            return -float(np.mean(_scaled(log_p, log_t)[np.arange(len(y)), y]))

        self.log_t = float(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x)

    def predict(self) -> FloatArray:
        """Scale."""
        found = np.exp(_scaled(_log(self.test.p), self.log_t))
        return found[:, 1] if self.test.p.ndim == 1 else found


def isotonic(train: Sample, test: Sample) -> peers.Isotonic:
    """Return isotonic regression on the start predictions."""
    return peers.Isotonic(train.y, train.p, test.p)


def mcgrad(train: Sample, test: Sample) -> peers.MCGrad:
    """Return MCGrad with its defaults, told the same columns; missing text is a category of its own."""
    import pandas as pd

    text = [name for name, column in train.columns.items() if column.dtype == object]
    frames: list[Any] = []
    for rows in (train, test):
        filled = {name: ["missing" if v is None else v for v in rows.columns[name]] for name in text}
        frames.append(pd.DataFrame({**rows.columns, **filled}))
    return peers.MCGrad(frames[0], frames[1], train.y, train.p, test.p, text)


def hkrr(train: Sample, test: Sample, groups: Subpopulations | None = None) -> peers.Listed:
    """Return HKRR on the groups that `Groups` makes of the columns."""
    learner = (groups or Groups()).prepare(train.columns)
    designs = [learner.design(), learner.design(learner.encoder(Table.of(test.columns)))]
    lists = [[np.flatnonzero(d.column(j)) for j in range(d.shape[1])] for d in designs]
    return peers.Listed(train.y, train.p, test.p, lists[0], lists[1])


#: Package, and whether it knows only two classes.
PEERS: dict[str, tuple[Make, str, bool]] = {
    "isotonic": (isotonic, "sklearn", False),
    "temperature": (Temperature, "scipy", False),
    "MCGrad": (mcgrad, "mcgrad", True),
    "HKRR": (hkrr, "multicalibration", True),
}


def present_peers() -> tuple[dict[str, Make], list[str]]:
    """Return the peers that can run here, and a sentence for each that can't."""
    here = {name: make for name, (make, package, _) in PEERS.items() if find_spec(package) is not None}
    absent = [
        f"{name} is left out: the package {package} is not installed (pip install 'lowcal[peers]')"
        for name, (_, package, _) in PEERS.items()
        if name not in here
    ]
    return here, absent


def fit_and_predict(make: Make, train: Sample, test: Sample, repeats: int = REPEATS) -> tuple[FloatArray, float]:
    """Return the predictions and the CPU seconds of a fit: the median of a few, after a warm-up; slow ones run once."""
    with _silence():
        if repeats > 1:
            small = Sample(*(_head(part, 200) for part in (train.X, train.columns, train.y, train.p)))
            make(small, small).fit()
        taken: list[float] = []
        while len(taken) < repeats and (not taken or taken[0] < SLOW):
            rival = make(train, test)
            began = process_time()
            rival.fit()
            taken.append(process_time() - began)
        return rival.predict(), median(taken)


def _head(part: Any, n: int) -> Any:
    return {name: column[:n] for name, column in part.items()} if isinstance(part, Mapping) else part[:n]


@contextmanager
def _silence() -> Iterator[None]:
    """Keep what peers print and warn about to themselves."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def _log(p: FloatArray) -> FloatArray:
    """Return log probabilities of all classes, shape (n, l)."""
    full = np.column_stack([1.0 - p, p]) if p.ndim == 1 else p
    return np.asarray(np.log(np.clip(full, 1e-12, 1.0)))


def _scaled(log_p: FloatArray, log_t: float) -> FloatArray:
    """Return log softmax(log p / T)."""
    z = log_p / np.exp(log_t)
    return np.asarray(z - log_sum_exp(z)[:, None])
