"""The checks for users' own notions and classes: ours pass them, and every rule catches a mistake made on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

import lowcal
from lowcal.data.frames import Table
from lowcal.kernels.reference import Matrix
from lowcal.notions import Suprema, Witness
from lowcal.notions.weights import Monomial
from lowcal.subpopulations import Everyone, Subpopulations, WeakLearner
from lowcal.testing import CheckFailed, check_notion, check_subpopulations, notion_checks, subpopulation_checks
from lowcal.testing.subpopulations import draw_table

OURS = ("multiaccuracy", "degree-1", "degree-2", "degree-3", "degree-4", "smooth", "full-0.1", "full-0.3")
RNG = np.random.default_rng(0)
NUMBERS = ["age", "score", "count"]
UNIT = RNG.random((240, 3))
BITS = (RNG.random((240, 9)) < 0.4).astype(float)
CLASSES = {
    "groups": (lowcal.Groups(), None),
    "intersections": (lowcal.Intersections(["group", "age", "member"]), None),
    "thresholds": (lowcal.Thresholds(["age", "score"]), None),
    "memberships": (lowcal.Memberships(), UNIT),
    "0/1 memberships": (lowcal.Memberships(min_mass=0), BITS),
    "sparse memberships": (lowcal.Memberships(), sparse.csr_array(BITS)),
    "trees": (lowcal.Trees(), None),
    "trees on an array": (lowcal.Trees(max_depth=2, min_mass=5), UNIT),
    "linear": (lowcal.Linear(), None),
    "tree regressor": (lowcal.Regressor(DecisionTreeRegressor(max_depth=3, random_state=0)), None),
    "ridge": (lowcal.Regressor(Ridge()), None),
    "neighbours": (lowcal.Regressor(KNeighborsRegressor()), None),
    "union": (lowcal.Groups("group") + lowcal.Thresholds("score"), None),
    "mixed union": (lowcal.Groups("group") + lowcal.Trees(max_depth=2), None),
    "union of learners": (lowcal.Linear() + lowcal.Trees(), None),
}


@pytest.mark.parametrize("notion", OURS)
def test_our_notions_keep_the_rules(notion: str) -> None:
    check_notion(lowcal.parse_notion(notion))


@pytest.mark.parametrize("notion", ["degree-1", "degree-2", "degree-3", "full-0.3"])
def test_our_notions_keep_the_rules_with_four_classes(notion: str) -> None:
    check_notion(notion, n_classes=[4], random_state=5)


@pytest.mark.slow
@pytest.mark.parametrize("notion", OURS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_our_notions_keep_the_rules_on_many_samples(notion: str, seed: int) -> None:
    check_notion(notion, n_classes=(2, 3, 4), random_state=seed)


@pytest.mark.parametrize("name", CLASSES)
def test_our_classes_keep_the_rules(name: str) -> None:
    kind, X = CLASSES[name]
    check_subpopulations(kind, X)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seed", range(1, 11))
def test_our_classes_keep_the_rules_for_many_seeds(name: str, seed: int) -> None:
    kind, X = CLASSES[name]
    check_subpopulations(kind, X, random_state=seed)


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_tables_of_any_backend_are_taken(backend: str) -> None:
    columns = lowcal.datasets.make_miscalibrated(200, n_columns=2, random_state=0).X
    lists = {name: column.tolist() for name, column in columns.items()}
    check_subpopulations(lowcal.Groups(), nw.from_dict(lists, backend=backend).to_native())


# --- mistakes in a notion ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """A notion of ours with one method replaced: `method` is called with the right answer and the arguments."""

    inner: lowcal.Notion
    method: str
    change: Callable[..., Any]

    def _answer(self, method: str, *arguments: Any) -> Any:
        right = getattr(self.inner, method)(*arguments)
        return self.change(right, *arguments) if method == self.method else right

    def __str__(self) -> str:
        return self.change(str(self.inner)) if self.method == "__str__" else "wrong"

    def gain(self, d: int) -> Any:
        return self._answer("gain", d)

    def basis(self, p: np.ndarray, alpha: float) -> Any:
        return self._answer("basis", p, alpha)

    def tolerance(self, p: np.ndarray, alpha: float) -> Any:
        return self._answer("tolerance", p, alpha)

    def probes(self, d: int) -> Any:
        return self._answer("probes", d)

    def features(self, p: np.ndarray) -> Any:
        return self._answer("features", p)

    def suprema(self, p: np.ndarray, rho: np.ndarray, design: Any, alpha: float | None = None) -> Any:
        return self._answer("suprema", p, rho, design, alpha)


def wrong(method: str, change: Callable[..., Any], notion: str = "degree-2") -> Wrong:
    return Wrong(lowcal.parse_notion(notion), method, change)


def times(factor: float) -> Callable[..., Suprema]:
    """A supremum that is `factor` times too large, with a witness that shows it."""

    def change(found: Suprema, *arguments: Any) -> Suprema:
        return Suprema(factor * found.value, factor * found.upper, found.basis, scaled(found.witness, factor))

    return change


def scaled(witness: Callable[[int], Witness], factor: float) -> Callable[[int], Witness]:
    return lambda j: Witness(witness(j).weights, factor * witness(j).coefficients)


def figures(**changes: Callable[[Suprema], Any]) -> Callable[..., Suprema]:
    """Suprema with some of their figures changed."""
    return lambda found, *arguments: replace(found, **{name: change(found) for name, change in changes.items()})


def both(change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Suprema]:
    return figures(value=lambda f: change(f.value), upper=lambda f: change(f.upper))


def on_rows(weigh: Callable[[int], float]) -> Callable[..., Suprema]:
    return lambda found, p, *rest: both(lambda v: v * weigh(len(p)))(found)


def one_sided(found: Suprema, p: np.ndarray, rho: np.ndarray, design: Any, alpha: float | None) -> Suprema:
    """The largest POSITIVE violation of a monomial: the absolute value is forgotten."""
    value = np.maximum(0, np.max([design.moments(u(p)[:, None] * rho).max(axis=1) for u in (Monomial(),)], axis=0))
    return Suprema(value, value, value, found.witness)


def by_position(found: Suprema, p: np.ndarray, rho: np.ndarray, design: Any, alpha: float | None) -> Suprema:
    first = lowcal.Multiaccuracy().suprema(p[:1], rho[:1], design.rows(slice(0, 1)))
    return figures(upper=lambda f: np.maximum(f.upper, first.value * 10))(found)


def overwriting(found: Suprema, p: np.ndarray, rho: np.ndarray, design: Any, alpha: float | None) -> Suprema:
    rho *= 0.5
    return found


def array_only(found: Suprema, p: np.ndarray, rho: np.ndarray, design: Any, alpha: float | None) -> Suprema:
    np.linalg.norm(design.matrix)
    return found


def lame(found: Suprema, p: np.ndarray, *rest: Any) -> Suprema:
    """Right on small samples; on larger ones the witness points nowhere."""
    return replace(found, witness=scaled(found.witness, 0.0)) if len(p) > 100 else found


def stuck(found: Suprema, p: np.ndarray, *rest: Any) -> Suprema:
    """Right on small samples; on larger ones no recalibration lowers it."""
    return both(lambda v: np.maximum(v, 0.2))(found) if len(p) > 100 else found


class Forgetful:
    """Counts its calls, and answers by the count."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, found: Suprema, *arguments: Any) -> Suprema:
        self.calls += 1
        return both(lambda v: v * (1 + 0.1 * self.calls))(found)


