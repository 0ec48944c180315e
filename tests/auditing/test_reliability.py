"""The bins of reliability diagrams, recounted row by row; their limits, from the equation that defines them."""

from statistics import NormalDist

import numpy as np
import pytest

from audits import audited, rows
from lowcal import Groups, Trees, audit
from lowcal.auditing.panel import BINS, ReliabilityBins, cuts, reliability
from lowcal.datasets import make_miscalibrated
from worlds import panel_of


def given(C, y, p, weight, *names):
    """Return rows and the subpopulations on them."""
    panel = panel_of(y, p, weight, C, names)
    return panel.rows, panel.families


@pytest.fixture
def sample():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 400)
    y = np.eye(3)[rng.integers(0, 3, 400)]
    C = np.column_stack([np.ones(400), rng.random(400), rng.integers(0, 2, 400)])
    weight = rng.random(400)
    return C, y, p, weight / weight.sum()


def test_every_bin_is_recounted(sample):
    C, y, p, weight = sample
    found = reliability(*given(C, y, p, weight, "all", "fuzzy", "some"))
    for j, name in enumerate(["all", "fuzzy", "some"]):
        for a in range(3):
            at = cuts(p[:, a], weight, BINS)
            inside = np.digitize(p[:, a], at)
            bins = found[name][a]
            assert len(bins.mass) == BINS
            for b in range(BINS):
                w = (weight * C[:, j])[inside == b]
                assert bins.mass[b] == pytest.approx(w.sum())
                assert bins.rows[b] == pytest.approx(w.sum() ** 2 / (w**2).sum())
                assert bins.prediction[b] == pytest.approx(w @ p[inside == b, a] / w.sum())
                assert bins.outcome[b] == pytest.approx(w @ y[inside == b, a] / w.sum())


def test_bins_have_equal_mass_where_predictions_are_all_different(sample):
    C, y, p, weight = sample
    bins = reliability(*given(C, y, p, weight, "all", "fuzzy", "some"))["all"][1]
    assert bins.mass == pytest.approx(np.full(BINS, 0.1), abs=weight.max())


def test_values_that_occur_often_are_never_cut_or_mixed():
    f = np.repeat([0.0, 0.3, 1.0], [60, 10, 30])
    y = np.repeat([0.0, 1.0, 1.0], [60, 10, 30])[:, None]
    bins = reliability(*given(np.ones((100, 1)), y, f[:, None], np.full(100, 0.01), "all"))["all"][0]
    assert bins.prediction == pytest.approx([0.0, 0.3, 1.0])
    assert bins.rows == pytest.approx([60, 10, 30])
    assert cuts(np.full(5, 0.4), np.full(5, 0.2), 10).size == 0


def test_rows_without_weight_do_not_move_the_cuts():
    f, weight = np.array([0.1, 0.2, 0.9, 0.95]), np.array([0.5, 0.0, 0.5, 0.0])
    assert cuts(f, weight, 2) == pytest.approx([0.5])


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_limits_solve_the_score_equation(confidence):
    bins = ReliabilityBins(np.array([0.5, 0.5]), np.array([40.0, 7.5]), np.array([0.2, 0.8]), np.array([0.3, 0.9]))
    z = NormalDist().inv_cdf(1 - (1 - confidence) / 4)  # two bins, two sides
    for limit in bins.limits(confidence):
        assert np.abs(bins.outcome - limit) == pytest.approx(z * np.sqrt(limit * (1 - limit) / bins.rows))
    lower, upper = bins.limits(confidence)
    assert (lower < bins.outcome).all()
    assert (bins.outcome < upper).all()


def test_limits_stay_probabilities_at_the_edges():
    lower, upper = ReliabilityBins(np.ones(2) / 2, np.array([5.0, 5.0]), np.zeros(2), np.array([0.0, 1.0])).limits(0.95)
    assert lower[0] == 0.0
    assert upper[1] == 1.0
    assert 0 < upper[0] < 0.7
    assert 0.3 < lower[1] < 1


def test_an_audit_keeps_the_bins_of_its_groups():
    y, p, _, X = rows(2)
    report = audited(2)
    inside = X["g2"] == "b"
    bins = report.reliability["g2=b"][0]
    at = np.digitize(p, cuts(p, np.full(len(p), 1 / len(p)), BINS))
    assert bins.outcome == pytest.approx([y[inside & (at == b)].mean() for b in range(BINS)])
    assert bins.rows == pytest.approx([np.count_nonzero(inside & (at == b)) for b in range(BINS)])
    assert set(report.reliability) == {one.subpopulation for one in report.findings}
    assert len(report.reliability) == len(report.findings)
    assert len(audited(5).reliability["g2=b"]) == 5


def test_learned_groups_have_bins_too():
    data = make_miscalibrated(1200, random_state=1)
    report = audit(data.y, data.p, data.X, subpopulations=Trees(max_depth=1), random_state=0, null_draws=19)
    assert all(one.subpopulation in report.reliability for one in report.findings)


def test_only_the_worst_groups_are_kept(monkeypatch):
    monkeypatch.setattr("lowcal.auditing.audits.KEPT", 3)
    data = make_miscalibrated(1200, random_state=1)
    report = audit(data.y, data.p, data.X, subpopulations=Groups(["g0", "g1"]), random_state=0, null_draws=19)
    assert list(report.reliability) == [one.subpopulation for one in report.findings[:3]]
    with pytest.raises(KeyError):
        report.reliability["nobody"]


def test_of_equal_names_the_last_counts(sample):
    C, y, p, weight = sample
    both = reliability(*given(C[:, [0, 2]], y, p, weight, "same", "same"))
    last = reliability(*given(C[:, [2]], y, p, weight, "same"))
    assert both["same"][0].mass == pytest.approx(last["same"][0].mass)


def test_other_than_wanted_groups_are_left_out(sample):
    found = reliability(*given(*sample, "all", "fuzzy", "some"), {"some", "nobody"})
    assert list(found) == ["some"]
