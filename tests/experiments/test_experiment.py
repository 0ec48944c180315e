"""The experiment's metrics, recomputed by loops; the verdicts, on curves whose answer is known."""

import numpy as np
import pytest

from experiments import figure_1, table
from experiments.experiment import Judge, Rows, draw_rows, small_settings


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    f_star = 1 / (1 + np.exp(-X[:, 0]))
    p = 1 / (1 + np.exp(-3 * X[:, 0] - X[:, 1]))
    y = (rng.random(80) < f_star).astype(np.int64)
    return Rows(X, {}, y, p, f_star)


def test_metrics_are_suprema_over_the_members(rows):
    judge = Judge(rows)
    found, C, n = judge(rows.p), judge.members(rows.p), len(rows.p)
    members = [np.ones(n), *C.T]
    gap = rows.f_star - rows.p
    signed = [abs(sum((2 * c - 1) * gap) / n) for c in members]
    assert found["multiaccuracy error"] == pytest.approx(max(signed), abs=1e-12)
    excess = []
    for c in members:
        spread = [np.average((v - np.average(v, weights=c)) ** 2, weights=c) for v in (rows.p, rows.f_star)]
        excess.append(c.mean() * (spread[0] - spread[1]))
    assert found["excess variance"] == pytest.approx(max(excess), abs=1e-12)
    two = [abs(sum(c * w * gap) / n) for c in members for w in (1, rows.p)]
    assert found["degree-2 error"] == pytest.approx(max(two), abs=1e-12)
    assert found["squared distance"] == pytest.approx(sum(gap**2) / n)
    assert found["Brier score"] == pytest.approx(sum((rows.y - rows.p) ** 2) / n)
    loss = -np.mean([np.log(p if y else 1 - p) for y, p in zip(rows.y, rows.p, strict=True)])
    assert found["log loss"] == pytest.approx(loss)


def test_the_members_are_sigmoids_with_their_complements_and_the_learned_ones_matter(rows):
    judge = Judge(rows)
    C = judge.members(rows.p)
    half = C.shape[1] // 2
    assert np.allclose(C[:, :half] + C[:, half:], 1.0)
    inner = C[:, :half][:, np.all((C[:, :half] > 1e-9) & (C[:, :half] < 1 - 1e-9), axis=0)]
    assert inner.shape[1] > 40
    scores = np.log(inner / (1 - inner))
    A = np.column_stack([rows.X, np.ones(len(rows.X))])
    fitted = A @ np.linalg.lstsq(A, scores, rcond=None)[0]
    assert np.allclose(fitted, scores, atol=1e-5)  # each is a sigmoid of a linear function of the features
    assert half == judge.known.shape[1] + 3  # one learned for each direction
    random_only = max(abs(np.mean((2 * c - 1) * (rows.f_star - rows.p))) for c in judge.known.T)
    assert judge(rows.p)["multiaccuracy error"] > 1.2 * random_only


def test_the_truth_has_no_error(rows):
    found = Judge(rows)(rows.f_star)
    for metric in ("multiaccuracy error", "excess variance", "degree-2 error", "squared distance"):
        assert found[metric] == pytest.approx(0.0, abs=1e-12)


def test_the_three_sets_of_a_seed_are_independent_and_repeatable():
    settings = small_settings()
    train, test = draw_rows(settings, 0)
    again, _ = draw_rows(settings, 0)
    other, _ = draw_rows(settings, 1)
    assert len(train.y), len(test.y) == (settings.train, settings.test)
    assert np.array_equal(train.p, again.p)
    assert not np.array_equal(train.X, test.X[: len(train.y)])
    assert not np.array_equal(train.X, other.X)
    # long training on few rows: more certain than the truth
    assert test.p.var() > test.f_star.var()


# --- verdicts --------------------------------------------------------------------------------------------------------
def curve(start, middle, end, sd=0.001):
    values = [start, middle, end]
    return {"mean": values, "sd": [sd] * 3, "ends": [end - sd, end + sd], "starts": [start, start]}


def summary_of(ma, mc2, full, whole_two=0.01):
    """Return a summary from (multiaccuracy error, excess variance) curves of the three methods."""
    curves = {
        name: {part: {"multiaccuracy error": curve(*one), "excess variance": curve(*two)} for part in ("train", "test")}
        for name, (one, two) in {"MA": ma, "MC2": mc2, "MC-full": full}.items()
    }
    whole = {
        name: {"10": {"multiaccuracy error": {"mean": 0.04, "sd": 0.0}, "excess variance": {"mean": value, "sd": 0.0}}}
        for name, value in (("MA", 0.03), ("MC2", whole_two), ("MC-full", 0.06))
    }
    return {"updates": [0, 5, 10], "curves": curves, "whole steps": whole}