class Double:
    def __call__(self, p: np.ndarray) -> np.ndarray:
        return 2 * p[:, 0]

    def __str__(self) -> str:
        return "twice p0"


class Eightfold:
    def __call__(self, p: np.ndarray) -> np.ndarray:
        return np.full(len(p), 8.0)


NOTION_MISTAKES = [
    ("it_follows_the_protocol", lowcal.LowDegree, "The class itself was given. Give an instance"),
    ("it_follows_the_protocol", 3, "It has no method gain, basis, tolerance, probes, features, suprema"),
    ("it_follows_the_protocol", wrong("__str__", lambda right: " "), r"str\(notion\) is ' '"),
    ("it_follows_the_protocol", wrong("__str__", lambda right: object().__repr__()), "Write __str__"),
    ("it_follows_the_protocol", wrong("gain", lambda right, d: 0.0), r"gain\(1\) is 0.0, not a number in \(0, 1\]"),
    ("it_follows_the_protocol", wrong("gain", lambda right, d: 1.5), r"gain\(1\) is 1.5"),
    ("it_follows_the_protocol", wrong("gain", lambda right, d: "all"), r"gain\(1\) is 'all'"),
    ("weights_lie_in_the_unit_interval", wrong("basis", lambda right, *a: (Double(),)), "twice p0, takes values from"),
    ("weights_lie_in_the_unit_interval", wrong("probes", lambda right, d: (lambda p: -p[:, 0],)), "from -1 to"),
    ("weights_lie_in_the_unit_interval", wrong("features", lambda right, p: (lambda p: p,)), "one number for each row"),
    (
        "weights_lie_in_the_unit_interval",
        wrong("features", lambda right, p: (lambda p: p[:, 0] / 0 * 0,)),
        "values from",
    ),
    ("weights_lie_in_the_unit_interval", wrong("basis", lambda right, *a: ()), r"basis\(p, 0.2\) is empty"),
    ("weights_lie_in_the_unit_interval", wrong("probes", lambda right, d: ()), r"probes\(1\) is empty"),
    ("it_follows_the_protocol", wrong("tolerance", lambda right, p, alpha: 0.0), r"tolerance\(p, 0.2\) is 0.0"),
    ("it_follows_the_protocol", wrong("tolerance", lambda right, p, alpha: 2 * alpha), "is 0.4, not in"),
    # the paper's claim that the monomials imply the class at the same alpha (spec 9.c), and others like it
    (
        "tolerance_implies_the_class",
        wrong("tolerance", lambda right, p, alpha: alpha),
        "3 classes.*it must be at most about",
    ),
    ("tolerance_implies_the_class", wrong("tolerance", lambda right, p, alpha: alpha, "full-0.3"), "2 classes"),
    ("tolerance_implies_the_class", wrong("tolerance", lambda right, p, alpha: alpha, "smooth"), "supremum is 0.2"),
    ("tolerance_implies_the_class", wrong("tolerance", lambda right, p, alpha: alpha, "degree-3"), "above 0.2"),
    ("suprema_have_the_right_form", wrong("suprema", lambda right, *a: None), "Return a lowcal.notions.Suprema"),
    ("suprema_have_the_right_form", wrong("suprema", figures(value=lambda f: f.value[:1])), "value is .* for 4 subpop"),
    (
        "suprema_have_the_right_form",
        wrong("suprema", figures(upper=lambda f: f.upper / np.where(f.upper > 0, 1, np.nan))),
        "upper is .*nan.* also for an empty one",
    ),
    ("suprema_have_the_right_form", wrong("suprema", figures(basis=lambda f: f.basis - 1)), "not negative"),
    ("suprema_have_the_right_form", wrong("suprema", figures(witness=lambda f: lambda j: None)), r"witness\(0\) is"),
    (
        "suprema_have_the_right_form",
        wrong("suprema", figures(witness=lambda f: lambda j: Witness((Monomial(),), np.ones((2, 1))))),
        r"have shape \(2, 1\), with 1 weights and 1 coordinates",
    ),
    (
        "witness_attains_the_value",
        wrong("suprema", figures(witness=lambda f: scaled(f.witness, -1.0))),
        "a negative figure means a wrong sign",
    ),
    ("witness_attains_the_value", wrong("suprema", figures(witness=lambda f: scaled(f.witness, 0.5))), "of the same"),
    ("witness_attains_the_value", wrong("suprema", both(lambda v: 1.1 * v)), r"value\[0\] is .*, but the violation"),
    ("witness_is_admissible", wrong("suprema", times(2.0)), r"takes values from -?\d.* plus or minus a weight"),
    (
        "witness_is_admissible",
        wrong("suprema", figures(witness=lambda f: lambda j: Witness((Monomial(),), np.array([[1.0, -1.0, 0.0]])))),
        "from -1 to 1",
    ),
    ("suprema_have_the_right_form", wrong("suprema", figures(upper=lambda f: 0.9 * f.upper)), "above upper"),
    ("supremum_covers_the_basis", wrong("suprema", both(lambda v: 0.5 * v)), "but a basis element shows"),
    ("supremum_covers_the_basis", wrong("suprema", one_sided), "both signs included"),
    ("supremum_covers_the_basis", wrong("suprema", figures(basis=lambda f: 0.9 * f.basis)), r"basis\[0\] is"),
    ("supremum_covers_the_basis", wrong("suprema", figures(basis=lambda f: 0.5 * f.value), "full-0.1"), "largest"),
    ("supremum_covers_the_basis", wrong("suprema", figures(basis=lambda f: 2 * f.value), "smooth"), "basis element"),
    ("supremum_covers_every_witness", wrong("suprema", both(lambda v: 0.7 * v)), "The supremum is too small"),
    (
        "supremum_covers_every_witness",
        wrong("suprema", both(lambda v: np.where(np.arange(len(v)) == 1, 0.3 * v, v)), "smooth"),
        r"upper\[1\] is .*, but its own witness",
    ),
    ("sign_of_the_residuals_does_not_matter", wrong("suprema", one_sided), "look at both signs"),
    (
        "equal_samples_have_equal_suprema",
        wrong("suprema", both(lambda v: np.where(v < 0.02, 0.0, v))),
        "use no fixed thresholds",
    ),
    ("equal_samples_have_equal_suprema", wrong("suprema", on_rows(lambda n: 1 / n)), "never divide by their number"),
    ("equal_samples_have_equal_suprema", wrong("suprema", by_position), "use no row by its position"),
    ("equal_samples_have_equal_suprema", wrong("suprema", on_rows(lambda n: 1 + 1e-3 * n)), "0 for rows without"),
    ("equal_samples_have_equal_suprema", wrong("suprema", array_only), "Codes.* has no attribute 'matrix'"),
    ("nothing_is_changed", wrong("suprema", overwriting), "suprema changes its argument rho"),
    ("nothing_is_changed", wrong("suprema", Forgetful()), "Keep no state"),
    (
        "alpha_changes_no_decision",
        wrong("suprema", lambda f, p, r, C, alpha: f if alpha is None else both(lambda v: 0.5 * v)(f)),
        "without a hint and",
    ),
    (
        "alpha_changes_no_decision",
        wrong("suprema", lambda f, p, r, C, alpha: f if alpha is None else figures(upper=lambda g: 9 * g.upper)(f)),
        "largest upper",
    ),
    ("gain_is_kept", wrong("suprema", figures(upper=lambda f: 3 * f.upper)), "return a smaller gain"),
    ("gain_is_kept", wrong("gain", lambda right, d: 1.0, "degree-3"), r"gain\(3\) is 1 and the supremum may be"),
    ("fits_reach_alpha", wrong("suprema", lame), "'worst' ended as 'stalled' after 0 updates"),
    ("fits_reach_alpha", wrong("suprema", stuck, "full-0.3"), "ended as '(limit|stalled)'"),
    ("fits_reach_alpha", wrong("basis", lambda right, *a: (Double(),), "multiaccuracy"), "'first' ended as"),
    ("fits_reach_alpha", wrong("basis", lambda right, *a: (Eightfold(),), "multiaccuracy"), "rises by"),
]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize(("rule", "notion", "message"), NOTION_MISTAKES)
def test_a_mistake_in_a_notion_is_caught(rule: str, notion: Any, message: str) -> None:
    check = dict(notion_checks())[rule]
    with pytest.raises(CheckFailed, match=rf"(?s)breaks the rule '{rule}' on the sample .*{message}"):
        check(notion)
    with pytest.raises(CheckFailed):  # by this rule or by an earlier one
        check_notion(notion)


