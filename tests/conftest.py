"""The stages of the tests: `make test`, `make test-integration` and `make test-slow`.

A test belongs to the second stage by its file, and a product of parameters (`pytest.mark.product`) by its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Files and folders whose tests start processes, build the site, compile kernels, drive a browser, or simulate at length.
INTEGRATION: tuple[str, ...] = ()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second stage."""
    for item in (*in_second_stage(items), *beyond_pairs(items)):
        item.add_marker(pytest.mark.integration)


def in_second_stage(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests of the files and folders above."""
    places = [HERE / place for place in INTEGRATION]
    return (item for item in items if any(item.path.is_relative_to(place) for place in places))


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
