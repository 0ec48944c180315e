"""Every target runs at small sizes without torch, writes its files, repeats itself, and goes on from finished parts."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

from experiments import figures, hierarchy, real, rivals, samples
from experiments.experiment import small_settings
from experiments.rivals import Sample
from experiments.targets import run
from lowcal.data.errors import InvalidInput, MissingExtra

SMALL = {"small": True, "cache": False, "progress": False}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    import sklearn.datasets

    def fail(**options):
        raise OSError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fail)
    monkeypatch.delenv("LOWCAL_DATA", raising=False)


def numbers(tree, path=""):
    """Yield every number of a JSON tree with its path."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in items:
        yield from numbers(value, f"{path}/{name}")
    if isinstance(tree, int | float) and not isinstance(tree, bool):
        yield path, float(tree)


def test_figure_1_runs_writes_and_repeats_itself(tmp_path, capsys):
    (result,) = run("figure-1", tmp_path / "one", 2, **SMALL)
    run("figure-1", tmp_path / "two", 2, **SMALL)
    printed = capsys.readouterr().out
    assert printed.count("holds]") + printed.count("does not hold]") == 2 * len(result.claims) == 28
    found, again = (json.loads((tmp_path / k / "figure-1.json").read_text()) for k in ("one", "two"))
    one, two = dict(numbers(found)), dict(numbers(again))
    assert one.keys() == two.keys()
    assert len(one) > 500
    assert all(abs(one[k] - two[k]) <= 1e-6 for k in one)
    assert (tmp_path / "one" / "figure-1.png").stat().st_size > 10_000
    page = (tmp_path / "one" / "figure-1.md").read_text()
    assert all(claim.claim in page and claim.measured in page for claim in result.claims)
    csv = (tmp_path / "one" / "figure-1.csv").read_text().splitlines()
    assert csv[0] == "method,set,metric,update,mean,sd"
    assert len(csv) == 1 + 5 * 2 * 6 * len(found["updates"])
    # the curves start where the network is and the summary is the mean of the parts
    parts = [json.loads((tmp_path / "one" / "parts" / f"figure-1-seed-{s}.json").read_text()) for s in (0, 1)]
    ends = [p["result"]["curves"]["MC2"]["test"]["excess variance"][-1] for p in parts]
    curve = found["curves"]["MC2"]["test"]["excess variance"]
    assert curve["mean"][-1] == pytest.approx(np.mean(ends))
    assert curve["sd"][-1] == pytest.approx(np.std(ends, ddof=1))
    starts = {m: found["curves"][m]["test"]["excess variance"]["mean"][0] for m in found["curves"]}
    assert len(set(starts.values())) == 1


def test_a_rerun_takes_the_finished_parts(tmp_path, capsys, monkeypatch):
    kind = {**SMALL, "progress": True}
    run("samples", tmp_path, 1, **kind)
    monkeypatch.setattr(samples, "one_seed", lambda *args: pytest.fail("a finished part was made again"))
    run("samples", tmp_path, 1, **kind)
    assert capsys.readouterr().err.count("kept from an earlier run") == 2


def test_the_table_has_ours_and_the_peers_that_are_here(tmp_path):
    (result,) = run("table", tmp_path, 1, **SMALL)
    assert {"start", "MA", "MC2", "MC3", "smooth", "MC-full", "isotonic", "temperature", "f*"} <= set(
        result.summary["table"]
    )
    assert result.summary["table"]["f*"]["degree-2 error"]["mean"] == pytest.approx(0.0, abs=1e-12)
    stored = (tmp_path / "table.json").read_text()
    assert "second" not in stored  # the clock does not repeat itself
    assert set(result.seconds["fit, CPU seconds"]) == set(result.summary["table"]) - {"start", "f*"}
    if find_spec("mcgrad") is None:
        assert any("MCGrad is left out" in line for line in result.summary["absent"])
        assert "MCGrad is left out" in result.page


def test_real_data_that_are_absent_are_told(tmp_path):
    (result,) = run("real", tmp_path, 1, data=tmp_path, **SMALL)
    assert set(result.summary["tables"]) == {"adult"}
    assert set(result.summary["absent"]) == set(real.TASKS) - {"adult"}
    assert "bank_marketing is left out: bank_marketing.parquet or bank_marketing.csv was not found" in result.page
    row = result.summary["tables"]["adult"]["MC2"]
    low, value, high = (row[k]["mean"] for k in ("degree-2, at least", "degree-2", "degree-2, at most"))
    assert 0 <= low <= value <= high