def test_every_rule_of_a_notion_has_a_mistake_that_it_catches() -> None:
    assert {rule for rule, _ in notion_checks()} == {rule for rule, _, _ in NOTION_MISTAKES}


@pytest.mark.parametrize(("notion", "n_classes"), [("degree-1", 4), ("degree-2", 3), ("degree-3", 3), ("full-0.3", 2)])
def test_a_tolerance_that_is_a_tenth_too_large_is_caught(notion: str, n_classes: int) -> None:
    """Where spec 3.2 and 2.5 are tight, the adversary finds it out."""
    check = dict(notion_checks(n_classes=[n_classes]))["tolerance_implies_the_class"]
    check(lowcal.parse_notion(notion))
    with pytest.raises(CheckFailed, match="tolerance_implies_the_class"):
        check(wrong("tolerance", lambda right, p, alpha: min(alpha, 1.1 * right), notion))


def test_a_notion_in_disguise_passes() -> None:
    check_notion(wrong("gain", lambda right, d: right))


def test_a_smaller_tolerance_and_gain_are_allowed() -> None:
    check_notion(wrong("tolerance", lambda right, p, alpha: right / 2), n_classes=[2])
    check_notion(wrong("gain", lambda right, d: right / 2), n_classes=[3])


# --- mistakes in a class -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """An encoder: the column "score" as an (n, 1) array."""

    column: str = "score"

    def __call__(self, X: Table) -> np.ndarray:
        return np.nan_to_num(X.numeric([self.column]))

    def to_dict(self) -> dict[str, Any]:
        return {"column": self.column}


