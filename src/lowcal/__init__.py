"""lowcal: low-degree multicalibration.

Audit the probabilities of any classifier on many overlapping subpopulations, mend them, and know what is then
guaranteed.

>>> import lowcal
>>> data = lowcal.datasets.make_miscalibrated(2000, random_state=0)
>>> fit = lowcal.multicalibrate(data.y, data.p, data.X, notion="degree-2", alpha=0.01)
>>> fit.status.value
'reached'
"""

from __future__ import annotations

from lowcal import datasets, errors
from lowcal.auditing import Measurement, measure
from lowcal.errors import FitInterrupted, InvalidInput, LowcalError, MissingColumn, MissingExtra
from lowcal.estimators import MulticalibratedClassifier, MulticalibratedRegressor
from lowcal.fitting import Fit, Record, multicalibrate
from lowcal.notions import Full, LowDegree, Multiaccuracy, Notion, Smooth, parse_notion
from lowcal.stopping import Status
from lowcal.subpopulations import (
    Groups,
    Intersections,
    Linear,
    Memberships,
    Regressor,
    Subpopulations,
    Thresholds,
    Trees,
)
from lowcal.updates import Predictor, Update

__version__ = "0.1.0"

__all__ = [
    "Fit",
    "FitInterrupted",
    "Full",
    "Groups",
    "Intersections",
    "InvalidInput",
    "Linear",
    "LowDegree",
    "LowcalError",
    "Measurement",
    "Memberships",
    "MissingColumn",
    "MissingExtra",
    "Multiaccuracy",
    "MulticalibratedClassifier",
    "MulticalibratedRegressor",
    "Notion",
    "Predictor",
    "Record",
    "Regressor",
    "Smooth",
    "Status",
    "Subpopulations",
    "Thresholds",
    "Trees",
    "Update",
    "__version__",
    "datasets",
    "errors",
    "measure",
    "multicalibrate",
    "parse_notion",
]
