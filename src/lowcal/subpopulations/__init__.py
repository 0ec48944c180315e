"""Hypothesis classes C: which subpopulations are looked at."""

from __future__ import annotations

from lowcal.data.frames import Table as Frame
from lowcal.subpopulations.base import (
    CLASSES,
    ENCODERS,
    EVERYONE,
    FAMILIES,
    Everyone,
    Family,
    Found,
    Subpopulations,
    WeakLearner,
)
from lowcal.subpopulations.features import Linear, Regressor
from lowcal.subpopulations.groups import Groups, Intersections, Thresholds
from lowcal.subpopulations.memberships import Memberships
from lowcal.subpopulations.trees import Trees
from lowcal.subpopulations.union import Private, Union

__all__ = [
    "CLASSES",
    "ENCODERS",
    "EVERYONE",
    "FAMILIES",
    "Everyone",
    "Family",
    "Found",
    "Groups",
    "Intersections",
    "Linear",
    "Memberships",
    "Private",
    "Regressor",
    "Subpopulations",
    "Thresholds",
    "Trees",
    "Union",
    "WeakLearner",
    "default_subpopulations",
]


def default_subpopulations(X: Frame) -> Subpopulations:
    """Return what `subpopulations=None` means: the groups of a table's named columns, trees on a bare array."""
    return Groups() if X.is_named else Trees()