@dataclass(frozen=True, eq=False)
class Bands:
    """A family: the bands low < score <= high."""

    names: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray

    def design(self, rows: np.ndarray) -> Matrix:
        return Matrix(((rows > self.low) & (rows <= self.high)).astype(float))

    def take(self, members: np.ndarray) -> Any:
        return replace(
            self, names=tuple(self.names[j] for j in members), low=self.low[members], high=self.high[members]
        )

    def to_dict(self) -> dict[str, Any]:
        return {"low": self.low.tolist(), "high": self.high.tolist()}


CUTS = np.array([0.2, 0.5, 0.9])


def bands(cuts: np.ndarray = CUTS, kind: type[Bands] = Bands, names: tuple[str, ...] | None = None) -> Bands:
    low, high = np.r_[-np.inf, cuts][:-1], cuts
    low = np.where(np.isinf(low), -1e300, low)
    return kind(tuple(f"band {k}" for k in range(len(cuts))) if names is None else names, low, high)


@dataclass(frozen=True)
class Scores(Subpopulations):
    """A right class; what is given replaces a part of it by a wrong one."""

    encoder: Any = Numbers()
    known: Any = lambda X, w: [Everyone(), bands()]
    learn: Any = None

    def bind(self, X: Table, sample_weight: np.ndarray) -> WeakLearner:
        learn = None if self.learn is None else self.learn(self.encoder(X), sample_weight)
        return WeakLearner(self.encoder, self.encoder(X), sample_weight, self.known(X, sample_weight), learn)


