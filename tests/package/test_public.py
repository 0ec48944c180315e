"""The public surface: every promised name is there, and importing lowcal imports nothing heavy."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from pathlib import Path

import pytest

import lowcal


@pytest.mark.parametrize("name", lowcal.__all__)
def test_every_public_name_resolves(name):
    found = getattr(lowcal, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__name__ == name
        assert inspect.getdoc(found)


def test_names_live_where_the_package_says():
    assert set(lowcal._HOME) | set(lowcal._MODULES) | {"__version__"} == set(lowcal.__all__)
    assert len(set(lowcal.__all__)) == len(lowcal.__all__)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(lowcal.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == lowcal._HOME | dict.fromkeys(lowcal._MODULES, "lowcal")


def test_dir_lists_the_public_names():
    assert dir(lowcal) == sorted(lowcal.__all__)


def test_the_contract_of_the_interface_is_there():
    promised = (
        "Multiaccuracy LowDegree Smooth Full parse_notion Groups Intersections Memberships Linear Trees Thresholds "
        "Regressor Private multicalibrate audit cells AuditReport Fit Predictor MulticalibratedClassifier "
        "MulticalibratedRegressor datasets guarantees hierarchy complexity metrics testing save load to_onnx"
    )
    assert set(promised.split()) <= set(lowcal.__all__)
    order = [
        "y",
        "p",
        "X",
        "subpopulations",
        "notion",
        "alpha",
        "per_person",
        "min_share",
        "solver",
        "geometry",
        "step",
    ]
    order += ["sample_weight", "frequency_weight", "guard"]
    assert list(inspect.signature(lowcal.multicalibrate).parameters)[: len(order)] == order
    asked = ["y", "p", "X", "subpopulations", "notion", "alpha", "per_person", "min_share", "sample_weight"]
    asked += ["frequency_weight"]
    assert list(inspect.signature(lowcal.audit).parameters)[: len(asked)] == asked
    report = (
        "verdict violation certified_alpha p_value null_floor findings worst to_frame to_dict guarantees to_html plot"
    )
    assert set(report.split()) <= set(lowcal.AuditReport.__dataclass_fields__) | set(dir(lowcal.AuditReport))
    finding = "subpopulation weight label violation conditional standard_error lower upper mass n_effective"
    assert set(finding.split()) <= set(lowcal.Finding.__dataclass_fields__)
    modules = {
        "guarantees": "moment_sandwich true_positive_rate confusion covariance variance squared_loss overconfidence",
        "hierarchy": "implied_alpha robustness",
        "complexity": "sample_size compare iterations",
        "metrics": "multiaccuracy_error excess_variance degree_error smooth_error full_error",
        "testing": "check_notion check_subpopulations",
    }
    for module, names in modules.items():
        assert all(callable(getattr(getattr(lowcal, module), name)) for name in names.split())
    model = [
        "estimator",
        "notion",
        "subpopulations",
        "alpha",
        "solver",
        "geometry",
        "step",
        "cv",
        "validation_fraction",
    ]
    assert list(inspect.signature(lowcal.MulticalibratedClassifier).parameters)[: len(model)] == model


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lowcal' has no attribute 'multicalibrat'"):
        lowcal.multicalibrat  # noqa: B018
    assert not hasattr(lowcal, "audits")


def test_star_import_gives_every_name():
    space = {}
    exec("from lowcal import *", space)
    assert set(lowcal.__all__) <= set(space)


@pytest.fixture
def modules_after(run_python):
    def modules(statement):
        code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
        return set(run_python("-c", code).stdout.split())

    return modules


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import lowcal", {"numpy", "scipy", "sklearn", "pandas", "polars", "pyarrow", "narwhals", "matplotlib"}),
        ("from lowcal import multicalibrate", {"sklearn", "pandas", "polars", "pyarrow", "matplotlib", "tqdm"}),
    ],
)
def test_importing_loads_nothing_that_is_not_needed(modules_after, statement, absent):
    assert not absent & modules_after(statement)


def test_the_estimators_load_little_more_than_scikit_learn_does(modules_after):
    ours = modules_after("from lowcal import MulticalibratedClassifier")
    known = (
        modules_after("import sklearn.calibration, sklearn.model_selection, sklearn.frozen") | sys.stdlib_module_names
    )
    assert ours - known <= {"lowcal"}


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert lowcal.__version__ == version("lowcal")


def test_a_release_has_one_version():
    root = Path(__file__).parents[2]
    assert f"\nversion: {lowcal.__version__}\n" in (root / "CITATION.cff").read_text(encoding="utf-8")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changes.split("\n## ")[1].startswith(f"{lowcal.__version__} (")


@pytest.mark.parametrize("name", sorted(lowcal._MODULES))
def test_public_modules_are_imported_by_the_names_that_users_know(name):
    """`from lowcal.guarantees import ...` works wherever the module lives, and there is one copy of it."""
    module = importlib.import_module(f"lowcal.{name}")
    assert module is getattr(lowcal, name) is sys.modules[module.__name__]
    assert module.__spec__.name == module.__name__


@pytest.mark.parametrize("name", sorted(lowcal._MODULES))
def test_type_checkers_can_follow_a_public_module_to_its_home(name):
    """They read files: a public module is a file or a package of this name, or one that imports all of another."""
    place = Path(lowcal.__file__).parent / name
    assert place.is_dir() != place.with_suffix(".py").exists()
    if getattr(lowcal, name).__name__ != f"lowcal.{name}":
        body = ast.parse(place.with_suffix(".py").read_text(encoding="utf-8")).body
        starred = [node.module for node in body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
        assert starred == [getattr(lowcal, name).__name__]


def test_other_modules_have_one_name():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lowcal.certificates")
