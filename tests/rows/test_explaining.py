"""Explanations: contributions sum to the change, for every class, geometry and kind of weight, one row at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

import lowcal
from lowcal import Groups, Intersections, Linear, Memberships, Predictor, Regressor, Thresholds, Trees
from lowcal.data.errors import InvalidInput, MissingColumn
from lowcal.data.frames import Table
from lowcal.kernels.simplex import scores
from lowcal.rows.explaining import LIMITS, MOST_SHOWN, SCORE, Explanation, explain_rows
from lowcal.rows.updates import Term, Update

N = 600
NAMES = ("sex", "age", "city")


@cache
def people(n_classes: int = 2) -> tuple[Any, Any, dict[str, Any]]:
    rng = np.random.default_rng(0)
    sex, city = rng.choice(["F", "M"], N), rng.choice(["Oslo", "Rome", "Bern"], N)
    age = rng.integers(18, 80, N).astype(float)
    age[::20] = np.nan
    X = {"sex": sex, "age": age, "city": city}
    truth = np.clip(0.3 + 0.3 * (city == "Rome") - 0.2 * (sex == "F") + 0.2 * (age > 50), 0.02, 0.98)
    if n_classes == 2:
        return (rng.random(N) < truth).astype(int), np.clip(0.5 + 0.3 * rng.normal(size=N), 0.01, 0.99), X
    y = np.array(["a", "b", "c"])[(rng.random(N) * 3 * truth).astype(int) % 3]
    return y, rng.dirichlet(np.ones(3), N), X


CLASSES = {
    "groups": Groups(),
    "intersections": Intersections(min_mass=10),
    "thresholds": Thresholds("age"),
    "trees": Trees(max_depth=2),
    "sums of trees": Trees(max_depth=3, n_trees=8),
    "linear": Linear(),
    "union": Groups(["sex"]) + Trees(max_depth=2, n_trees=4) + Thresholds("age"),
    "regressor": Regressor(DecisionTreeRegressor(max_depth=2, random_state=0)),
}
KINDS = [
    *((name, geometry, "degree-2", n) for name in CLASSES for geometry in ("mirror", "euclidean") for n in (2, 3)),
    *(("groups", geometry, notion, 2) for geometry in ("mirror", "euclidean") for notion in ("full-0.25", "smooth")),
    ("groups", "mirror", "full-0.5", 3),
]


@cache
def fitted(name: str, geometry: str = "mirror", notion: str = "degree-2", n_classes: int = 2) -> Predictor:
    return lowcal.multicalibrate(
        *people(n_classes),
        subpopulations=CLASSES[name],
        geometry=geometry,  # type: ignore[arg-type]
        notion=notion,
        alpha=1e-3,
        max_updates=4,
        guard=False,
    ).predictor


@cache
def recalibrated(n_classes: int = 2) -> Predictor:
    return lowcal.recalibrate(*people(n_classes), random_state=0).predictor


def row_of(k: int, X: dict[str, Any] | None = None) -> dict[str, Any]:
    return {name: column[k] for name, column in (X or people()[2]).items()}


def stands_at(p: Any, scale: str) -> np.ndarray:
    """Where a prediction stands: by definition, apart from the code under test."""
    p = np.atleast_1d(p)
    if scale == "probability":
        return p
    z = scores(p[None])[0]
    return z if len(z) == 1 else z - z.mean()


def check(predictor: Predictor, p: Any, row: Any) -> Explanation:
    """Check that contributions lead from the start to the end, which is the prediction."""
    found = predictor.explain(p, row)
    assert found.start == pytest.approx(p, abs=1e-12)
    assert found.end == pytest.approx(predictor.one(p, row), abs=1e-12)
    change = stands_at(found.end, found.scale) - stands_at(found.start, found.scale)
    added = np.sum([np.atleast_1d(one.value) for one in found.contributions], axis=0)
    assert np.abs(added - change).max() <= 1e-12
    names = [one.name for one in found.contributions]
    assert len(set(names)) == len(names)
    sizes = [np.abs(one.value).max() for one in found.contributions if one.name != LIMITS]
    assert sizes == sorted(sizes, reverse=True)
    if names:
        assert found.contributions[-1].after == pytest.approx(found.end, abs=1e-9)
    return found


# --- sums ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "geometry", "notion", "n_classes"), KINDS)
def test_contributions_sum_to_the_change(name: str, geometry: str, notion: str, n_classes: int) -> None:
    predictor = fitted(name, geometry, notion, n_classes)
    _, p, X = people(n_classes)
    for k in range(0, N, 60):
        found = check(predictor, p[k].tolist(), row_of(k, X))
        if name not in ("sums of trees", "union"):  # boosted trees keep their own geometry
            assert found.scale == ("log odds" if geometry == "mirror" else "probability")


@pytest.mark.parametrize("n_classes", [2, 3])
def test_those_of_recalibrate_do_too(n_classes: int) -> None:
    predictor = recalibrated(n_classes)
    _, p, X = people(n_classes)
    assert len(predictor) > 0
    for k in range(0, N, 60):
        check(predictor, p[k].tolist(), row_of(k, X))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from([*(name for name in CLASSES if name != "regressor"), "recalibrated"]),
    geometry=st.sampled_from(["mirror", "euclidean"]),
    p=st.floats(0.0, 1.0) | st.sampled_from([0.0, 1.0, 1e-12, 1.0 - 1e-12, 1e-300]),
    sex=st.sampled_from(["F", "M", "?", None]),
    age=st.floats(allow_nan=True, allow_infinity=True) | st.none(),
    city=st.sampled_from(["Oslo", "Rome", "Paris", None]),
)
def test_any_row_and_probability(name: str, geometry: str, p: float, sex: Any, age: Any, city: Any) -> None:
    predictor = recalibrated() if name == "recalibrated" else fitted(name, geometry)
    check(predictor, p, {"sex": sex, "age": age, "city": city})


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["groups", "sums of trees", "union"]),
    geometry=st.sampled_from(["mirror", "euclidean"]),
    weights=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3).filter(lambda w: sum(w) > 1e-6),
    k=st.integers(0, N - 1),
)
def test_any_distribution(name: str, geometry: str, weights: list[float], k: int) -> None:
    p = (np.array(weights) / sum(weights)).tolist()
    found = check(fitted(name, geometry, n_classes=3), p, row_of(k, people(3)[2]))
    for one in found.contributions:
        assert abs(sum(one.value)) < 1e-9  # type: ignore[arg-type]


def test_memberships_count_by_their_share() -> None:
    rng = np.random.default_rng(0)
    C = rng.random((N, 3)).round(3)
    y, p, _ = people()
    predictor = lowcal.multicalibrate(
        y, p, C, subpopulations=Memberships(("a", "b", "c")), alpha=1e-4, guard=False, max_updates=3
    ).predictor
    for k in range(0, N, 60):
        found = check(predictor, float(p[k]), C[k].tolist())
        assert {one.name for one in found.contributions} <= {"a", "b", "c", SCORE}
    nobody = check(predictor, 0.3, [0.0, 0.0, 0.0])
    assert {one.name for one in nobody.contributions} <= {SCORE}


def test_a_saved_model_explains_as_before(tmp_path: Path) -> None:
    for predictor in (fitted("groups"), fitted("sums of trees"), fitted("union", n_classes=3), recalibrated()):
        lowcal.save(predictor, tmp_path / "m.json")
        p: Any = 0.3 if predictor.layout.d == 1 else [0.2, 0.5, 0.3]
        assert lowcal.load(tmp_path / "m.json").explain(p, row_of(1)) == predictor.explain(p, row_of(1))


# --- what is named ------------------------------------------------------------------------------------------------


def test_groups_are_named_and_all_that_depends_on_the_score_alone_is_the_score() -> None:
    found = check(fitted("groups"), 0.3, {"sex": "F", "age": None, "city": "Rome"})
    assert {one.name for one in found.contributions} == {SCORE, "sex=F", "city=Rome", "age is missing"}


def test_an_unseen_row_gets_the_score_alone() -> None:
    found = check(fitted("groups"), 0.3, {"sex": "?", "age": None, "city": "Paris"})
    assert not {one.name for one in found.contributions} & {"sex=F", "sex=M", "city=Rome"}


def test_trees_of_a_sum_are_named_by_the_columns_that_lead_to_the_leaf() -> None:
    predictor = fitted("sums of trees")
    every = [one.name for k in range(20) for one in check(predictor, 0.4, row_of(k)).contributions]
    trees = [name.removeprefix("trees: ").split(", ") for name in every if name.startswith("trees: ")]
    assert trees
    assert all(set(columns) <= set(NAMES) and len(set(columns)) == len(columns) for columns in trees)
    assert set(every) <= {SCORE, "trees", *(f"trees: {', '.join(columns)}" for columns in trees)}


def test_a_sum_of_trees_beyond_its_scale_is_shrunk_and_still_exact() -> None:
    predictor = fitted("sums of trees")
    (term,) = predictor.updates[-1].terms
    small = replace(term, family=replace(term.family, scale=1e-3))  # type: ignore[type-var]
    found = check(replace(predictor, updates=(Update((small,), "mirror"),)), 0.4, row_of(0))
    size = float(np.abs(term.theta).sum())
    assert abs(sum(one.value for one in found.contributions)) == pytest.approx(size)  # type: ignore[misc]


def test_thresholds_of_a_column_are_one_contribution() -> None:
    found = check(fitted("thresholds", "euclidean"), 0.4, row_of(0))
    assert {one.name for one in found.contributions} <= {SCORE, "thresholds: age", LIMITS}


def test_clipping_is_a_contribution_of_its_own_and_the_last() -> None:
    everyone = fitted("groups").updates[0].terms[0]
    up = Term(everyone.family, everyone.weights[:1], np.full((len(everyone.family.names), 1, 1), 0.9))
    predictor = replace(fitted("groups"), updates=(Update((up,), "euclidean"), Update((up,), "euclidean")))
    found = check(predictor, 0.3, row_of(0))
    assert found.scale == "probability"
    assert found.contributions[-1].name == LIMITS
    assert found.end == 1.0
    assert all(0.0 <= one.after <= 1.0 for one in found.contributions)  # type: ignore[operator]


def test_mixed_geometries_are_explained_in_log_odds_with_the_euclidean_updates_as_a_whole() -> None:
    log_odds, probability = fitted("groups"), fitted("groups", "euclidean")
    mixed = replace(log_odds, updates=(*log_odds.updates[:1], *probability.updates[:1], Update((), "euclidean")))
    found = check(mixed, 0.3, row_of(0))
    assert found.scale == "log odds"
    assert "update 2" in {one.name for one in found.contributions}
    assert "update 3" not in {one.name for one in found.contributions}


def test_without_updates_nothing_changes() -> None:
    found = check(fitted("groups")[:0], 0.3, row_of(0))
    assert found.contributions == ()
    assert str(found) == "0.30 stayed 0.30."
    assert found.why() == "no change"


# --- one row alone ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_only_the_row_itself_is_evaluated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the time does not depend on how many rows were fitted: no step sees more than one."""
    predictor, seen = fitted(name), []
    move, encode = Update.__call__, Predictor.rows
    monkeypatch.setattr(Update, "__call__", lambda self, p, rows: seen.append(len(p)) or move(self, p, rows))
    monkeypatch.setattr(Predictor, "rows", lambda self, p, X: seen.append(X.n_rows) or encode(self, p, X))
    predictor.explain(0.3, row_of(0))
    assert seen == [1] * (1 + len(predictor))


