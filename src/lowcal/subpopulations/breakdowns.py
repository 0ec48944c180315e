"""What memberships are made of, for explanations: each row's own groups by name, and the trees of a sum by columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy import sparse

from lowcal.kernels.simplex import IntArray
from lowcal.subpopulations.base import Encoded, Encoder, Family


class Breakdown(NamedTuple):
    """The members of a family on some rows: c_j(x) is the sum over the parts k with `member[k] == j` of `matrix[x, k]`.

    Parts of the same name are shown as one.
    """

    names: Sequence[str]
    member: IntArray
    matrix: sparse.csr_array


@runtime_checkable
class BrokenDownFamily(Protocol):
    """A family whose members are better explained by parts, or under other names."""

    def breakdown(self, encoder: Any, rows: Any) -> Breakdown:
        """Return the parts of all members on encoded rows."""


def breakdown_of(family: Family, encoder: Encoder, rows: Encoded) -> Breakdown:
    """Return the parts of a family's members on encoded rows: the members themselves, unless it knows better ones."""
    return family.breakdown(encoder, rows) if isinstance(family, BrokenDownFamily) else members_of(family, rows)


def members_of(family: Family, rows: Encoded) -> Breakdown:
    """Return every member as a part of its own, under its name."""
    return Breakdown(family.names, np.arange(len(family.names)), family.design(rows).sparse())
