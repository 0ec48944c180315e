"""What multicalibration is good for, as checkable inequalities (spec 5; Section 4 of the paper).

Each function takes (y, p, c) and returns a `Guarantee`: the estimate, its bounds with the paper's constant and with the
sharp one, what the data show with its sign, whether the truth f* is needed, and whether it holds.

| function | the paper | spec | file |
|---|---|---|---|
| `moment_match` | Lemma 4.1 | 5.1 | theorems |
| `moment_sandwich` | Theorem 4.2 | 5.2, 5.3 | theorems |
| `cross_moment` | Corollary 4.3 | 5.4 | theorems |
| `true_positive_rate`, `false_positive_rate` | Lemmas 4.5, 4.7 | 5.5, 5.6 | theorems |
| `confusion` | Lemmas 4.8, 4.9 | 5.7, 5.8 | theorems |
| `set_true_positive_rate` | Lemma 4.11 | 5.9 | theorems |
| `covariance` | Theorem 4.12 | 5.10 | theorems |
| `variance` | Lemma 4.13 | 5.11 | theorems |
| `squared_loss`, `glm_loss` | Proposition A.1 | 5.12, 5.13 | losses |
| `overconfidence` | the golden rule behind them | 5 | losses |

`describe` puts the same into sentences for one subpopulation, from its moments alone.

The numbers refer to the rows given. Where f* enters, single labels are noisy stand-ins of it: a bound that the theorem
grants the population may fail on a sample by that noise.
"""

from lowcal.guarantees.groups import GroupMoments, Guarantee, Inequality, group_moments
from lowcal.guarantees.losses import (
    Convex,
    above,
    distance_from,
    glm_loss,
    negative_entropy,
    overconfidence,
    power,
    squared_loss,
)
from lowcal.guarantees.theorems import (
    Confusion,
    GroupPage,
    confusion,
    covariance,
    cross_moment,
    describe,
    false_positive_rate,
    moment_match,
    moment_sandwich,
    set_true_positive_rate,
    true_positive_rate,
    variance,
)

# fmt: off
__all__ = [
    "Confusion", "Convex", "GroupMoments", "GroupPage", "Guarantee", "Inequality", "above", "confusion", "covariance",
    "cross_moment", "describe", "distance_from", "false_positive_rate", "glm_loss", "group_moments", "moment_match",
    "moment_sandwich", "negative_entropy", "overconfidence", "power", "set_true_positive_rate", "squared_loss",
    "true_positive_rate", "variance",
]
# fmt: on
