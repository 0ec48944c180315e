"""Fits for study: these rows alone, to a given alpha, whatever that does to others."""

from typing import Any

import lowcal


def multicalibrate(*given: Any, **options: Any) -> Any:
    """Return `lowcal.multicalibrate` without the guard, to alpha = 0.01 unless another target is given."""
    return lowcal.multicalibrate(*given, **{"guard": False, "alpha": 0.01, **options})
