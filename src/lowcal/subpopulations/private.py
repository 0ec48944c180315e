"""Private: a finite class of subpopulations that is searched under differential privacy (spec 4.8).

The wrapper holds the budget and lists the class; `lowcal.solve.private` holds the algorithm. What it protects are the
rows: labels, start probabilities and who belongs to which group. The LIST of the groups is taken as public.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_positive, check_whole, is_share
from lowcal.kernels.simplex import FloatArray
from lowcal.subpopulations.base import CLASSES, Subpopulations, WeakLearner


@CLASSES.register
@dataclass(frozen=True)
class Private(Subpopulations):
    """The subpopulations of `groups`, searched with (epsilon, delta)-differential privacy of the rows.

    `multicalibrate(..., subpopulations=Private(Groups(["sex"]), epsilon=1.0))` then uses its own solver, and
    everything in the `Fit` it returns is private: anyone may see it. Two samples are neighbours if one row differs.

    What is NOT protected: the list of the groups, that is, the names of columns and categories and the cut points of
    numeric columns, and the list of the classes of y: a predictor carries them with it. Categories and quantiles are
    read off X: pass columns whose values are known beforehand, or `Memberships`, whose list of columns is all that is
    used. `min_mass` is switched off, because which groups are large enough depends on the rows. The start
    probabilities p must not come from a model that was fitted to these rows, and the number of rows counts as public.
    The noise is drawn in floating point by a seeded generator: it is not hardened against attacks on the last bits,
    and whoever knows the seed knows the noise.

    Parameters
    ----------
    groups : Groups, Intersections, Memberships or a union of them. Learned classes (Trees, Linear, Regressor) can't be
        listed, and Thresholds are cut at the rows' own values: both are refused.
    epsilon : the budget of the whole fit.
    delta : the probability with which the promise may fail; well below 1 / rows. 0: pure privacy, by basic composition.
    max_rounds : rounds that share the budget, fixed beforehand; the last one only measures. None: as many as leave the
        errors of a round at alpha / 4, at least 10, at most what the iteration bound asks for.
    beta : the probability with which the accuracy (not the privacy) may fail.

    >>> Private(Groups(["sex"]), epsilon=1.0)
    Private(groups=Groups(columns=['sex'], ...), epsilon=1.0, delta=1e-06, max_rounds=None, beta=0.05)
    """

    groups: Subpopulations
    epsilon: float
    delta: float = 1e-6
    max_rounds: int | None = None
    beta: float = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Subpopulations) or isinstance(self.groups, Private):
            raise InvalidInput(f"Private wraps a class such as Groups([...]), but {self.groups!r} was given.")
        check_positive("epsilon", self.epsilon)
        for name, value, least in (("delta", self.delta, 0.0), ("beta", self.beta, 1e-300)):
            if isinstance(value, bool) or not is_share(value) or value < least:
                raise InvalidInput(f"{name} must be a probability below 1, but {value!r} was given.")
        if self.max_rounds is not None:
            check_whole("max_rounds", self.max_rounds, 1)

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Refuse: an ordinary search of this class would reveal the rows."""
        raise InvalidInput(
            "Private(...) is for multicalibrate alone: any other use would look at the rows without privacy. Measure "
            "with the groups themselves; for a union, wrap it: Private(A + B, epsilon)."
        )

    def listed(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Return the whole class on these rows; which members it has does not depend on their sizes."""
        learner = self.groups.every_member().bind(X, sample_weight)
        if not learner.is_exact:
            raise InvalidInput(
                f"{self.groups!r} learns its subpopulations from the rows, so they can't be listed beforehand. "
                "Private takes Groups, Intersections or Memberships."
            )
        return learner