def peaks(sides: tuple[int, ...], label: Callable[[int], str] = "peak {}".format) -> Any:
    """A learner of narrow bands around the row with the largest residual, on these sides."""

    def bind(rows: np.ndarray, weight: np.ndarray) -> Any:
        def learn(Z: np.ndarray) -> list[Bands]:
            found = []
            for z in Z.T:
                centres = np.linspace(0.05, 0.95, 19)
                inside = np.abs(rows - centres) <= 0.05
                k = int(np.max([s * (z @ inside) for s in sides], axis=0).argmax())
                found.append(Bands((label(k),), centres[[k]] - 0.05, centres[[k]] + 0.05))
            return found

        return learn

    return bind


@dataclass(frozen=True)
class Bound(Subpopulations):
    """A class whose bind is the given function."""

    function: Any

    def bind(self, X: Table, sample_weight: np.ndarray) -> Any:
        return self.function(X, sample_weight)


def family(kind: type[Bands]) -> Scores:
    return Scores(known=lambda X, w: [Everyone(), bands(kind=kind)])


class Twice(Bands):
    def design(self, rows):
        return Matrix(2.0 * super().design(rows).matrix)


class Holes(Bands):
    def design(self, rows):
        return Matrix(np.where(rows > 0.99, np.nan, super().design(rows).matrix))


