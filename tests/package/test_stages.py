"""The stages of the tests: what is named is there, and pairs of values are not lost."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest

import conftest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", conftest.INTEGRATION)
def test_what_is_named_is_there(name):
    file, _, function = name.partition("::")
    assert (TESTS / file).exists()
    assert not function or f"\ndef {function}" in (TESTS / file).read_text(encoding="utf-8")


def test_what_is_kept_of_a_product_holds_all_pairs_of_values():
    values = {"a": "uvwxyz", "b": (1, 2, 3, 4), "c": (True, False), "d": (None, 0.5, 0.25)}
    cases = [Case(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    kept = [case for case in cases if case not in conftest.unneeded(cases)]
    met = {pair for case in kept for pair in combinations(case.callspec.params.items(), 2)}
    assert met == {pair for case in cases for pair in combinations(case.callspec.params.items(), 2)}
    assert 24 <= len(kept) <= 36 < len(cases) == 144


class Case:
    """One of the tests of a product."""

    def __init__(self, params):
        self.callspec = SimpleNamespace(params=dict(params))
