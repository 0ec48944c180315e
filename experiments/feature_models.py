"""Two models of a table of codes: a variational autoencoder (torch), and a Gaussian copula (NumPy).

Both learn a joint distribution of columns of small integer codes and draw new rows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from experiments.networks import Floats, Network, build_layers, load_torch, one_torch_thread, read_layers

Ints = NDArray[np.int64]


class FeatureModel(Protocol):
    """Draws rows of codes."""

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return n rows of codes, shape (n, columns)."""
        ...

    def to_arrays(self) -> dict[str, Floats]:
        """Return the model as named arrays."""
        ...


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """The decoder of a variational autoencoder: z ~ N(0, I), each column from softmax of its part of the output."""

    decoder: Network
    sizes: tuple[int, ...]

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return n rows of codes."""
        scores = self.decoder(rng.standard_normal((n, self.decoder.layers[0][0].shape[0])))
        parts = np.split(scores, np.cumsum(self.sizes)[:-1], axis=1)
        # the largest of score + Gumbel noise is a draw from the softmax of the scores
        return np.column_stack([np.argmax(part + rng.gumbel(size=part.shape), axis=1) for part in parts])

    def to_arrays(self) -> dict[str, Floats]:
        """Return the decoder as named arrays."""
        return self.decoder.to_arrays("decoder.")


def fit_autoencoder(
    codes: Ints, sizes: Sequence[int], *, epochs: int, seed: int, latent: int = 8, width: int = 64
) -> Autoencoder:
    """Fit a variational autoencoder to rows of codes by the evidence lower bound, with Adam.

    E_q log p(codes | z) - KL(q(z | codes) || N(0, I)), q a Gaussian with diagonal covariance.
    """
    torch = load_torch()
    total = sum(sizes)
    with one_torch_thread(seed):
        encoder, decoder = build_layers((total, width, 2 * latent)), build_layers((latent, width, total))
        optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
        rows = torch.tensor(np.asarray(codes))
        for _ in range(epochs):
            for part in torch.randperm(len(rows)).split(256):
                optimiser.zero_grad()
                _negative_bound(encoder, decoder, rows[part], sizes).backward()
                optimiser.step()
        return Autoencoder(read_layers(decoder), tuple(sizes))


def _negative_bound(encoder: Any, decoder: Any, codes: Any, sizes: Sequence[int]) -> Any:
    """Return minus the evidence lower bound, the mean over the rows."""
    torch = load_torch()
    functional = torch.nn.functional
    one_hot = torch.cat([functional.one_hot(codes[:, j], size) for j, size in enumerate(sizes)], dim=1)
    mean, log_variance = encoder(one_hot.float()).chunk(2, dim=1)
    z = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
    parts = decoder(z).split(list(sizes), dim=1)
    likelihood = sum(functional.cross_entropy(part, codes[:, j]) for j, part in enumerate(parts))
    return likelihood + (mean**2 + log_variance.exp() - log_variance - 1).sum(dim=1).mean() / 2


@dataclass(frozen=True, eq=False)
class Copula:
    """A Gaussian copula: correlated normals, each cut where its column's frequencies say."""

    root: Floats  # a Cholesky factor of the correlations
    cuts: tuple[Floats, ...]  # of each column, increasing

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Return n rows of codes."""
        normal = rng.standard_normal((n, len(self.root))) @ self.root.T
        return np.column_stack([np.searchsorted(cut, normal[:, j]) for j, cut in enumerate(self.cuts)])

    def to_arrays(self) -> dict[str, Floats]:
        """Return the copula as named arrays."""
        return {"root": self.root} | {f"cuts{j}": cut for j, cut in enumerate(self.cuts)}


def fit_copula(codes: Ints, sizes: Sequence[int]) -> Copula:
    """Match the frequencies of each column, and the correlations of the columns' normal scores.

    A code's score is the normal quantile of the middle of its share; categories are as ordered as their codes are.

    >>> codes = np.array([[0, 0], [0, 0], [1, 1], [1, 1]])
    >>> fit_copula(codes, [2, 2]).draw(1000, np.random.default_rng(0)).mean(axis=0).round(1).tolist()
    [0.5, 0.5]
    """
    from scipy.special import ndtri

    shares = [np.bincount(codes[:, j], minlength=size) / len(codes) for j, size in enumerate(sizes)]
    middles = [ndtri(np.clip(np.cumsum(share) - share / 2, 1e-6, 1 - 1e-6)) for share in shares]
    scores = np.column_stack([middle[codes[:, j]] for j, middle in enumerate(middles)])
    spread = scores.std(axis=0)
    correlation = np.corrcoef(scores[:, spread > 0], rowvar=False)
    whole = np.eye(len(shares))
    whole[np.ix_(spread > 0, spread > 0)] = correlation
    root = np.asarray(np.linalg.cholesky(0.99 * whole + 0.01 * np.eye(len(shares))), dtype=np.float64)
    return Copula(root, tuple(ndtri(np.clip(np.cumsum(share)[:-1], 0, 1)) for share in shares))