class Reversed(Bands):
    def take(self, members):
        return super().take(np.sort(len(self.names) - 1 - members))


class Misnamed(Bands):
    def take(self, members):
        return replace(super().take(members), names=tuple("someone" for _ in members))


class Relearning(Numbers):
    """Standardises by the rows it is given, instead of those it was fitted on."""

    def __call__(self, X):
        rows = super().__call__(X)
        return rows - rows.mean() + 0.5 if len(rows) else rows


class Categories:
    """Numbers the categories anew on every table: unseen or absent ones shift the others."""

    def __call__(self, X):
        column = X.column("group")
        return (column.codes[:, None] + 1) / 4

    def to_dict(self):
        return {}


class OneByOne(Numbers):
    def __call__(self, X):
        return np.vstack([[value] for value in X.numeric([self.column])[:, 0]])


class LookUp:
    """Knows three categories and trips over every other."""

    def __call__(self, X):
        column = X.column("group")
        place = {"a": 0.1, "b": 0.4, "c": 0.8, None: 0.95}
        codes = np.full(X.n_rows, -1) if column.codes is None else column.codes  # None: not a single value
        named = [None if code < 0 else column.categories[code] for code in codes]
        return np.array([place[name] for name in named])[:, None].reshape(-1, 1)

    def to_dict(self):
        return {}


class Missing(Numbers):
    def __call__(self, X):
        return X.numeric([self.column])


class Kernel(Bands):
    def design(self, rows):
        return Matrix(np.exp(-np.abs(rows - self.high)))


class Unwritten(Numbers):
    def to_dict(self):
        return {"cuts": CUTS}


class Infinite(Bands):
    def to_dict(self):
        return {"high": float("inf")}


class Overwriting(Numbers):
    def __call__(self, X):
        values = X.column(self.column).values
        rows = values[:, None].copy()
        values[:] = np.sort(values)
        return rows


class Flipped(Numbers):
    def __call__(self, X):
        return 1 - super().__call__(X)


class Dropping(Numbers):
    """Leaves rows without a score out."""

    def __call__(self, X):
        rows = X.numeric([self.column])
        return rows[np.isfinite(rows).all(axis=1)]


class Nobody(Bands):
    """Its members are lost when taken one by one, so that no step can be made."""

    def take(self, members):
        return replace(super().take(members), low=np.ones(len(members)), high=np.zeros(len(members)))


def overwriting(X: Table, w: np.ndarray) -> Any:
    X.column("score").values[::2] = 0.5
    return [Everyone(), bands()]


def by_chance(X: Table, w: np.ndarray) -> Any:
    return [Everyone(), bands(np.sort(np.random.default_rng().random(3)))]


def at_the_median(show: bool) -> Any:
    """A cut at the median of the rows, not of the weights; named by its value or not."""

    def known(X: Table, w: np.ndarray) -> Any:
        values = np.array([np.median(X.numeric(["score"])), np.mean(X.numeric(["score"]))])
        return [Everyone(), bands(values, names=tuple(f"<= {v}" for v in values) if show else ("low", "middle"))]

    return known


def at_the_first_row(X: Table, w: np.ndarray) -> Any:
    """A cut at the score of the first row, which has no weight: copies do not change it."""
    return [Everyone(), bands(X.numeric(["score"])[:1, 0], names=("low",))]


def no_missing(X: Table, w: np.ndarray) -> WeakLearner:
    kept = ~np.isnan(X.numeric(["age"])[:, 0])
    rows = Numbers()(X)[kept]
    return WeakLearner(Numbers(), rows, w[kept], [Everyone(), bands()])


def unweighted(X: Table, w: np.ndarray) -> WeakLearner:
    return WeakLearner(Numbers(), Numbers()(X), np.ones(len(w)), [Everyone(), bands()])


def flipped_on_new_rows(X: Table, w: np.ndarray) -> WeakLearner:
    return WeakLearner(Flipped(), Numbers()(X), w, [Everyone(), bands()])