def test_a_table_is_explained_row_by_row_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowcal.rows.explaining.PIECE", 7)
    _, p, X = people()
    predictor = recalibrated()
    some = {name: column[:20] for name, column in X.items()}
    found = list(explain_rows(predictor, p[:20, None], Table.of(some)))
    assert [one.end for one in found] == pytest.approx(predictor(p[:20], some).tolist(), abs=1e-12)
    for k, one in enumerate(found):
        alone = predictor.explain(float(p[k]), row_of(k))
        assert [c.name for c in one.contributions] == [c.name for c in alone.contributions]
        assert [c.value for c in one.contributions] == pytest.approx([c.value for c in alone.contributions], abs=1e-12)


# --- what is shown ------------------------------------------------------------------------------------------------


def test_the_table_is_short_and_says_what_changed() -> None:
    found = recalibrated().explain(0.3, row_of(0))
    head, blank, *lines = str(found).split("\n")
    assert head == f"0.30 became {found.end:.2f}."
    assert blank == ""
    assert lines[0].strip() == "Added to the log odds  Probability"
    assert lines[-1].split()[0] == "sum"
    assert float(lines[-1].split()[1]) == pytest.approx(sum(c.value for c in found.contributions), abs=1e-4)  # type: ignore[misc]
    assert len(lines) <= MOST_SHOWN + 3
    assert len({len(line) for line in lines}) == 1


