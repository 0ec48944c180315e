"""Networks of ReLU layers as values: trained by torch, or by scikit-learn where it is absent, applied by NumPy.

A trained network is a list of arrays, so that what is stored and what predicts needs neither library.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput, MissingExtra, suggest
from lowcal.kernels.simplex import sigmoid

Floats = NDArray[np.float64]
Engine = Literal["torch", "numpy"]
ENGINES = ("auto", "torch", "numpy")


@dataclass(frozen=True, eq=False)
class Network:
    """x -> W_k relu(... relu(W_1 x + b_1) ...) + b_k, the layers as (W of shape (in, out), b)."""

    layers: tuple[tuple[Floats, Floats], ...]

    def __call__(self, X: Floats) -> Floats:
        """Return the last layer's outputs, shape (n, out).

        >>> half = Network(((np.array([[1.0]]), np.array([-1.0])), (np.array([[0.5]]), np.array([0.0]))))
        >>> half(np.array([[3.0], [0.0]])).ravel().tolist()
        [1.0, 0.0]
        """
        for W, b in self.layers[:-1]:
            X = np.maximum(X @ W + b, 0.0)
        W, b = self.layers[-1]
        return np.asarray(X @ W + b)

    def probability(self, X: Floats) -> Floats:
        """Return sigmoid of the only output, shape (n,)."""
        return sigmoid(self(X)[:, 0])

    def to_arrays(self, prefix: str) -> dict[str, Floats]:
        """Return the arrays by name, for an npz file."""
        return {
            f"{prefix}{kind}{k}": a for k, layer in enumerate(self.layers) for kind, a in zip("Wb", layer, strict=True)
        }

    @staticmethod
    def from_arrays(stored: dict[str, Floats], prefix: str) -> Network:
        """Return the network of `to_arrays`."""
        depth = sum(name.startswith(f"{prefix}W") for name in stored)
        return Network(tuple((stored[f"{prefix}W{k}"], stored[f"{prefix}b{k}"]) for k in range(depth)))


def choose_engine(engine: str) -> Engine:
    """Return who trains: "auto" is torch where it is installed.

    >>> choose_engine("numpy")
    'numpy'
    """
    if engine not in ENGINES:
        raise InvalidInput(
            f"engine must be one of {', '.join(ENGINES)}, but {engine!r} was given.{suggest(str(engine), ENGINES)}"
        )
    if engine == "numpy" or (engine == "auto" and find_spec("torch") is None):
        return "numpy"
    load_torch()
    return "torch"


def load_torch() -> Any:
    """Import torch, or say how to get it."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise MissingExtra("the engine 'torch' needs torch: pip install 'lowcal[experiments]'") from error


def fit_network(
    X: Floats,
    y: NDArray[np.int64],
    *,
    hidden: Sequence[int],
    epochs: int,
    engine: Engine,
    seed: int,
    batch: int = 128,
    rate: float = 2e-3,
    decay: float = 0.0,
) -> Network:
    """Fit P(y = 1 | x) by log loss with Adam and return the network of the log odds.

    Parameters
    ----------
    X, y : features (n, d) and labels 0 or 1.
    hidden : widths of the hidden layers; two of them make the paper's three-layer network.
    epochs, batch, rate, decay : passes over the rows, rows for each step, step size, weight decay.
    engine : "torch" or "numpy" (scikit-learn's MLPClassifier).
    seed : the same seed gives the same weights on the same machine.
    """
    if engine == "torch":
        return _fit_by_torch(X, y, hidden, epochs, seed, batch, rate, decay)
    how = {"alpha": decay, "batch_size": min(batch, len(X)), "learning_rate_init": rate}
    model = fit_classifier(X, y, hidden, epochs, seed, **how)
    return Network(tuple(zip(model.coefs_, model.intercepts_, strict=True)))


def fit_classifier(
    X: Floats, y: NDArray[np.int64], hidden: Sequence[int], epochs: int, seed: int, **options: Any
) -> Any:
    """Return scikit-learn's network for any number of classes, after exactly this many passes over the rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    passes = {"max_iter": epochs, "n_iter_no_change": epochs, "tol": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # to stop before it converges was asked for
        return MLPClassifier(tuple(hidden), random_state=seed, **passes, **options).fit(X, y)


def _fit_by_torch(
    X: Floats,
    y: NDArray[np.int64],
    hidden: Sequence[int],
    epochs: int,
    seed: int,
    batch: int,
    rate: float,
    decay: float,
) -> Network:
    torch = load_torch()
    with one_torch_thread(seed):
        model = build_layers((X.shape[1], *hidden, 1))
        optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        rows, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
        for _ in range(epochs):
            for part in torch.randperm(len(rows)).split(batch):
                optimiser.zero_grad()
                loss(model(rows[part])[:, 0], labels[part]).backward()
                optimiser.step()
        return read_layers(model)


def build_layers(widths: Sequence[int]) -> Any:
    """Return a torch module of linear layers with ReLU between them."""
    nn = load_torch().nn
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def read_layers(model: Any) -> Network:
    """Return the network that a torch module of `build_layers` has become."""
    linear = [layer for layer in model if hasattr(layer, "weight")]
    return Network(tuple((_array(layer.weight).T.copy(), _array(layer.bias)) for layer in linear))


def _array(tensor: Any) -> Floats:
    return np.asarray(tensor.detach().numpy(), dtype=np.float64)


@contextmanager
def one_torch_thread(seed: int) -> Iterator[None]:
    """Seed torch, use one thread and deterministic algorithms, and put everything back afterwards."""
    torch = load_torch()
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict)
