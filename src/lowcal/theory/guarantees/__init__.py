"""What multicalibration is good for, as checkable inequalities (spec 5; Section 4 of the paper).

Each function takes (y, p, c) and returns a `Guarantee`: the estimate, its bounds with the paper's constant and with the
sharp one, what the data show with its sign, whether the truth f* is needed, and whether it holds.

| function | the paper | spec |
|---|---|---|
| `moment_match` | Lemma 4.1 | 5.1 |
| `moment_sandwich`, `holder_certificate` | Theorem 4.2 | 5.2, 5.3 |
| `cross_moment` | Corollary 4.3 | 5.4 |
| `true_positive_rate`, `false_positive_rate` | Lemmas 4.5, 4.7 | 5.5, 5.6 |
| `confusion` | Lemmas 4.8, 4.9 | 5.7, 5.8 |
| `set_true_positive_rate` | Lemma 4.11 | 5.9 |
| `covariance` | Theorem 4.12 | 5.10 |
| `variance`, `excess_variance_certificate` | Lemma 4.13 | 5.11 |
| `squared_loss`, `glm_loss` | Proposition A.1 | 5.12, 5.13 |
| `overconfidence` | the golden rule behind them | 5 |

`moments_of` and `describe` say the same of every subpopulation from its moments alone.

The numbers speak of the rows given. Where f* enters, single labels are noisy stand-ins of it: a bound that the theorem
grants the population may fail on a sample by that noise.
"""

from __future__ import annotations

from lowcal.theory.guarantees.base import Guarantee, Side
from lowcal.theory.guarantees.confusion_matrices import Confusion, confusion
from lowcal.theory.guarantees.convex import Convex, above, distance_from, negative_entropy, overconfidence, power
from lowcal.theory.guarantees.group_moments import GroupMoments, group_moments, moments_of
from lowcal.theory.guarantees.losses import glm_loss, squared_loss
from lowcal.theory.guarantees.pages import GroupPage, describe
from lowcal.theory.guarantees.rates import false_positive_rate, set_true_positive_rate, true_positive_rate
from lowcal.theory.guarantees.sandwich import cross_moment, holder_certificate, moment_match, moment_sandwich
from lowcal.theory.guarantees.spread import covariance, excess_variance_certificate, variance

__all__ = [
    "Confusion",
    "Convex",
    "GroupMoments",
    "GroupPage",
    "Guarantee",
    "Side",
    "above",
    "confusion",
    "covariance",
    "cross_moment",
    "describe",
    "distance_from",
    "excess_variance_certificate",
    "false_positive_rate",
    "glm_loss",
    "group_moments",
    "holder_certificate",
    "moment_match",
    "moment_sandwich",
    "moments_of",
    "negative_entropy",
    "overconfidence",
    "power",
    "set_true_positive_rate",
    "squared_loss",
    "true_positive_rate",
    "variance",
]
