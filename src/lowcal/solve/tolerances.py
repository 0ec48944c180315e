"""How large a violation may be: alpha for every subpopulation, or a limit per person, alpha_c = per_person * mass_c.

alpha is the paper's: it bounds E[c <w(f), y - f>] over all rows, so a group that holds 1% of them may be off by
100 alpha per person. `per_person` bounds the same violation divided by the mass of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput
from lowcal.kernels.simplex import FloatArray

#: What `audit` tolerates where neither alpha nor per_person is given.
ALPHA = 0.01
#: Limits per person hold in groups that hold at least this share of the population.
MIN_SHARE = 0.01


@dataclass(frozen=True)
class Tolerance:
    """The largest violation allowed: `alpha` everywhere, or `per_person` times the mass of each group.

    >>> Tolerance(per_person=0.02).of(np.array([1.0, 0.25, 0.001]))
    array([0.02 , 0.005,   inf])
    >>> print(Tolerance(0.01), "|", Tolerance(per_person=0.02))
    alpha=0.01 | per_person=0.02
    """

    alpha: float | None = None
    per_person: float | None = None
    min_share: float = MIN_SHARE

    def __post_init__(self) -> None:
        if self.alpha is not None and self.per_person is not None:
            raise InvalidInput("Give alpha or per_person, not both.")
        for name in ("alpha", "per_person"):
            _check_positive(name, getattr(self, name))
        if not _is_number(self.min_share) or not 0.0 <= float(self.min_share) <= 1.0:
            raise InvalidInput(f"min_share must be a share in [0, 1], but {self.min_share!r} was given.")

    def of(self, mass: FloatArray) -> FloatArray:
        """Return the largest violation allowed in each group of this mass; infinite in groups below `min_share`."""
        if self.per_person is None:
            return np.full(mass.shape, self.largest)
        return np.where(self.judges(mass), self.per_person * mass, np.inf)

    def judges(self, mass: FloatArray | float) -> NDArray[np.bool_]:
        """Return whether groups of this mass are large enough for limits per person."""
        return np.asarray(mass) >= self.min_share * (1.0 - 1e-9)

    @property
    def largest(self) -> float:
        """The number asked for: the largest error per person, or the largest violation."""
        return self.per_person if self.per_person is not None else ALPHA if self.alpha is None else self.alpha

    def __str__(self) -> str:
        return f"{'alpha' if self.per_person is None else 'per_person'}={self.largest:g}"


def _check_positive(name: str, value: object) -> None:
    if value is not None and (not _is_number(value) or not 0.0 < float(value) < np.inf):  # type: ignore[arg-type]
        typical = "0.001 to 0.1" if name == "alpha" else "0.01 to 0.1"
        raise InvalidInput(f"{name} must be a positive number, but {value!r} was given. Typical values: {typical}.")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
