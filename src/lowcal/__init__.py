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

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lowcal.data.version import __version__

if TYPE_CHECKING:
    from lowcal import testing
    from lowcal.auditing import metrics
    from lowcal.auditing.audits import Measurement, audit, measure
    from lowcal.auditing.plotting import (
        HierarchyDisplay,
        ReliabilityDisplay,
        SandwichDisplay,
        TrajectoryDisplay,
        ViolationDisplay,
    )
    from lowcal.auditing.reports import AuditReport, Finding, Verdict
    from lowcal.data import datasets, errors
    from lowcal.data.errors import (
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
    from lowcal.deploy import persistence
    from lowcal.deploy.export import to_onnx
    from lowcal.deploy.persistence import load, save
    from lowcal.estimators import MulticalibratedClassifier, MulticalibratedRegressor
    from lowcal.notions import Full, LowDegree, Multiaccuracy, Notion, Smooth, parse_notion
    from lowcal.rows.updates import Predictor, Update
    from lowcal.solve import online, sampling
    from lowcal.solve.fitting import multicalibrate
    from lowcal.solve.online import Forecaster
    from lowcal.solve.private import PrivateFit
    from lowcal.solve.recalibration import recalibrate
    from lowcal.solve.runs import Fit, Record
    from lowcal.solve.stopping import Status
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
    from lowcal.theory import accounting, complexity, guarantees, hierarchy

#: Where each public name lives; it is imported when first used, so that `import lowcal` costs next to nothing.
_HOME = {
    "AuditReport": "auditing.reports",
    "AuditWarning": "data.errors",
    "CannotWrite": "data.errors",
    "CheckFailed": "data.errors",
    "DamagedFile": "data.errors",
    "Finding": "auditing.reports",
    "Fit": "solve.runs",
    "FitInterrupted": "data.errors",
    "FitWarning": "data.errors",
    "Forecaster": "solve.online",
    "Full": "notions",
    "Groups": "subpopulations",
    "HierarchyDisplay": "auditing.plotting",
    "Intersections": "subpopulations",
    "InvalidInput": "data.errors",
    "Linear": "subpopulations",
    "LowDegree": "notions",
    "LowcalError": "data.errors",
    "Measurement": "auditing.audits",
    "Memberships": "subpopulations",
    "MissingColumn": "data.errors",
    "MissingExtra": "data.errors",
    "Multiaccuracy": "notions",
    "MulticalibratedClassifier": "estimators",
    "MulticalibratedRegressor": "estimators",
    "Notion": "notions",
    "Predictor": "rows.updates",
    "Private": "subpopulations",
    "PrivateFit": "solve.private",
    "Record": "solve.runs",
    "Regressor": "subpopulations",
    "ReliabilityDisplay": "auditing.plotting",
    "SandwichDisplay": "auditing.plotting",
    "Smooth": "notions",
    "Status": "solve.stopping",
    "Subpopulations": "subpopulations",
    "Thresholds": "subpopulations",
    "TrajectoryDisplay": "auditing.plotting",
    "Trees": "subpopulations",
    "Update": "rows.updates",
    "Verdict": "auditing.reports",
    "ViolationDisplay": "auditing.plotting",
    "audit": "auditing.audits",
    "load": "deploy.persistence",
    "measure": "auditing.audits",
    "multicalibrate": "solve.fitting",
    "parse_notion": "notions",
    "recalibrate": "solve.recalibration",
    "save": "deploy.persistence",
    "to_onnx": "deploy.export",
}
#: Modules by the names that users know.
_MODULES = {
    "accounting": "theory.accounting",
    "complexity": "theory.complexity",
    "datasets": "data.datasets",
    "errors": "data.errors",
    "guarantees": "theory.guarantees",
    "hierarchy": "theory.hierarchy",
    "metrics": "auditing.metrics",
    "online": "solve.online",
    "persistence": "deploy.persistence",
    "sampling": "solve.sampling",
    "testing": "testing",
}

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
            return import_module(f"lowcal.{_MODULES[name]}")
        if name in _HOME:
            return getattr(import_module(f"lowcal.{_HOME[name]}"), name)
        raise AttributeError(f"module 'lowcal' has no attribute {name!r}")


class _Shortcut(MetaPathFinder, Loader):
    """Lets `import lowcal.guarantees` find a public module where it lives."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec for a public module that lives deeper; None for others."""
        public = name.removeprefix("lowcal.")
        is_deeper = name.startswith("lowcal.") and _MODULES.get(public, public) != public
        return ModuleSpec(name, self) if is_deeper else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself, not a copy."""
        module = import_module(f"lowcal.{_MODULES[spec.name.removeprefix('lowcal.')]}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has been executed."""
        module.__spec__ = getattr(module.__spec__, "loader_state", module.__spec__)


sys.meta_path.append(_Shortcut())


def __dir__() -> list[str]:
    return sorted(__all__)