@dataclass(frozen=True)
class Half:
    """Calls itself everyone, and is not."""

    names: tuple[str, ...] = ("everyone",)

    def design(self, rows: np.ndarray) -> Matrix:
        return Matrix(np.full((len(rows), 1), 0.5))

    def take(self, members: np.ndarray) -> Any:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {}


CLASS_MISTAKES = [
    ("it_prepares_a_learner", "Groups", "is not a Subpopulations"),
    ("it_prepares_a_learner", lowcal.Groups("pay"), "MissingColumn.*pass a table of yours as X"),
    ("it_prepares_a_learner", Bound(lambda X, w: None), "Return a WeakLearner"),
    ("it_prepares_a_learner", Bound(no_missing), r"have \d+ rows for a table of 320"),
    ("it_prepares_a_learner", Bound(unweighted), "Pass on the sample_weight"),
    ("it_leaves_the_table_alone", Scores(known=overwriting), "The column score of X differs"),
    ("it_leaves_the_table_alone", Scores(encoder=Overwriting()), "Work on copies"),
    ("it_prepares_the_same_again", Scores(known=by_chance), "memberships that differ by 1"),
    (
        "it_prepares_the_same_again",
        Scores(known=lambda X, w: [Everyone(), bands(names=tuple(np.random.default_rng().random(3).astype(str)))]),
        "name 4 and 4 members, not all alike",
    ),
    ("members_are_named_and_in_range", family(Twice), r"The membership of row \d+ in 'band 1' is 2\. .*clip"),
    ("members_are_named_and_in_range", family(Holes), "is nan"),
    (
        "members_are_named_and_in_range",
        Scores(known=lambda X, w: [Everyone(), bands(names=("low", "low", "high"))]),
        r"\['low'\] stands for several",
    ),
    (
        "members_are_named_and_in_range",
        Scores(known=lambda X, w: [Everyone(), bands(names=("low",))]),
        "2 names for 4 members",
    ),
    (
        "members_are_named_and_in_range",
        Scores(known=lambda X, w: [Everyone(), bands(names=("low", 2, "x"))]),
        "is not text",
    ),
    (
        "members_are_named_and_in_range",
        Scores(known=lambda X, w: [Everyone(), bands(), bands(CUTS / 2)]),
        "'band 0' stands for two members",
    ),
    ("members_are_named_and_in_range", Scores(learn=peaks((1, -1), lambda k: "peak")), "for example with a number"),
    ("members_are_named_and_in_range", lowcal.Groups("group", everyone=False), "No member holds all rows"),
    ("members_are_named_and_in_range", Scores(known=lambda X, w: [Half(), bands()]), "the nearest is off by 0.5"),
    ("a_member_is_a_column_of_the_design", family(Reversed), r"member\(1\) is named \('band 2',\), not 'band 0'"),
    ("a_member_is_a_column_of_the_design", family(Misnamed), "each with its name"),
    ("a_member_is_a_column_of_the_design", family(Nobody), r"member\(1\), 'band 0', is off by 1"),
    ("both_signs_are_learned", Scores(learn=peaks((1,))), "found in the opposite residual"),
    ("weights_count_as_copies", Scores(known=at_the_median(False)), "'low' differs by 1 between weights up to 2"),
    ("weights_count_as_copies", Scores(known=at_the_median(True)), "are in one only"),
    ("weights_count_as_copies", Scores(known=at_the_first_row), "'low' differs by 1 between weights up to 1"),
    ("new_rows_are_read_row_by_row", Scores(encoder=Relearning()), "only what it learned from the fitted table"),
    ("new_rows_are_read_row_by_row", Scores(encoder=Categories()), "Encoding one row gives"),
    ("new_rows_are_read_row_by_row", Scores(encoder=OneByOne()), "it raised ValueError"),
    ("strange_values_do_not_crash", Scores(encoder=LookUp()), "values never seen the encoder raised KeyError"),
    (
        "strange_values_do_not_crash",
        Scores(encoder=Missing(), known=lambda X, w: [Everyone(), bands(kind=Kernel)]),
        "is nan on missing values",
    ),
    ("strange_values_do_not_crash", Scores(encoder=Dropping()), "missing values the encoder returned 0 of"),
    ("it_is_plain_data", Scores(encoder=Unwritten()), r"to_dict\(\) of the encoder is not JSON"),
    ("it_is_plain_data", family(Infinite), "family of 'band 0' is not JSON"),
    ("a_fit_reaches_alpha_and_replays", family(Nobody), "ended as 'stalled' with the violation"),
    ("a_fit_reaches_alpha_and_replays", Bound(flipped_on_new_rows), "predictor on the fitted rows"),
]