def test_others_are_shown_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowcal.rows.explaining.MOST_SHOWN", 1)
    found = fitted("groups").explain(0.3, row_of(0))
    text = str(found)
    assert f"  {len(found.contributions) - 1} others" in text
    assert len(text.split("\n")) == 2 + 4


def test_several_classes_have_a_column_each() -> None:
    found = fitted("groups", n_classes=3).explain([0.2, 0.5, 0.3], row_of(0))
    head, _, names, *_ = str(found).split("\n")
    assert head.startswith("a: 0.20 became ")
    assert names.split()[-3:] == ["a", "b", "c"]
    assert found.why(1).endswith(("(a)", "(b)", "(c)"))
    assert found.to_dict()["classes"] == ["a", "b", "c"]


def test_plain_data() -> None:
    for n_classes, p in ((2, 0.3), (3, [0.2, 0.5, 0.3])):
        found = fitted("groups", n_classes=n_classes).explain(p, row_of(0))  # type: ignore[arg-type]
        data = json.loads(json.dumps(found.to_dict()))
        assert data["scale"] == "log odds"
        assert data["start"] == pytest.approx(p)
        assert [one["name"] for one in data["contributions"]] == [one.name for one in found.contributions]


def test_why_has_the_largest_in_words() -> None:
    found = fitted("groups").explain(0.3, row_of(0))
    first, second = found.contributions[:2]
    assert found.why(2) == f"{first.name} {first.value:+.2f}; {second.name} {second.value:+.2f}"


def test_names_from_the_data_do_not_reach_the_terminal_raw() -> None:
    one = replace(fitted("groups").explain(0.3, row_of(0)).contributions[0], name="a\x1b[2J\n")
    found = Explanation(0.3, 0.4, "log odds", (one,))
    assert "\x1b" not in str(found) + found.why()


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "row", "error", "words"),
    [
        (0.3, {"sex": "F", "age": 3.0}, MissingColumn, "no value for the column 'city'"),
        (1.3, row_of(0), InvalidInput, "outside \\[0, 1\\]"),
        (float("nan"), row_of(0), InvalidInput, "p is nan"),
        ([0.2, 0.3, 0.5], row_of(0), InvalidInput, "p must have shape"),
        (0.3, people()[2], InvalidInput, "explain takes one row, but 'sex' holds several values"),
        (0.3, pd.DataFrame(people()[2]), InvalidInput, "explain takes one row, but 'sex' holds several values"),
        (0.3, ["F", 3.0], InvalidInput, "The row has 2 values, but 3 columns are read"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(p: Any, row: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fitted("groups").explain(p, row)
