"""A direction as the solver sees it: rows in memory, and terms that move them."""

from __future__ import annotations

import numpy as np

from lowcal.notions.weights import Monomial
from lowcal.rows import Memory
from lowcal.rows.updates import Term
from lowcal.subpopulations.memberships import Members


def along(p: np.ndarray, y: np.ndarray, delta: np.ndarray, weight: np.ndarray) -> tuple[Memory, tuple[Term, ...]]:
    """Return rows and a term whose displacement is delta, shape (n, d): ups and downs are memberships in [0, 1]."""
    most, d = 2.0 ** np.ceil(np.log2(np.abs(delta).max() or 1.0)), delta.shape[1]
    C = np.concatenate([np.maximum(delta, 0.0), np.maximum(-delta, 0.0)], axis=1) / most
    theta = most * np.concatenate([np.eye(d), -np.eye(d)])[:, None, :]
    members = Members(tuple(f"m{j}" for j in range(2 * d)), tuple(range(2 * d)))
    return Memory.of(C, p, y, weight), (Term(members, (Monomial(),), theta),)