def test_examples_are_the_paper_s(tmp_path):
    square, halves, robust = (run(name, tmp_path, 1, **SMALL)[0] for name in ("example-b1", "70-30", "robustness"))
    assert square.name == "counterexample"
    assert [c.holds for c in square.claims] == [True] * 4
    assert square.summary["xnor"]["multiaccurate"]["covariance on x1 = 1"] == pytest.approx(-1 / 12)
    assert [c.holds for c in halves.claims] == [True, False, True]
    assert halves.summary["f*"]["false positive rate"] == pytest.approx(0.3 * 0.7 + 0.7 * 0.3)
    assert halves.summary["f*"]["true positive rate"] == pytest.approx(0.7 * 0.7 + 0.3 * 0.3)
    assert all(c.holds for c in robust.claims)
    eps = 0.01
    # cells [0.4, 0.5) and [0.5, 0.6): in each half the residual is 1/2 - eps, all of one sign
    assert robust.summary[str(eps)]["full-0.1"] == pytest.approx((0.5 - eps) / 2)
    assert robust.summary[str(eps)]["degree-2"] == pytest.approx(
        abs(-((0.5 - eps) ** 2) + (0.5 + eps) * (0.5 - eps)) / 2
    )


def test_the_hierarchy_holds_on_fitted_rows(tmp_path):
    (result,) = run("hierarchy", tmp_path, 1, **SMALL)
    assert [c.holds for c in result.claims] == [True, True]
    fitted = result.summary["classes"]["2"]["fitted"]
    # degree k + 1 contains degree k, whatever was trained
    for row in fitted.values():
        assert row["degree-2"]["mean"] <= row["degree-3"]["mean"] <= row["degree-4"]["mean"] + 1e-15
    broken = {"fitted": {"degree-3": {"degree-2": 0.02, "degree-3": 0.01}}}
    assert not hierarchy.judge(2, [broken]).holds


def test_rows_needed_and_their_verdict():
    curve = {rows: {"mean": mean, "sd": 0.003} for rows, mean in (("250", 0.05), ("500", 0.02), ("1000", 0.01))}
    assert samples.rows_needed(curve) == 500
    assert samples.rows_needed({"250": {"mean": 0.05}}) is None
    curves = {"3": dict.fromkeys(samples.NOTIONS, curve)}
    for own, full, holds in ((500, None, True), (500, 500, True), (500, 250, False), (None, None, False)):
        needed = {"3": {"MA": None, "MC2": own, "smooth": None, "MC-full": full}}
        claim = samples.judge({"needed": needed, "curves": curves})[0]
        assert claim.holds is holds
        if full == 250:
            assert "needed 250 rows" in claim.reason
            assert "MC2 0.0500 ± 0.0030" in claim.reason


def test_wrong_targets_and_seeds_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"Unknown target 'figure-2'.*Did you mean 'figure-1'"):
        run("figure-2", tmp_path)
    with pytest.raises(InvalidInput, match="seeds"):
        run("figure-1", tmp_path, 0)


def test_without_matplotlib_everything_but_the_picture_is_written(tmp_path, monkeypatch):
    def absent(*size):
        raise MissingExtra("no matplotlib")

    for module in (samples, figures):
        monkeypatch.setattr(module, "new_figure", absent)
    run("samples", tmp_path, 1, **SMALL)
    assert not list(tmp_path.glob("*.png"))
    assert (tmp_path / "samples.json").exists()


# --- rivals ----------------------------------------------------------------------------------------------------------
def sample(n=400, n_classes=2, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, n_classes))
    true = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    sharp = true**3 / (true**3).sum(axis=1, keepdims=True)
    y = (rng.random(n)[:, None] > np.cumsum(true, axis=1)).sum(axis=1)
    columns = {"g": np.array(["a", "b"], dtype=object)[rng.integers(2, size=n)], "x": rng.normal(size=n)}
    return Sample(columns, columns, y, sharp[:, 1] if n_classes == 2 else sharp), true


@pytest.mark.parametrize("n_classes", [2, 3])
def test_temperature_finds_the_cube_and_isotonic_keeps_probabilities(n_classes):
    (train, _), (test, true) = sample(4000, n_classes), sample(500, n_classes, seed=1)
    model = rivals.Temperature(train, test)
    model.fit()
    assert np.exp(model.log_t) == pytest.approx(3.0, abs=0.3)
    found = model.predict()
    assert np.abs(found - (true[:, 1] if n_classes == 2 else true)).max() < 0.06
    curves = rivals.isotonic(train, test)
    curves.fit()
    p = curves.predict()
    assert p.shape == test.p.shape
    assert np.all((p >= 0) & (p <= 1))
    if n_classes > 2:
        assert np.allclose(p.sum(axis=1), 1.0)


@pytest.mark.parametrize(("name", "package"), [("MCGrad", "mcgrad"), ("HKRR", "multicalibration")])
def test_peers_run_where_they_are_installed(name, package):
    pytest.importorskip(package, reason="in the extra [peers]")
    (train, _), (test, _) = sample(600), sample(200, seed=1)
    found, seconds = rivals.fit_and_predict(rivals.PEERS[name][0], train, test, 1)
    assert found.shape == (200,)
    assert np.all((found >= 0) & (found <= 1))
    assert seconds > 0


@pytest.mark.slow
def test_the_paper_s_claims_with_torch(tmp_path):
    pytest.importorskip("torch", reason="torch is in the extra [experiments]")
    (result,) = run("figure-1", tmp_path, 2, engine="torch", cache=tmp_path / "cache", progress=False)
    assert all(claim.holds for claim in result.claims if claim.source != "ours")


def test_small_settings_can_be_changed():
    assert small_settings(updates=3).updates == 3