AS_IN_THE_PAPER = summary_of(
    ((0.06, 0.04, 0.04), (0.05, 0.04, 0.03)),
    ((0.06, 0.04, 0.04), (0.05, 0.005, 0.01)),
    ((0.06, 0.04, 0.05), (0.05, 0.01, 0.06)),
)


def test_curves_as_in_the_paper_satisfy_every_claim():
    assert all(claim.holds for claim in figure_1.judge(AS_IN_THE_PAPER))


@pytest.mark.parametrize(
    ("worse", "claim"),
    [
        ({"ma": ((0.06, 0.06, 0.07), (0.05, 0.04, 0.03))}, "MA lowers the multiaccuracy error"),
        ({"mc2": ((0.06, 0.04, 0.04), (0.05, 0.03, 0.03))}, "MC2 can cut the excess variance"),
        ({"mc2": ((0.06, 0.04, 0.04), (0.05, 0.005, 0.016))}, "MC2 keeps the excess variance low"),
        (
            {"mc2": ((0.06, 0.04, 0.04), (0.05, 0.005, 0.061))},
            "At the end MC2 has at most the excess variance of MC-full",
        ),
        ({"mc2": ((0.06, 0.04, 0.055), (0.05, 0.005, 0.01))}, "At the end MC-full has a larger multiaccuracy error"),
        ({"mc2": ((0.06, 0.04, 0.065), (0.05, 0.005, 0.01))}, "MC2 does not harm"),
        (
            {"mc2": ((0.06, 0.04, 0.045), (0.05, 0.005, 0.01))},
            "On test rows MC2's multiaccuracy error is as low as MA's",
        ),
        ({"full": ((0.06, 0.05, 0.05), (0.05, 0.01, 0.06))}, "On test rows MC-full overfits: its multiaccuracy error"),
        ({"full": ((0.06, 0.04, 0.05), (0.05, 0.02, 0.02))}, "On test rows MC-full overfits: its excess variance"),
        ({"full": ((0.06, 0.04, 0.05), (0.05, 0.03, 0.06))}, "MC-full can cut the excess variance"),
        ({"whole_two": 0.0151}, "With whole steps too, after 10 updates"),
    ],
)
def test_a_claim_that_fails_is_told(worse, claim):
    good = {
        "ma": ((0.06, 0.04, 0.04), (0.05, 0.04, 0.03)),
        "mc2": ((0.06, 0.04, 0.04), (0.05, 0.005, 0.01)),
        "full": ((0.06, 0.04, 0.05), (0.05, 0.01, 0.06)),
    }
    claims = figure_1.judge(summary_of(**{**good, **worse}))
    (found,) = [c for c in claims if c.claim.startswith(claim)]
    assert not found.holds
    assert found.verdict == "does not hold"


def test_a_peer_beats_ours_only_beyond_a_deviation():
    def metrics(error, sd=0.002):
        return {m: {"mean": error, "sd": sd} for m in table.COLUMNS}

    methods = {name: metrics(0.02) for name in ("start", "MA", "MC3", "smooth", "MC-full")}
    summary = {"table": {**methods, "MC2": metrics(0.010), "MC2, groups": metrics(0.011)}}
    assert table.best(summary) == "MC2"
    for error, holds in ((0.0081, True), (0.0079, False)):
        summary["table"]["rival"] = metrics(error)
        claims = [c for c in table.judge(summary) if " MC2 on " in c.claim]
        assert len(claims) == 2
        assert all(c.holds is holds for c in claims)
    for time, holds in ((0.061, False), (0.059, True)):
        seconds = {"MC2": {"mean": time}, "MC2, groups": {"mean": 0.05}, "rival": {"mean": 0.6}}
        assert [c.holds for c in table.judge_seconds(summary, seconds)] == [holds]
    summary["table"]["MC2, groups"] = metrics(0.009)
    assert table.best(summary) == "MC2, groups"


@pytest.mark.parametrize(("ends", "holds"), [([0.041, 0.047], True), ([0.043, 0.045], False)])
def test_as_accurate_means_within_one_deviation_of_the_difference(ends, holds):
    summary = summary_of(
        ((0.06, 0.04, 0.04), (0.05, 0.04, 0.03)),
        ((0.06, 0.04, 0.04), (0.05, 0.005, 0.01)),
        ((0.06, 0.04, 0.05), (0.05, 0.01, 0.06)),
    )
    summary["curves"]["MA"]["test"]["multiaccuracy error"]["ends"] = [0.04, 0.04]
    summary["curves"]["MC2"]["test"]["multiaccuracy error"]["ends"] = ends
    (claim,) = [c for c in figure_1.judge(summary) if "as low as MA's" in c.claim]
    assert claim.holds is holds
