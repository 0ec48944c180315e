"""The stages of the tests: `make test`, `make test-integration` and `make test-slow`.

A test belongs to the second stage by its name, by a process that it starts (`run_python`), or, where it is one of a
product of parameters (`pytest.mark.product`), by its values.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

#: The tests of the second stage: they start processes, build the site, drive a browser, compare compiled kernels with
#: their definitions, run what belongs to other libraries, or simulate. A name stands for all tests that begin with it.
INTEGRATION = (
    "auditing/test_browser.py",
    "auditing/test_demo_page.py",
    "auditing/test_audit.py::test_noise_is_not_found_by_a_learner",
    "auditing/test_coverage.py",
    "auditing/test_per_person.py::test_intervals_per_person_cover",
    "cli/test_cli.py::test_demo",
    "cli/test_commands_process.py",
    "persistence/test_mutations.py",
    "persistence/test_round_trip.py::test_a_base_model",
    "persistence/test_round_trip.py::test_a_classifier",
    "persistence/test_round_trip.py::test_another_process",
    "persistence/test_export.py::test_fits_to_predictions_of_zero_and_one",
    "docs/",
    "kernels/test_compiled.py",
    "notions/test_lp_agreement.py",
    "package/test_benchmarks.py",
    "rows/test_audit.py::test_trees_agree",
    "rows/test_dask.py",
    "rows/test_memory.py::test_compiled_trees",
    "rows/test_ray.py",
    "rows/test_spark.py",
    "rows/test_threads.py",
    "solve/test_harm.py",
    "solve/test_product.py::test_four_classes",
    "test_estimators.py::test_a_base_model_is_recalibrated_by",
    "test_estimators.py::test_a_base_model_on_few_rows",
    "test_estimators.py::test_in_a_pipeline",
    "test_estimators.py::test_no_check_is_skipped",
    "test_estimators.py::test_scikit_learn_checks",
    "testing/test_testing.py::test_our_",
    "test_complexity.py::test_an_audit_of_a_perfect_model",
)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second stage."""
    for item in (*in_second_stage(items), *beyond_pairs(items)):
        item.add_marker(pytest.mark.integration)


def in_second_stage(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests named above, and those that start a process."""
    names = tuple(f"tests/{name}" for name in INTEGRATION)
    for item in items:
        if item.nodeid.startswith(names) or "run_python" in getattr(item, "fixturenames", ()):
            yield item


def beyond_pairs(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield what the first stage leaves out of products: it runs enough of each for all pairs of values to meet."""
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("product"):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return (case for cases in products.values() for case in unneeded(cases))


def unneeded(cases: list[pytest.Function]) -> list[pytest.Function]:
    """Return cases without which all pairs of values still meet; the one that adds most pairs is kept next."""
    pairs = {case: pairs_of(case) for case in cases}
    missing, left = set().union(*pairs.values()), list(cases)
    while missing:
        best = max(left, key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        left.remove(best)
    return left


def pairs_of(case: pytest.Function) -> set[frozenset[tuple[str, int]]]:
    """Return the pairs of values of a case; cases with the same value hold the same object."""
    values = [(name, id(value)) for name, value in case.callspec.params.items()]
    return set(map(frozenset, combinations(values, 2)))


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs Python with some arguments in a process of its own, which must succeed."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
