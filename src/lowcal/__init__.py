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

from lowcal.data import __version__

# fmt: off
__all__ = [
    "Alarm", "AuditReport", "AuditWarning", "CannotWrite", "CardFull", "CheckFailed", "DamagedFile", "DriftDisplay",
    "Explanation", "Finding", "Fit", "FitInterrupted", "FitWarning", "Forecaster", "Full", "Groups", "HierarchyDisplay",
    "Intersections", "InvalidInput", "Linear", "LowDegree", "LowcalError", "Measurement", "Memberships",
    "MissingColumn", "MissingExtra", "MonitoringReport", "Multiaccuracy", "MulticalibratedClassifier",
    "MulticalibratedRegressor", "Notion", "Predictor", "Private", "PrivateFit", "Record", "Regressor",
    "ReliabilityDisplay", "SandwichDisplay", "Smooth", "Status", "Subpopulations", "Thresholds", "TrajectoryDisplay",
    "Trees", "Update", "Verdict", "ViolationDisplay", "__version__", "accounting", "audit", "cells", "cells_sql",
    "complexity", "datasets", "errors", "guarantees", "hierarchy", "load", "measure", "metrics", "multicalibrate",
    "on_card", "online", "parse_notion", "persistence", "recalibrate", "sampling", "save", "testing", "to_onnx",
]
# fmt: on

#: The public modules.
_MODULES = (
    *("accounting", "complexity", "datasets", "errors", "guarantees", "hierarchy", "metrics", "online", "persistence"),
    *("sampling", "testing"),
)
#: Where the other names live; each is imported when first used, so that `import lowcal` costs next to nothing.
_NAMES = {
    "auditing.audits": "Measurement audit measure",
    "auditing.monitoring": "Alarm MonitoringReport",
    "auditing.plotting": "DriftDisplay HierarchyDisplay ReliabilityDisplay SandwichDisplay TrajectoryDisplay "
    "ViolationDisplay",
    "auditing.reports": "AuditReport Finding Verdict",
    "data.cards": "on_card",
    "data.cells": "cells cells_sql",
    "data.errors": "AuditWarning CannotWrite CardFull CheckFailed DamagedFile FitInterrupted FitWarning InvalidInput "
    "LowcalError MissingColumn MissingExtra",
    "estimators": "MulticalibratedClassifier MulticalibratedRegressor",
    "notions": "Full LowDegree Multiaccuracy Notion Smooth parse_notion",
    "online": "Forecaster",
    "persistence": "load save",
    "persistence.export": "to_onnx",
    "rows.explaining": "Explanation",
    "rows.updates": "Predictor Update",
    "solve.fitting": "Fit Record multicalibrate",
    "solve.private": "PrivateFit",
    "solve.recalibration": "recalibrate",
    "solve.stopping": "Status",
    "subpopulations": "Groups Intersections Linear Memberships Private Regressor Subpopulations Thresholds Trees",
}
_HOME = {name: f"lowcal.{module}" for module, names in _NAMES.items() for name in names.split()}

# isort: off
if TYPE_CHECKING:  # the same table for type checkers
    from lowcal import accounting, complexity, datasets, errors, guarantees, hierarchy, metrics, online, persistence
    from lowcal import sampling, testing
    from lowcal.auditing.audits import Measurement, audit, measure
    from lowcal.auditing.monitoring import Alarm, MonitoringReport
    from lowcal.auditing.plotting import DriftDisplay, HierarchyDisplay, ReliabilityDisplay, SandwichDisplay
    from lowcal.auditing.plotting import TrajectoryDisplay, ViolationDisplay
    from lowcal.auditing.reports import AuditReport, Finding, Verdict
    from lowcal.data.cards import on_card
    from lowcal.data.cells import cells, cells_sql
    from lowcal.data.errors import (
        AuditWarning,
        CannotWrite,
        CardFull,
        CheckFailed,
        DamagedFile,
        FitInterrupted,
        FitWarning,
    )
    from lowcal.data.errors import InvalidInput, LowcalError, MissingColumn, MissingExtra
    from lowcal.estimators import MulticalibratedClassifier, MulticalibratedRegressor
    from lowcal.notions import Full, LowDegree, Multiaccuracy, Notion, Smooth, parse_notion
    from lowcal.online import Forecaster
    from lowcal.persistence import load, save
    from lowcal.persistence.export import to_onnx
    from lowcal.rows.explaining import Explanation
    from lowcal.rows.updates import Predictor, Update
    from lowcal.solve.fitting import Fit, Record, multicalibrate
    from lowcal.solve.private import PrivateFit
    from lowcal.solve.recalibration import recalibrate
    from lowcal.solve.stopping import Status
    from lowcal.subpopulations import Groups, Intersections, Linear, Memberships, Private, Regressor
    from lowcal.subpopulations import Subpopulations, Thresholds, Trees
else:  # with this, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"lowcal.{name}")
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module 'lowcal' has no attribute {name!r}")

# isort: on


def __dir__() -> list[str]:
    return sorted(__all__)
