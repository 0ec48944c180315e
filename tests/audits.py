"""Audits to be shown: a binary and a 5-class model whose groups have names that try to be more than names."""

from __future__ import annotations

from functools import cache

import numpy as np

from lowcal import audit
from lowcal.datasets import make_miscalibrated

MARKUP = "<img src=x onerror=alert(1)>"
COLUMN = "say \"hi\"\nthere </script><script>alert('x')</script> | `a` *b* $c$ & <b>"


@cache
def rows(n_classes, n=3000):
    """Return y, p of a poor model, p of a better one, and X."""
    data = make_miscalibrated(n, n_classes=n_classes, n_columns=3, random_state=0)
    first = np.where(data.X["g0"] == "a", MARKUP, data.X["g0"]).astype(object)
    X = {"g0": first, COLUMN: data.X["g1"], "g2": data.X["g2"]}
    y = np.array(["v", "w", "x", "y", "<z>"], dtype=object)[data.y] if n_classes == 5 else data.y
    return y, data.p, (data.p + 3 * data.f_star) / 4, X


CLASSES = ["v", "w", "x", "y", "<z>"]


@cache
def audited(n_classes, model="poor", notion="degree-2", alpha=0.01, per_person=None):
    """Return the report of a model."""
    y, poor, better, X = rows(n_classes)
    options = {"alpha": alpha, "per_person": per_person} | ({"classes": CLASSES} if n_classes == 5 else {})
    p = {"poor": poor, "better": better}[model]
    return audit(y, p, X, notion=notion, random_state=7, null_draws=19, **options)
