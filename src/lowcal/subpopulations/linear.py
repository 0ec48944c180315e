"""Linear: c(x) = sigmoid(<theta, x> + b), the class of the paper's experiment (Section 6).

The direction is the ridge regression of the residual on the features (closed form, the Gram matrix factored once),
a fast direction that generalises well; its steepness is then chosen by correlation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from scipy.special import expit

from lowcal.engines.products import Cholesky, dot, product
from lowcal.engines.reference import Design, Matrix
from lowcal.frames import Table as Frame
from lowcal.inputs import check_positive
from lowcal.simplex import FloatArray, IntArray, leading
from lowcal.subpopulations.base import Everyone, Family, Subpopulations, WeakLearner
from lowcal.subpopulations.features import learn_features

#: Steepness of the sigmoid tried for every direction, in units of the score's standard deviation.
STEEPNESS = (1.0, 3.0, 9.0)


@dataclass(frozen=True)
class Linear(Subpopulations):
    """Sigmoids of linear functions; "none found" is relative to the ridge direction.

    Parameters
    ----------
    columns : names or positions; None is every column. Categories become indicators.
    ridge : added to the diagonal of the standardised Gram matrix.

    >>> Linear()
    Linear(columns=None, ridge=0.001)
    """

    columns: str | int | Sequence[str | int] | None = None
    ridge: float = 1e-3

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Standardise the features and factor their Gram matrix once."""
        check_positive("ridge", self.ridge)
        encoder = learn_features(self.columns, X, sample_weight)
        rows = encoder(X)
        A = np.column_stack([rows, np.ones(len(rows))])
        w = sample_weight / sample_weight.sum()
        factor = Cholesky.of(product((A * w[:, None]).T, A) + self.ridge * np.eye(A.shape[1]))
        number = count(1)

        def learn(Z: FloatArray) -> Sequence[Family]:
            betas = factor.solve(product(A.T, Z))
            found = [_sigmoid(A, betas[:, a], Z[:, a], w) for a in range(Z.shape[1])]
            return [Sigmoids((_name(b, encoder.names, next(number)),), b[:, None]) for b in found if b.any()]

        return WeakLearner(encoder, rows, sample_weight, [Everyone()], learn)


@dataclass(frozen=True, eq=False)
class Sigmoids:
    """c_j(x) = sigmoid(<theta_j, x> + b_j); the last coefficient of each column is b_j."""

    names: tuple[str, ...]
    theta: FloatArray

    def design(self, rows: FloatArray) -> Design:
        """Return the memberships."""
        return Matrix(np.asarray(expit(product(rows, self.theta[:-1]) + self.theta[-1])))

    def take(self, members: IntArray) -> Sigmoids:
        """Return some of the members."""
        return Sigmoids(tuple(self.names[j] for j in members), self.theta[:, members])

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data."""
        return {"kind": "sigmoids", "names": list(self.names), "theta": self.theta.tolist()}


def _sigmoid(A: FloatArray, beta: FloatArray, z: FloatArray, w: FloatArray) -> FloatArray:
    """Return the coefficients s * beta, over steepness and sign, whose sigmoid correlates most with z."""
    score = product(A, beta)
    deviation = float(np.sqrt(dot(w, np.square(score - dot(w, score)))))
    if deviation <= 1e-12 * max(1.0, float(np.abs(score).max())):
        return np.zeros_like(beta)
    scales = [sign * s / deviation for s in STEEPNESS for sign in (1.0, -1.0)]
    rising = [dot(expit(s / deviation * score), z) for s in STEEPNESS]
    total = float(z.sum())  # sigmoid(-t) = 1 - sigmoid(t)
    gains = [abs(g) for up in rising for g in (up, total - up)]
    return scales[leading(np.array(gains))] * beta


def _name(beta: FloatArray, features: Sequence[str], number: int) -> str:
    """Name a direction by its three largest coefficients."""
    order = np.argsort(-np.abs(beta[:-1]), kind="stable")[:3]
    terms = " ".join(f"{beta[j]:+.3g}*[{features[j]}]" for j in order)
    return f"sigmoid #{number}: {terms}{' ...' if len(features) > 3 else ''}"