@pytest.mark.parametrize(("rule", "kind", "message"), CLASS_MISTAKES)
def test_a_mistake_in_a_class_is_caught(rule: str, kind: Any, message: str) -> None:
    check = dict(subpopulation_checks())[rule]
    with pytest.raises(CheckFailed, match=rf"(?s)breaks the rule '{rule}' on the built-in table: .*{message}"):
        check(kind)
    with pytest.raises(CheckFailed):
        check_subpopulations(kind)


def test_every_rule_of_a_class_has_a_mistake_that_it_catches() -> None:
    assert {rule for rule, _ in subpopulation_checks()} == {rule for rule, _, _ in CLASS_MISTAKES}


def test_the_classes_that_the_mistakes_start_from_are_right() -> None:
    check_subpopulations(Scores())
    check_subpopulations(Scores(learn=peaks((1, -1))))


def test_a_class_need_not_hold_everyone() -> None:
    check_subpopulations(lowcal.Groups("group", everyone=False), everyone=False)


# --- the functions themselves --------------------------------------------------------------------------------


def test_a_failed_check_is_an_assertion_and_an_error_of_lowcal() -> None:
    assert issubclass(CheckFailed, AssertionError)
    assert issubclass(CheckFailed, lowcal.LowcalError)


@pytest.mark.parametrize("n_classes", [(1,), (2.5,), ("two",)])
def test_numbers_of_classes_are_whole_and_at_least_two(n_classes: Any) -> None:
    with pytest.raises(lowcal.InvalidInput, match="each of n_classes"):
        check_notion("degree-2", n_classes=n_classes)


def test_no_number_of_classes_is_refused() -> None:
    with pytest.raises(lowcal.InvalidInput, match="n_classes is empty"):
        check_notion("degree-2", n_classes=())


def test_the_seed_is_checked() -> None:
    for check in (
        lambda: check_notion("smooth", random_state="x"),
        lambda: list(subpopulation_checks(random_state=-1)),
    ):
        with pytest.raises(lowcal.InvalidInput, match="random_state"):
            check()


def test_the_same_seed_finds_the_same_numbers() -> None:
    def message(random_state: Any) -> str:
        with pytest.raises(CheckFailed) as failure:
            check_notion(wrong("suprema", both(lambda v: 0.5 * v)), random_state=random_state)
        return str(failure.value)

    assert message(1) == message(1) == message(np.random.default_rng(1))
    assert message(1) != message(2)


def test_the_built_in_table_has_every_kind_of_column() -> None:
    table = Table.of(draw_table(np.random.default_rng(0)))
    assert [table.column(name).is_numeric for name in table.names] == [False, False, True, True, True]
    assert (table.column("group").codes == -1).any()
    assert np.isnan(table.column("age").values).any()


def test_a_learner_that_looks_at_one_sign_finds_less_in_the_other() -> None:
    """It finds something in every residual, so that only the sizes tell."""
    import re

    page = (Path(__file__).parents[2] / "docs" / "how-to" / "add-a-hypothesis-class.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    code = code[: code.index("[Everyone()], learn)", code.index("class Intervals")) + len("[Everyone()], learn)")]
    X = np.random.default_rng(0).normal(size=(300, 2))
    for text, is_right in ((code, True), (code.replace("max(best_run(z), best_run(-z))", "best_run(z)"), False)):
        names: dict[str, Any] = {}
        exec(text, names)
        if is_right:
            check_subpopulations(names["Intervals"]("x0"), X)
        else:
            with pytest.raises(CheckFailed, match=r"only .* in its negative"):
                check_subpopulations(names["Intervals"]("x0"), X)
