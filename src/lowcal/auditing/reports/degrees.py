"""Violations by degree: E[c f^j (y - f)] of a group, for j = 0, 1, ..., of the label where it is largest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.theory.guarantees import GroupMoments


def by_degree(groups: Sequence[GroupMoments], per_person: bool = False) -> tuple[FloatArray, IntArray]:
    """Return for every degree the moment with the largest size over the labels, and which label that is.

    A group without rows has the moments 0. With `per_person` they are divided by the mass of the group.

    >>> from lowcal.guarantees import group_moments
    >>> weight = np.array([0.25, 0.25])
    >>> a = group_moments(np.array([0.5, 0.5]), np.array([1.0, 1.0]), weight, 2)
    >>> b = group_moments(np.array([0.9, 0.9]), np.array([0.2, 0.2]), weight, 2)
    >>> by_degree([a, b])
    (array([-0.35 , -0.315]), array([1, 1]))
    """
    table = np.nan_to_num(
        [[float(one.gap(j) * (1.0 if per_person else one.mass)) for j in range(one.degree)] for one in groups]
    )
    label = np.abs(table).argmax(axis=0)
    return table[label, np.arange(table.shape[1])], label
