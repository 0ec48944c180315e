"""The stages of the tests: `make test`, `make test-integration` and `make test-slow`.

A test belongs to the second stage by its file, by a process that it starts (`run_python`), or, where it is one of a
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

HERE = Path(__file__).parent
#: Files and folders whose tests start processes, build the site, compile kernels, drive a browser or simulate much.
INTEGRATION = (
    "auditing/reports/test_browser.py",
    "auditing/reports/test_demo_page.py",
    "auditing/test_coverage.py",
    "cli/test_commands_process.py",
    "deploy/persistence/test_mutations.py",
    "docs",
    "experiments",
    "kernels/test_compiled.py",
    "notions/test_lp_agreement.py",
    "package/test_benchmarks.py",
    "rows/test_threads.py",
    "solve/test_harm.py",
)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second stage."""
    for item in (*in_second_stage(items), *beyond_pairs(items)):
        item.add_marker(pytest.mark.integration)


def in_second_stage(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests of the files and folders above, and those that start a process."""
    places = [HERE / place for place in INTEGRATION]
    for item in items:
        if "run_python" in getattr(item, "fixturenames", ()) or any(map(item.path.is_relative_to, places)):
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
