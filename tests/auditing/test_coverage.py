"""Coverage and power, by simulation on populations that are known exactly (spec 10.i)."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest

from lowcal.auditing.band import band
from lowcal.auditing.draws import null_test
from lowcal.kernels import line
from lowcal.notions import LowDegree
from worlds import Population, perfect, thirty_groups

DEGREE_2 = LowDegree(2)


def coverage(method: str, n: int, data_sets: int) -> float:
    """Return how often the 95% band holds all sixty violations of the population at once."""
    world = thirty_groups()
    truth = world.violations(np.column_stack([np.ones(len(world.f)), world.f[:, 0]]))
    covered = 0
    for seed in range(data_sets):
        rng = np.random.default_rng([7, seed])
        found = band(world.draw(n, rng), DEGREE_2, 0.95, method, rng).constraints
        assert found.v.shape == truth.shape == (30, 2, 1)
        covered += bool(((found.lower <= truth) & (truth <= found.upper)).all())
    return covered / data_sets


def certified(method: str, n: int, data_sets: int) -> float:
    """Return how often the largest violation of the population lies within its certified limits."""
    world = thirty_groups()
    U = np.column_stack([np.ones(len(world.f)), world.f[:, 0]])
    truth = np.abs(world.violations(U)).max()
    inside = 0
    for seed in range(data_sets):
        rng = np.random.default_rng([8, seed])
        found = band(world.draw(n, rng), DEGREE_2, 0.95, method, rng)
        inside += bool(found.lower.max() <= truth <= found.upper.max())
    return inside / data_sets


def p_values(world: Population, n: int, data_sets: int, draws: int = 99) -> np.ndarray:
    values = []
    for seed in range(data_sets):
        rng = np.random.default_rng([9, seed])
        values.append(null_test(world.draw(n, rng), DEGREE_2, 0.95, rng, draws=draws).p_value)
    return np.array(values)


def shifted(n: int, seed: int = 0) -> Population:
    """A perfect model moved down on every group by three of the group's standard errors at n rows."""
    world = perfect(seed)
    truth = world.f_star
    error = np.sqrt((truth * (1.0 - truth)).mean() / (n / 3))
    return Population(world.C, truth, np.clip(truth - 3.0 * error, 0.0, 1.0))


def opposed(n: int, seed: int = 0) -> Population:
    """A perfect model moved by three standard errors, down on ten of the groups and up on ten, so that all is even."""
    world = perfect(seed)
    truth = world.f_star
    error = np.sqrt((truth * (1.0 - truth)).mean() / (n / 3))
    side = world.C[:, 0::3].sum(axis=1) - world.C[:, 1::3].sum(axis=1)
    return Population(world.C, truth, np.clip(truth - 3.0 * error * side[:, None], 0.0, 1.0))


# --- small versions, in every run ---------------------------------------------------------------------------


@pytest.fixture
def audits(monkeypatch):
    """The cases of benchmarks/intervals.py, with compiled passes at every size: thousands of audits are made here."""
    monkeypatch.setattr(line, "COMPILE_FROM", 0)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("intervals")


RARE = [
    ("f = .05, 20 groups of 220", "degree-2"),
    ("f ~ Beta(2, 38), 12 groups of 300", "degree-2"),
    ("f = .1, 20 groups of 120", "full-0.1"),
    ("f = .1, 20 groups of 120", "smooth"),
    ("3 classes (.04, .04, .92), 20 groups of 110", "full-0.25"),
    ("p = .5, truth .01, 500 rows", "degree-2"),
    ("lognormal weights, f ~ Beta(2, 38), 8 groups, 3,000 rows", "degree-2"),
]


@pytest.mark.parametrize(("case", "notion"), RARE)
def test_audits_of_rare_outcomes_hold_as_often_as_they_say(audits, case, notion):
    """Of 40 data sets, 38 on average; studentised intervals hold in 30."""
    found = audits.coverage(case, notion, "bootstrap", 40)
    assert found.certified >= 0.85
    assert found.findings >= 0.85


def test_a_perfect_model_of_rare_outcomes_is_seldom_called_violated(audits):
    """The first line of the table; three of ten data sets were called violated at any alpha."""
    found = audits.coverage("f ~ Beta(5, 495), 20 groups of 1,500", "degree-2", "bootstrap", 20, seed=1)
    assert found.certified >= 0.85


def test_exact_limits_hold_and_are_narrower_than_bernsteins(audits):
    case = "f ~ Beta(2, 38), 12 groups of 300"
    exact, safe = (audits.coverage(case, "degree-2", method, 10) for method in ("exact", "bernstein"))
    assert exact.findings == 1.0
    assert exact.half < 0.6 * safe.half


@pytest.mark.slow
@pytest.mark.parametrize("notion", ["degree-2", "smooth", "full-0.1"])
def test_coverage_over_1000_data_sets(audits, notion):
    """Every case of benchmarks/intervals.py."""
    for case in audits.CASES:
        found = audits.coverage(case, notion, "bootstrap", 1000)
        assert 0.93 <= found.certified <= 0.985, case
        assert 0.93 <= found.findings <= 0.985, case


@pytest.mark.slow
def test_exact_coverage_over_200_data_sets(audits):
    for case in audits.CASES:
        found = audits.coverage(case, "degree-2", "exact", 200)
        assert min(found.certified, found.findings) >= 0.95, case


def test_bootstrap_bands_cover_all_violations_at_once():
    assert 0.88 <= coverage("bootstrap", 2000, 80) <= 1.0


def test_a_band_at_half_the_confidence_covers_less_often():
    world = thirty_groups()
    truth = world.violations(np.column_stack([np.ones(len(world.f)), world.f[:, 0]]))
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng([7, seed])
        found = band(world.draw(2000, rng), DEGREE_2, 0.5, "bootstrap", rng).constraints
        covered += bool(((found.lower <= truth) & (truth <= found.upper)).all())
    assert 0.3 <= covered / 60 <= 0.7


@pytest.mark.parametrize("method", ["bernstein", "hoeffding"])
def test_finite_sample_bands_cover_more_often_than_they_say(method):
    assert coverage(method, 1000, 40) >= 0.95


def test_p_values_are_uniform_for_a_perfect_model():
    values = p_values(perfect(), 500, 120, draws=39)
    assert kstest(values, "uniform").pvalue > 0.01
    assert len(np.unique(values)) > 20


@pytest.mark.parametrize("make", [shifted, opposed])
def test_a_shift_of_three_standard_errors_is_seen(make):
    assert (p_values(make(1000), 1000, 30, draws=39) <= 0.05).mean() > 0.9


# --- as the specification asks, by `make test-slow` ----------------------------------------------------------


@pytest.mark.slow
def test_bootstrap_coverage_over_400_data_sets():
    assert 0.93 <= coverage("bootstrap", 5000, 400) <= 0.975


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bernstein", "hoeffding"])
def test_finite_sample_coverage_over_400_data_sets(method):
    assert coverage(method, 5000, 400) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bootstrap", "bernstein", "hoeffding"])
def test_certified_limits_hold_over_400_data_sets(method):
    assert certified(method, 5000, 400) >= 0.95


@pytest.mark.slow
def test_p_values_over_400_data_sets():
    values = p_values(perfect(), 5000, 400)
    assert kstest(values, "uniform").pvalue > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("make", [shifted, opposed])
def test_power_over_400_data_sets(make):
    assert (p_values(make(5000), 5000, 400) <= 0.05).mean() > 0.9
