"""lowcal: low-degree multicalibration.

Audit the probabilities of any classifier on many overlapping subpopulations, recalibrate them, and know what
is then guaranteed.

>>> import lowcal
>>> data = lowcal.datasets.make_miscalibrated(5000, random_state=0)
>>> fit = lowcal.multicalibrate(data.y, data.p, data.X, notion="degree-2", alpha=0.01)
>>> fit.status.value
'reached'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lowcal.version import __version__

if TYPE_CHECKING:
    from lowcal import (
        accounting,
        complexity,
        datasets,
        errors,
        guarantees,
        hierarchy,
        metrics,
        online,
        persistence,
        sampling,
        testing,
    )
    from lowcal.auditing import Measurement, audit, measure
    from lowcal.errors import (
        AuditWarning,
        CannotWrite,
        CheckFailed,
        DamagedFile,
        FitInterrupted,
        FitWarning,
        InvalidInput,
        LowcalError,
        MissingColumn,
        MissingExtra,
    )
    from lowcal.estimators import MulticalibratedClassifier, MulticalibratedRegressor
    from lowcal.export import to_onnx
    from lowcal.fitting import multicalibrate
    from lowcal.notions import Full, LowDegree, Multiaccuracy, Notion, Smooth, parse_notion
    from lowcal.online import Forecaster
    from lowcal.persistence import load, save
    from lowcal.plotting import (
        HierarchyDisplay,
        ReliabilityDisplay,
        SandwichDisplay,
        TrajectoryDisplay,
        ViolationDisplay,
    )
    from lowcal.private_runs import PrivateFit
    from lowcal.recalibration import recalibrate
    from lowcal.reports import AuditReport, Finding, Verdict
    from lowcal.runs import Fit, Record
    from lowcal.stopping import Status
    from lowcal.subpopulations import (
        Groups,
        Intersections,
        Linear,
        Memberships,
        Private,
        Regressor,
        Subpopulations,
        Thresholds,
        Trees,
    )
    from lowcal.updates import Predictor, Update

#: Where each public name lives; it is imported when first used, so that `import lowcal` costs next to nothing.
_HOME = {
    "AuditReport": "reports",
    "AuditWarning": "errors",
    "CannotWrite": "errors",
    "CheckFailed": "errors",
    "DamagedFile": "errors",
    "Finding": "reports",
    "Fit": "runs",
    "FitInterrupted": "errors",
    "FitWarning": "errors",
    "Forecaster": "online",
    "Full": "notions",
    "Groups": "subpopulations",
    "HierarchyDisplay": "plotting",
    "Intersections": "subpopulations",
    "InvalidInput": "errors",
    "Linear": "subpopulations",
    "LowDegree": "notions",
    "LowcalError": "errors",
    "Measurement": "auditing",
    "Memberships": "subpopulations",
    "MissingColumn": "errors",
    "MissingExtra": "errors",
    "Multiaccuracy": "notions",
    "MulticalibratedClassifier": "estimators",
    "MulticalibratedRegressor": "estimators",
    "Notion": "notions",
    "Predictor": "updates",
    "Private": "subpopulations",
    "PrivateFit": "private_runs",
    "Record": "runs",
    "Regressor": "subpopulations",
    "ReliabilityDisplay": "plotting",
    "SandwichDisplay": "plotting",
    "Smooth": "notions",
    "Status": "stopping",
    "Subpopulations": "subpopulations",
    "Thresholds": "subpopulations",
    "TrajectoryDisplay": "plotting",
    "Trees": "subpopulations",
    "Update": "updates",
    "Verdict": "reports",
    "ViolationDisplay": "plotting",
    "audit": "auditing",
    "load": "persistence",
    "measure": "auditing",
    "multicalibrate": "fitting",
    "parse_notion": "notions",
    "recalibrate": "recalibration",
    "save": "persistence",
    "to_onnx": "export",
}
_MODULES = (
    "accounting",
    "complexity",
    "datasets",
    "errors",
    "guarantees",
    "hierarchy",
    "metrics",
    "online",
    "persistence",
    "sampling",
    "testing",
)

__all__ = [
    "AuditReport",
    "AuditWarning",
    "CannotWrite",
    "CheckFailed",
    "DamagedFile",
    "Finding",
    "Fit",
    "FitInterrupted",
    "FitWarning",
    "Forecaster",
    "Full",
    "Groups",
    "HierarchyDisplay",
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
    "Private",
    "PrivateFit",
    "Record",
    "Regressor",
    "ReliabilityDisplay",
    "SandwichDisplay",
    "Smooth",
    "Status",
    "Subpopulations",
    "Thresholds",
    "TrajectoryDisplay",
    "Trees",
    "Update",
    "Verdict",
    "ViolationDisplay",
    "__version__",
    "accounting",
    "audit",
    "complexity",
    "datasets",
    "errors",
    "guarantees",
    "hierarchy",
    "load",
    "measure",
    "metrics",
    "multicalibrate",
    "online",
    "parse_notion",
    "persistence",
    "recalibrate",
    "sampling",
    "save",
    "testing",
    "to_onnx",
]


if not TYPE_CHECKING:  # type checkers know the names from the imports above, and refuse others

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"lowcal.{name}")
        if name in _HOME:
            return getattr(import_module(f"lowcal.{_HOME[name]}"), name)
        raise AttributeError(f"module 'lowcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
