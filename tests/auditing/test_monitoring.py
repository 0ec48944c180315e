"""Monitoring: windows are audited together, and drift raises alarms that hold over all windows and groups."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pytest
from scipy.stats import norm

import lowcal
from lowcal.auditing.monitoring import HORIZON, MOST, Drift, Sums, level_shares, read_windows, window_sums
from lowcal.data.progress import Passes
from lowcal.solve.homes import open_home


def made(months=6, rows=400, groups=4, drifted=None, seed=0):
    """Return labels, predictions and a table; group 0 is off by .2 from month `drifted` on."""
    rng = np.random.default_rng(seed)
    n = months * groups * rows
    month, group = np.divmod(np.arange(n) // rows, groups)
    p = rng.beta(4, 6, n)
    off = 0.0 if drifted is None else 0.2 * ((group == 0) & (month >= drifted))
    y = (rng.random(n) < p - p * off).astype(int) if drifted is None else (rng.random(n) < p + off).astype(int)
    names = np.array([f"2024-{k + 1:02d}" for k in range(months)])
    return y, p, {"g": np.array([f"v{k}" for k in group]), "month": names[month]}


@pytest.fixture(scope="module")
def drifting():
    y, p, X = made(8, drifted=5)
    return lowcal.audit(y, p, X, by="month", random_state=0)


# --- windows ---------------------------------------------------------------------------------------------------


def test_a_window_is_audited_as_alone_at_its_share_of_the_confidence():
    y, p, X = made(3)
    report = lowcal.audit(y, p, X, by="month", confidence=0.9, random_state=0)
    assert list(report.windows) == ["2024-01", "2024-02", "2024-03"]
    for name, one in report.windows.items():
        inside = X["month"] == name
        alone = lowcal.audit(
            y[inside], p[inside], {"g": X["g"][inside]}, confidence=1 - 0.1 / 3, random_state=1, method="bernstein"
        )
        assert one.confidence == pytest.approx(alone.confidence)
        assert one.violation == pytest.approx(alone.violation, rel=1e-12)
        assert {f.subpopulation for f in one.findings} == {f.subpopulation for f in alone.findings}


def test_groups_are_cut_alike_in_all_windows():
    y, p, X = made(3)
    rng = np.random.default_rng(1)
    age = rng.normal(size=len(y)) + 3 * (X["month"] == "2024-03")
    report = lowcal.audit(y, p, {"age": age, "month": X["month"]}, by="month", random_state=0)
    names = [{one.subpopulation for one in window.findings} for window in report.windows.values()]
    assert names[0] == names[1] == names[2] == set(report.names)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([3, 1, 2], [1, 2, 3]),
        ([2.5, 1.0, 2.0], [1, 2, 2.5]),
        (["b", "a", "c"], ["a", "b", "c"]),
        ([dt.date(2024, 2, 1), dt.date(2023, 12, 1), dt.date(2024, 1, 1)], ["2023-12-01", "2024-01-01", "2024-02-01"]),
        (np.array(["2024-02", "2023-12", "2024-01"], "datetime64[M]"), ["2023-12-01", "2024-01-01", "2024-02-01"]),
        ([dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2)], None),
    ],
)
def test_windows_are_in_the_order_of_time(values, names):
    found = read_windows([0, 1, 0], [0.5] * 3, {"when": values, "a": [1, 2, 3]}, None, "when", None)
    assert list(found.names) == (names or ["2024-01-01T00:00:00", "2024-01-01T12:00:00", "2024-01-02T00:00:00"])
    assert found.rest.names == ("a",)
    assert sorted(found.codes.tolist()) == [0, 1, 2]


def test_windows_that_cannot_be_made_are_refused():
    y, p, X = made(2)
    with pytest.raises(lowcal.InvalidInput, match="X is None"):
        lowcal.audit(y, p, by="month")
    with pytest.raises(lowcal.MissingColumn, match="mont"):
        lowcal.audit(y, p, X, by="mont")
    with pytest.raises(lowcal.InvalidInput, match="row 1: the window is missing"):
        lowcal.audit([0, 1, 1], [0.5] * 3, {"month": ["a", None, "b"]}, by="month")
    with pytest.raises(lowcal.InvalidInput, match=r"different values; .* Round it"):
        lowcal.audit([0, 1] * MOST, [0.5] * 2 * MOST, {"month": np.arange(2 * MOST)}, by="month")
    with pytest.raises(lowcal.InvalidInput, match="a learned class finds others"):
        lowcal.audit(y, p, X, by="month", subpopulations=lowcal.Trees())


def test_rows_without_weight_belong_to_no_window():
    y, p, X = made(3)
    weight = (X["month"] != "2024-02").astype(float)
    weight[:7] = 0.0
    report = lowcal.audit(y, p, X, by="month", sample_weight=weight, random_state=0)
    kept = weight > 0
    same = lowcal.audit(y[kept], p[kept], {k: v[kept] for k, v in X.items()}, by="month", random_state=0)
    assert list(report.windows) == list(same.windows) == ["2024-01", "2024-03"]
    np.testing.assert_allclose(report.drift.error, same.drift.error, rtol=1e-12)
    assert report.to_dict() == same.to_dict()


def test_frequency_weights_count_as_rows():
    y, p, X = made(4, rows=60, drifted=2)
    p = np.round(p, 1)
    table = np.array(list(zip(X["g"], X["month"], p, y, strict=True)), dtype=object)
    cells, counts = np.unique(table.astype(str), axis=0, return_counts=True)
    g, month, f, label = cells.T
    options = {"by": "month", "random_state": 0}
    one = lowcal.audit(y, p, X, **options)
    other = lowcal.audit(
        label.astype(int), f.astype(float), {"g": g, "month": month}, frequency_weight=counts, **options
    )
    np.testing.assert_allclose(one.drift.p_value, other.drift.p_value, rtol=1e-6)


# --- drift -----------------------------------------------------------------------------------------------------


def test_levels_sum_to_one_and_do_not_change_with_later_windows():
    assert sum(level_shares(HORIZON).values()) == pytest.approx(1.0)
    assert sum(level_shares(60).values()) == pytest.approx(1.0)
    assert sum(level_shares(10).values()) < 1.0
    assert all(level_shares(HORIZON)[key] == share for key, share in level_shares(10).items())


def test_errors_and_their_standard_errors_are_those_of_the_rows(drifting):
    y, p, X = made(8, drifted=5)
    for t, name in enumerate(drifting.windows):
        inside = (X["month"] == name) & (X["g"] == "v1")
        j, z = drifting.names.index("g=v1"), (y - p)[inside]
        assert drifting.drift.error[t, j, 0] == pytest.approx(z.mean(), abs=1e-12)
        predicted = np.sqrt((p * (1 - p))[inside].mean() / inside.sum())
        assert drifting.drift.standard_error[t, j, 0] == pytest.approx(predicted, rel=0.06)


def test_an_alarm_looks_at_no_later_window():
    y, p, X = made(8, drifted=5)
    early = X["month"] <= "2024-06"
    whole = lowcal.audit(y, p, X, by="month", random_state=0).drift.p_value
    part = lowcal.audit(y[early], p[early], {k: v[early] for k, v in X.items()}, by="month", random_state=0)
    np.testing.assert_allclose(whole[:6], part.drift.p_value, rtol=1e-9)


def test_a_drift_raises_an_alarm_that_says_since_when(drifting):
    found = [one for one in drifting.alarms if one.subpopulation == "g=v0"]
    assert len(found) == 1
    assert (found[0].window, found[0].since) in {("2024-06", "2024-06"), ("2024-07", "2024-06")}
    assert found[0].gap > 0.15 > 0.05 > abs(found[0].gap_before)
    assert found[0].p_value <= 0.05
    assert drifting.is_failed
    assert drifting.drift.p_value.shape == (8, len(drifting.names), 1)


def test_a_constant_error_is_no_drift():
    y, p, X = made(8)
    wrong = lowcal.audit(y, np.clip(p + 0.15, 0, 1), X, by="month", random_state=0)
    assert wrong.verdict == "violated"
    assert not wrong.alarms
    assert wrong.is_failed


def p_values(y, p, X, **options):
    windows = read_windows(y, p, X, None, "month", None)
    home = open_home(y, p, windows.rest, None, [0, 1], lowcal.Groups(min_mass=0), 0, None, Passes(False), is_fit=False)
    _, panels, shares = windows.panels(home)
    return panels[0].names, Drift(window_sums(panels, shares), **options)


def test_windows_without_a_group_and_without_an_outcome_are_no_alarm():
    rng = np.random.default_rng(0)
    month, n = np.repeat(np.arange(10), 200), 2000
    group = np.where((month == 4) | (rng.random(n) < 0.9), "common", "rare")
    p, y = np.full(n, 0.01), (rng.random(n) < 0.01).astype(int)
    y[group == "rare"] = 0
    names, drift = p_values(y, p, {"g": group, "month": month})
    rare = names.index("g=rare")
    assert np.isnan(drift.error[4, rare, 0])
    assert np.isfinite(np.delete(drift.standard_error[:, rare, 0], 4)).all()
    assert (np.delete(drift.standard_error[:, rare, 0], 4) > 0.01).all()
    assert (drift.p_value > 0.05).all()


def test_a_single_window_has_no_drift():
    y, p, X = made(1)
    report = lowcal.audit(y, p, X, by="month", random_state=0)
    assert not report.alarms
    assert (report.drift.p_value == 1).all()
    assert "nothing before it" in str(report)


def test_several_classes_are_tested_one_by_one():
    rng = np.random.default_rng(0)
    n = 6000
    p = rng.dirichlet([2, 2, 2], n)
    month = np.arange(n) // 1000
    q = np.where((month >= 3)[:, None], 0.6 * p + 0.4 * np.array([1.0, 0, 0]), p)
    y = np.array(["a", "b", "c"])[(rng.random(n)[:, None] > q.cumsum(axis=1)).sum(axis=1).clip(max=2)]
    report = lowcal.audit(y, p, {"month": month}, by="month", random_state=0)
    assert {one.label for one in report.alarms} == {"a", "b", "c"}
    assert next(one for one in report.alarms if one.label == "a").gap > 0.1
    assert "everyone, a: since 3" in str(report)
    assert report.plot(n=3).names[0].startswith("everyone, ")


def test_outcomes_that_are_numbers_have_the_noise_they_show():
    rng = np.random.default_rng(0)
    month, p = np.repeat(np.arange(8), 200), np.full(1600, 0.5)
    y = 0.5 + 0.05 * rng.standard_normal(1600).clip(-3, 3) + 0.04 * (month >= 5)
    report = lowcal.audit(y, p, {"month": month}, by="month", random_state=0)
    assert [one.since for one in report.alarms] == [5]
    np.testing.assert_allclose(report.drift.standard_error[:5], 0.05 / np.sqrt(200), rtol=0.2)


def normal_sums(errors):
    """Return sums of windows whose errors, (K, m), have standard error 1 and no skewness."""
    one = np.ones((*errors.shape, 1))
    return Sums(one, errors[:, :, None], 0 * one, one, one, 0 * one)


def test_false_alarms_are_rare_and_a_drift_of_three_standard_errors_is_found():
    """24 months, 20 groups: normal errors here, labels in benchmarks/monitoring.py."""
    rng = np.random.default_rng(0)
    errors = rng.standard_normal((200, 24, 20))
    # 0.043 of 1,500 runs, which varies by 0.015 over 200
    assert np.mean([(Drift(normal_sums(run)).p_value <= 0.05).any() for run in errors]) <= 0.08
    errors[:, 11:, 0] += 3.0
    found = np.array([Drift(normal_sums(run)).p_value[11:, 0, 0] <= 0.05 for run in errors])
    assert found[:, :3].any(axis=1).mean() > 0.78
    assert found[:, :4].any(axis=1).mean() > 0.84


def test_the_level_goes_to_the_likelier_direction_where_groups_are_near_zero():
    errors = np.zeros((14, 20))
    errors[11:, 0], errors[11:, 1] = 1.0, -1.0
    near = Drift(normal_sums(errors)).contrast(11, 14)
    assert near.rising[0, 0] > 0.6 > 0.5 > near.rising[1, 0]
    np.testing.assert_array_equal(near.rising[2:, 0], 0.5)
    assert near.p_value[0, 0] == pytest.approx(near.p_value[1, 0])
    assert near.p_value[0, 0] < 2.0 * norm.sf(near.score[0, 0])
    far = Drift(normal_sums(errors + np.linspace(-20, 20, 20))).contrast(11, 14)  # so are all groups: no sign of drift
    assert np.abs(far.rising - 0.5).max() < 0.06
    np.testing.assert_allclose(far.score, near.score, atol=1e-9)


def test_a_constant_error_does_not_change_the_level():
    """However far groups are off, no side is tested at more than the level of both: the split is independent."""
    rng = np.random.default_rng(1)
    errors = rng.standard_normal((4000, 14, 1)) + np.where(np.arange(4000) % 2, 0.5, 3.0)[:, None, None]
    p = np.array([Drift(normal_sums(run)).contrast(11, 14).p_value[0, 0] for run in errors])
    assert np.mean(p <= 0.05) == pytest.approx(0.05, abs=0.011)  # three standard errors


# --- what is shown ---------------------------------------------------------------------------------------------


def test_the_text_names_windows_and_alarms(drifting):
    text = str(drifting)
    assert text.startswith("degree-2 at alpha=0.01, 8 windows by month: ")
    assert all(name in text for name in drifting.windows)
    assert "g=v0: since 2024-06, predicted" in text
    assert "the chance of any alarm is at most 5%" in text
    assert max(map(len, text.splitlines())) <= 110


def test_plain_data_are_json_and_complete(drifting):
    data = json.loads(drifting.to_json())
    assert data == json.loads(json.dumps(drifting.to_dict(), default=str))
    assert [one["window"] for one in data["windows"]] == list(drifting.windows)
    assert len(data["drift"]) == drifting.drift.error.size
    assert data["alarms"][0]["since"] == drifting.alarms[0].since
    assert data["seed"] == 0


def test_markdown_and_page_show_every_window_and_alarm(drifting, tmp_path):
    page = drifting.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    for text in (page, drifting.to_markdown()):
        assert all(name in text for name in drifting.windows)
        assert "g=v0" in text
    assert page.count("<svg") == min(12, len(drifting.names))


def test_names_from_data_are_shown_and_not_obeyed():
    y, p, X = made(2)
    X = {"g": np.where(X["g"] == "v0", "<script>alert(1)</script>", "b"), "<i>": np.char.add("<b>", X["month"])}
    report = lowcal.audit(y, p, X, by="<i>", random_state=0)
    for text in (report.to_html(), report.to_markdown()):
        assert "<script" not in text
        assert "<b>" not in text
        assert "<i>" not in text


def test_a_picture_marks_the_alarm(drifting):
    display = drifting.plot(n=3)
    assert isinstance(display, lowcal.DriftDisplay)
    assert display.names[0] == drifting.alarms[0].subpopulation
    assert display.windows[display.raised[0]] == drifting.alarms[0].window
    assert np.all((display.lower <= display.error) & (display.error <= display.upper))
    assert len(display.axes_) == 3
    with pytest.raises(lowcal.InvalidInput, match="axes has 1"):
        drifting.plot(n=3, axes=display.axes_[:1])
    with pytest.raises(lowcal.InvalidInput, match="must be a MonitoringReport"):
        lowcal.DriftDisplay.from_report(drifting.latest)


def test_an_unknown_group_is_refused(drifting):
    with pytest.raises(lowcal.InvalidInput, match="There is no subpopulation 'g=x'"):
        drifting.gaps("g=x")
