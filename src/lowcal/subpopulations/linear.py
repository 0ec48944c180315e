"""Linear: c(x) = sigmoid(<theta, x> + b), the class of the paper's experiment (Section 6).

The direction is the ridge regression of the residual on the features (closed form, the Gram matrix factored once),
a fast direction that generalises well; its steepness is then chosen by correlation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np
from scipy.special import expit

from lowcal.data.checked_json import MOST, Plain, PlainFields
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_positive
from lowcal.data.onnx_graph import GraphColumns, GraphMatrix
from lowcal.kernels.products import Cholesky, by_row, product
from lowcal.kernels.reference import Design, Matrix, pieces
from lowcal.kernels.simplex import FloatArray, IntArray, leading
from lowcal.subpopulations.base import (
    CLASSES,
    FAMILIES,
    ColumnChoice,
    Everyone,
    Family,
    OfColumns,
    ReadFor,
    WeakLearner,
    strongest,
)
from lowcal.subpopulations.features import FeatureEncoder, learn_features
from lowcal.subpopulations.single_row import Evaluate, MemberRead, Read, RowBlock, RowFacts

#: Steepness of the sigmoid tried for every direction, in units of the score's standard deviation.
STEEPNESS = (1.0, 3.0, 9.0)


@CLASSES.register
@dataclass(frozen=True)
class Linear(OfColumns):
    """Sigmoids of linear functions; "none found" is relative to the ridge direction.

    Parameters
    ----------
    columns : names or positions; None is every column. Categories become indicators.
    ridge : added to the diagonal of the standardised Gram matrix.

    >>> Linear()
    Linear(columns=None, ridge=0.001)
    """

    columns: ColumnChoice = None
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
            theta, gain = _sigmoids(A, factor.solve(product(A.T, Z)), Z, w)
            found = theta[:, [a for a in strongest(gain, Z) if theta[:, a].any()]]
            names = tuple(_name(beta, encoder.names, next(number)) for beta in found.T)
            return [Sigmoids(names, found)] if names else []

        return WeakLearner(encoder, rows, sample_weight, [Everyone()], learn)


@FAMILIES.register
@dataclass(frozen=True, eq=False)
class Sigmoids(PlainFields):
    """c_j(x) = sigmoid(<theta_j, x> + b_j); the last coefficient of each column is b_j."""

    names: tuple[str, ...]
    theta: FloatArray
    kind: ClassVar[str] = "sigmoids"

    def design(self, rows: FloatArray) -> Design:
        """Return the memberships."""
        return Matrix(np.asarray(expit(by_row(rows, self.theta[:-1]) + self.theta[-1])))

    def take(self, members: IntArray) -> Sigmoids:
        """Return some of the members."""
        return Sigmoids(tuple(self.names[j] for j in members), self.theta[:, members])

    def reads(self, facts: RowFacts) -> Sequence[Read]:
        """Read the sigmoids of all updates at once."""
        number, block = facts.block("sigmoids", SigmoidBlock)
        return [MemberRead(number, [block.place(theta.tobytes(), theta) for theta in self.theta.T])]

    def onnx(self, columns: GraphColumns, encoder: FeatureEncoder, numbers: int) -> Sequence[GraphMatrix]:
        """Return the memberships in a graph."""
        graph = columns.graph
        features = graph.side_by_side([feature.onnx(columns) for feature in encoder.features])
        score = graph.add("Add", graph.add("MatMul", features, self.theta[:-1]), self.theta[-1:])
        return [GraphMatrix(np.arange(len(self.names)), graph.sigmoid(score))]

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> Sigmoids:
        """Return the family of plain data."""
        _, names, theta = at.fields("kind", "names", "theta")
        width, shown = len(context.rows_of(at, FeatureEncoder).names), names.texts()
        return cls(names.names(len(shown)), theta.floats((width + 1, len(shown)), -MOST, MOST))


class SigmoidBlock(RowBlock):
    """Sigmoids of linear functions, each kept once, evaluated together on a single row."""

    def evaluator(self) -> Evaluate:
        """Return all sigmoids as one function of the features."""
        theta = np.column_stack(self.values)
        slope, intercept = np.ascontiguousarray(theta[:-1]), theta[-1]
        return lambda features: expit(np.einsum("k,kw->w", np.array(features), slope) + intercept)


def _sigmoids(A: FloatArray, betas: FloatArray, Z: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return for each residual the s * beta, over steepness and sign, whose sigmoid correlates most with it.

    The second value is |sum_i c(x_i) z_i| of that sigmoid. A direction that is constant gets zeros.
    """
    theta, gain = np.zeros_like(betas), np.zeros(Z.shape[1])
    for part in pieces(Z.shape[1], len(A)):
        score, z = product(A, betas[:, part]), Z[:, part]
        deviation = np.sqrt(product(w, np.square(score - product(w, score))))
        varies = deviation > 1e-12 * np.maximum(1.0, np.abs(score).max(axis=0, initial=0.0))
        score /= np.where(varies, deviation, 1.0)
        rising = [np.einsum("ij,ij->j", expit(s * score), z) for s in STEEPNESS]
        total = z.sum(axis=0)  # sigmoid(-t) = 1 - sigmoid(t)
        gains = np.abs([g for up in rising for g in (up, total - up)])
        scales = np.array([sign * s for s in STEEPNESS for sign in (1.0, -1.0)])
        best = [leading(column) for column in gains.T]
        theta[:, part] = np.where(varies, scales[best] / np.where(varies, deviation, 1.0), 0.0) * betas[:, part]
        gain[part] = np.where(varies, gains[best, np.arange(len(best))], 0.0)
    return theta, gain


def _name(beta: FloatArray, features: Sequence[str], number: int) -> str:
    """Name a direction by its three largest coefficients."""
    order = np.argsort(-np.abs(beta[:-1]), kind="stable")[:3]
    terms = " ".join(f"{beta[j]:+.3g}*[{features[j]}]" for j in order)
    return f"sigmoid #{number}: {terms}{' ...' if len(features) > 3 else ''}"
