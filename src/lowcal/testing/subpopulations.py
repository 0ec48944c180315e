"""The rules of a hypothesis class (`lowcal.subpopulations.base.Subpopulations`), tried on one small table.

The heart is the signed contract of the weak learner (Definition 5.1, corrected by spec 4.1); around it stands what
prediction relies on: new rows are read like the fitted ones, row by row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from lowcal.data.errors import InvalidInput, sentence
from lowcal.data.frames import Column
from lowcal.data.frames import Table as Frame
from lowcal.kernels.simplex import FloatArray, IntArray, brier
from lowcal.solve.fitting import multicalibrate
from lowcal.solve.options import SolverName, read_random_state
from lowcal.subpopulations import Family, Groups, Subpopulations, WeakLearner
from lowcal.subpopulations.base import Residual
from lowcal.testing.rules import CLOSE, Findings, Rule, attempt, distance, largest_rise, listed

#: Rows of the built-in table.
N_ROWS = 320
#: The most members that are looked at one by one.
MOST_MEMBERS = 25
#: Predictions of a fit and of its replay agree to this much.
REPLAY = 1e-12
#: What a search finds in a residual and in its negative are as large, up to this share: learners may be rough.
AS_LARGE = 0.75

LOOK = "Look at the `encoder` and at the `design` of your families."


@dataclass(frozen=True, eq=False)
class Trial:
    """The class under test, the table as it was given, whether everyone must be a member, and a seed."""

    subpopulations: Subpopulations
    X: Any
    everyone: bool
    seed: int

    @cached_property
    def table(self) -> Frame:
        """The table as lowcal reads it."""
        return Frame.of(self.X)

    @property
    def rng(self) -> np.random.Generator:
        """A generator that starts over each time."""
        return np.random.default_rng([self.seed, 0])

    @cached_property
    def weight(self) -> FloatArray:
        """Unequal weights that sum to one; every ninth row has none."""
        w = np.random.default_rng([self.seed, 1]).uniform(0.5, 2.0, self.table.n_rows)
        if len(w) > 9:
            w[::9] = 0.0
        return np.asarray(w / w.sum())

    def prepare(self, *residual: Residual) -> WeakLearner:
        """Return the learner on the table."""
        return self.subpopulations.prepare(self.table, self.weight, *residual)

    def explored(self) -> WeakLearner:
        """Return the learner after it was asked a few times, so that learned members are among its own."""
        learner = self.prepare()
        for Z in self.residuals():
            learner.learn(Z[:, None])
        return learner

    def residuals(self) -> list[FloatArray]:
        """Return a few residuals in [-1, 1]."""
        rng, n = np.random.default_rng([self.seed, 2]), self.table.n_rows
        return [rng.uniform(-1, 1, n), rng.choice([-1.0, 1.0], n), np.full(n, -0.5), np.full(n, 0.5)]


def check_subpopulations(
    subpopulations: Subpopulations,
    X: object = None,
    *,
    everyone: bool = True,
    random_state: int | np.random.Generator | None = 0,
) -> None:
    """Try every rule of a hypothesis class; raise `CheckFailed` at the first that is broken.

    The rules: memberships lie in [-1, 1] and are read row by row, also on new rows; names are unique; the search keeps
    its signed contract (spec 4.1) and sees negative correlations; weights count as copies; a fit reaches alpha and its
    replay predicts the same. `subpopulation_checks` lists them.

    Parameters
    ----------
    subpopulations : a class of your own, such as MyClass(columns=["age"]).
    X : a table of a few hundred rows with the columns it needs; None is a built-in table with the columns "group"
        (text), "member" (booleans), "age", "score" and "count" (numbers), some values missing in "group" and "age".
    everyone : whether the whole population, c = 1, must be a member.
    random_state : seed of the residuals, the weights and the built-in table.

    >>> from lowcal.subpopulations import Groups
    >>> check_subpopulations(Groups(["group", "age"]))
    """
    for _, check in subpopulation_checks(X, everyone=everyone, random_state=random_state):
        check(subpopulations)


def subpopulation_checks(
    X: object = None, *, everyone: bool = True, random_state: int | np.random.Generator | None = 0
) -> Iterator[tuple[str, Callable[[Subpopulations], None]]]:
    """Yield the name of every rule of a hypothesis class and a function that tries it on a given class.

    >>> [name for name, _ in subpopulation_checks()][:2]
    ['it_prepares_a_learner', 'it_leaves_the_table_alone']
    """
    seed = int(read_random_state(random_state).integers(2**31))
    given = draw_table(np.random.default_rng(seed)) if X is None else X
    where = "on the built-in table" if X is None else "on the given table"
    for one in RULES:
        yield one.name, partial(_try, one, given, everyone, seed, where)


def _try(one: Rule, X: object, everyone: bool, seed: int, where: str, subpopulations: Subpopulations) -> None:
    with suppress(Exception):  # no rule sees what another has done to X; what can't be copied stays itself
        X = deepcopy(X)
    attempt(one, subpopulations, where, Trial(subpopulations, X, everyone, seed))


def draw_table(rng: np.random.Generator) -> dict[str, np.typing.NDArray[Any]]:
    """Return a small table with text, booleans and numbers, and with missing values.

    >>> list(draw_table(np.random.default_rng(0)))
    ['group', 'member', 'age', 'score', 'count']
    """
    group = rng.choice(np.array(["a", "b", "c", None], dtype=object), N_ROWS, p=[0.4, 0.3, 0.2, 0.1])
    age = np.where(rng.random(N_ROWS) < 0.1, np.nan, rng.normal(40, 12, N_ROWS).round(1))
    member, score = rng.random(N_ROWS) < 0.5, rng.random(N_ROWS)
    return {"group": group, "member": member, "age": age, "score": score, "count": rng.integers(0, 4, N_ROWS)}


# --- the rules, in the order in which they are tried -----------------------------------------------------------

RULES: list[Rule] = []
rule = listed(RULES)


@rule("Return a WeakLearner from bind.")
def it_prepares_a_learner(trial: Trial) -> Findings:
    """prepare(X, sample_weight) returns a WeakLearner bound to the rows and weights of X."""
    given: object = trial.subpopulations
    remedy = "Subclass lowcal.subpopulations.Subpopulations."
    yield isinstance(given, Subpopulations), f"{given!r} is not a Subpopulations.", remedy
    learner, raised = None, ""
    try:
        learner = trial.prepare()
    except Exception as error:
        columns = sentence(f"The table has the columns {', '.join(trial.table.names)}")
        raised = f"prepare raised {type(error).__name__}: {sentence(str(error))} {columns}"
    yield not raised, raised, "If the class needs others, pass a table of yours as X."
    yield isinstance(learner, WeakLearner), f"bind returned {learner!r}."
    assert isinstance(learner, WeakLearner)
    n, wanted = learner.design().shape[0], trial.table.n_rows
    remedy = "Keep every row, also those with missing values or without weight."
    yield n == wanted, f"The memberships have {n} rows for a table of {wanted}.", remedy
    away = distance(learner.weight, trial.weight)
    yield away <= CLOSE, f"The learner's weights are off by {away:.3g}.", "Pass on the sample_weight of bind."


@rule("Work on copies: the arrays of a column may be those of X.")
def it_leaves_the_table_alone(trial: Trial) -> Findings:
    """Preparing, searching and encoding change neither X nor its columns."""
    before = [deepcopy(trial.table.column(name)) for name in trial.table.names]
    trial.subpopulations.prepare(trial.X, trial.weight).search(trial.residuals()[0], 1e-3)
    given = Frame.of(trial.X)
    yield from _unchanged(before, given)
    trial.prepare().encoder(trial.table)
    yield from _unchanged(before, trial.table)


def _unchanged(before: Sequence[Column], table: Frame) -> Findings:
    changed = [c.name for c in before if not _equal(c, table.column(c.name))]
    yield not changed, f"The column {', '.join(changed)} of X differs after prepare."


def _equal(a: Column, b: Column) -> bool:
    if a.values is not None and b.values is not None:
        return bool(np.array_equal(a.values, b.values, equal_nan=True))
    return a.categories == b.categories and bool(np.array_equal(a.codes, b.codes))  # type: ignore[arg-type]


@rule("Use a fixed seed where chance is needed, and keep no state.")
def it_prepares_the_same_again(trial: Trial) -> Findings:
    """Two learners on the same rows start with the same members."""
    first, second = trial.prepare(), trial.prepare()
    broken = f"Two calls of prepare name {len(first.names)} and {len(second.names)} members, not all alike."
    yield first.names == second.names, broken
    away = distance(first.design().dense(), second.design().dense())
    yield away <= CLOSE, f"Two calls of prepare have memberships that differ by {away:.3g}."


@rule("Give every member a name of its own, for example with a number: of two with the same name one is dropped.")
def members_are_named_and_in_range(trial: Trial) -> Findings:
    """Memberships are numbers in [0, 1] (with signs: [-1, 1]), names are unique, and everyone is a member."""
    learner = trial.explored()
    names, C = learner.names, learner.design().dense()
    yield from _in_range(learner, C, "")
    yield len(names) == C.shape[1], f"There are {len(names)} names for {C.shape[1]} members."
    odd = [name for name in names if not isinstance(name, str) or not name.strip()]
    yield not odd, f"The name {odd[:1]} is not text.", "Give readable strings."
    twice = sorted({name for name in names if names.count(name) > 1})
    yield not twice, f"The name {twice[:1]} stands for several members."
    for z in trial.residuals():
        yield from _same_by_name(learner, z)
    if trial.everyone:
        nearest = float(np.abs(trial.prepare().design().dense() - 1).max(axis=0).min())
        broken = f"No member holds all rows; the nearest is off by {nearest:.3g} on some row."
        yield nearest <= CLOSE, broken, "List Everyone() first among `known`, or check with everyone=False."


def _in_range(learner: WeakLearner, C: FloatArray, whose: str) -> Findings:
    remedy = "Memberships lie in [0, 1] (with signs: in [-1, 1]) and are never missing: clip them."
    for i, j in np.argwhere(~(np.abs(C) <= 1)):
        yield False, f"The membership of row {i} in {learner.names[j]!r} is {C[i, j]:.6g}{whose}.", remedy


def _same_by_name(learner: WeakLearner, z: FloatArray) -> Findings:
    """Find whether all that is listed or found by a name, also what is dropped as known, is the same."""
    families: list[Family] = [*learner._start, *learner.found(z[:, None])]
    for family in families:
        C = family.design(learner.rows).dense()
        for k, name in enumerate(family.names):
            if name in learner.names:
                away = distance(C[:, k], learner.design().column(learner.names.index(name)))
                yield away <= CLOSE, f"The name {name!r} stands for two members, which differ by up to {away:.3g}."


@rule("Use the designs of lowcal.kernels.reference, or correct yours.")
def the_design_is_one_matrix(trial: Trial) -> Findings:
    """All methods of the design, and member(j), speak of the same matrix of memberships."""
    learner, rng = trial.explored(), trial.rng
    design = learner.design()
    C = design.dense()
    n, m = C.shape
    R, theta = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    ids = np.asarray(rng.integers(0, 4, n), dtype=np.intp)
    part = rng.integers(0, n, 7)
    cells = np.stack([C.T @ (R * (ids == s)[:, None]) for s in range(3)], axis=1)
    pairs = {
        "moments(R)": (design.moments(R), C.T @ R),
        "cell_moments(ids, 3, R)": (design.cell_moments(ids, 3, R), cells),
        "combine(theta)": (design.combine(theta), C @ theta),
        "rows(part)": (design.rows(part).dense(), C[part]),
    }
    for j in _some(m, rng):
        name, member = learner.names[j], learner.member(j)
        pairs[f"column({j})"] = (design.column(j), C[:, j])
        pairs[f"member({j}), {name!r},"] = (member.design(learner.rows).dense()[:, 0], C[:, j])
        remedy = "`take` must keep the names in the order of the members."
        yield member.names == (name,), f"member({j}) is named {member.names}, not {name!r}.", remedy
    for what, (given, wanted) in pairs.items():
        away = distance(given, wanted)
        yield away <= CLOSE * max(1, n), f"{what} is off by {away:.3g} from the matrix that dense() returns."


def _some(m: int, rng: np.random.Generator) -> Sequence[int]:
    """Return a few members, the last one among them: all if they are few."""
    return range(m) if m <= MOST_MEMBERS else sorted({m - 1, *rng.integers(0, m, MOST_MEMBERS).tolist()})


@rule("The encoder must use only what it learned from the fitted table, and read each row independently.")
def new_rows_are_read_row_by_row(trial: Trial) -> Findings:
    """The encoder reads a row alike whatever stands beside it: all rows, other orders, parts, one row, no row."""
    learner, table = trial.explored(), trial.table
    n = table.n_rows
    C = learner.design().dense()
    ways: dict[str, IntArray] = {
        "the fitted rows": np.arange(n),
        "the rows in another order": trial.rng.permutation(n),
        "the first rows": np.arange(n // 3),
        "the last rows": np.arange(n // 3, n),
        "one row": np.array([n // 2]),
        "no row": np.arange(0),
    }
    for way, rows in ways.items():
        now = learner.design(learner.encoder(table.take(rows))).dense()
        away = np.abs(now - C[rows]) if now.shape == C[rows].shape else np.full((1, 1), np.inf)
        j, most = int(away.max(axis=0, initial=0.0).argmax()), away.max(initial=0.0)
        yield most <= CLOSE, f"Encoding {way} gives memberships in {learner.names[j]!r} that are off by {most:.3g}."


@rule("Give such rows a membership, usually 0, or raise lowcal.InvalidInput.")
def strange_values_do_not_crash(trial: Trial) -> Findings:
    """Missing values, categories never seen and numbers far away are encoded, or refused with an InvalidInput."""
    learner = trial.explored()
    for what, table in _strange(trial.table).items():
        C, raised = np.zeros((table.n_rows, 0)), ""
        try:
            C = learner.design(learner.encoder(table)).dense()
        except InvalidInput:
            continue  # a refusal that says why
        except Exception as error:
            raised = f"On {what} the encoder raised {type(error).__name__}: {error}"
        yield not raised, raised
        broken = f"On {what} the encoder returned {len(C)} of {table.n_rows} rows."
        yield len(C) == table.n_rows, broken, "Keep every row: give such rows a membership, usually 0."
        yield from _in_range(learner, C, f" on {what}")


def _strange(table: Frame) -> dict[str, Frame]:
    """Return the table with every value missing, and with values that the fitted rows do not have."""
    missing: dict[str, Any] = {}
    unseen: dict[str, Any] = {}
    for name in table.names:
        number = table.column(name).is_numeric
        missing[name] = np.full(table.n_rows, np.nan if number else None, dtype=float if number else object)
        far = np.where(np.arange(table.n_rows) % 2 == 0, 1e9, -1e9)
        unseen[name] = far if number else np.full(table.n_rows, "never seen before", dtype=object)
    return {"missing values": Frame.of(missing), "values never seen": Frame.of(unseen)}


@rule("Return the sign and the size of E[c z] under the sample weights, at least alpha / 2 (spec 4.1, 3').")
def the_search_keeps_its_contract(trial: Trial) -> Findings:
    """(1') what a member shows is found, (2') None means nobody shows it, (3') what is found is there (spec 4.1)."""
    learner = trial.explored()
    C = learner.design().dense()
    centred = [C[:, j] - trial.weight @ C[:, j] for j in _some(C.shape[1], trial.rng)[:8]]
    members = [sign * z / max(1.0, np.abs(z).max()) for z in centred for sign in (1.0, -1.0)]
    for z in [*trial.residuals(), *members]:
        for alpha in (0.3, 0.05, 0.005):
            yield from _contract(learner, z, alpha)


def _contract(learner: WeakLearner, z: FloatArray, alpha: float) -> Findings:
    found = learner.search(z, alpha)
    shown = learner.design().dense().T @ (learner.weight * z)
    j = int(np.abs(shown).argmax())
    if found is None:
        broken = f"search(z, {alpha:g}) found nobody, but E[c z] = {shown[j]:.6g} for {learner.names[j]!r}."
        remedy = "A search must find every |E[c z]| > alpha, of either sign (spec 4.1, 1' and 2')."
        yield abs(shown[j]) <= alpha + CLOSE, broken, remedy
        return
    c = found.design.dense()
    broken = f"search returned memberships of shape {c.shape} and the sign {found.sign!r}."
    good = c.shape == (len(z), 1) and found.sign in (1.0, -1.0)
    yield good, broken, "Return one member, and its sign, 1.0 or -1.0."
    again = distance(found.family.design(learner.rows).dense(), c)
    broken = f"found.design and found.family differ by {again:.3g}."
    yield again <= CLOSE, broken, "Return the family's own design."
    actual = found.sign * float(c[:, 0] @ (learner.weight * z))
    whose = f"search(z, {alpha:g}) returned {found.family.names[0]!r} with s E[c z] = {found.violation:.6g}"
    yield abs(actual - found.violation) <= CLOSE and actual >= alpha / 2, f"{whose}, but it is {actual:.6g}."


@rule("Negative correlations count: search for |E[c z]| > alpha and return the sign (spec 4.1).")
def negative_correlations_are_found(trial: Trial) -> Findings:
    """A residual that is negative wherever it is not zero is found like a positive one.

    For each of some members c, the residual -c has only negative correlations with memberships in [0, 1], and that of
    c itself is -E[c^2]. For a learner, c - E[c] and its negative hide from everyone: what is found in one, a new
    learner must find in the other.
    """
    learner = trial.explored()
    C, w = learner.design().dense(), trial.weight
    for j in _some(C.shape[1], trial.rng):
        z, name = C[:, j], learner.names[j]
        square, spread = float(w @ np.square(z)), float(w @ np.square(z - w @ z))
        if square > 1e-6:
            broken = f"The search finds nobody, but E[c z] = {-square:.6g} for {name!r}."
            yield learner.search(-z, square / 2) is not None, broken
        centred = (z - w @ z) / 2
        first = trial.prepare().search(centred, spread / 4) if spread > 1e-3 else None
        if first is not None:
            again = trial.prepare().search(-centred, spread / 4)
            broken = f"The search finds nobody, but E[c z] = {-spread / 2:.6g} for {name!r}"
            yield again is not None, f"{broken}, which has been found in the opposite residual."
            assert again is not None
            broken = f"In a residual {first.violation:.6g} is found, but only {again.violation:.6g} in its negative."
            remedy = "Look at both signs: the largest |E[c z]| is the same for both."
            yield again.violation >= AS_LARGE * first.violation, broken, remedy


@rule("Hand the start's members to WeakLearner and let `learn` return new families, changing none.")
def it_forgets_when_fresh(trial: Trial) -> Findings:
    """fresh() is the learner as it was at the start; what it learns, the old one does not know, and conversely."""
    start, learner = trial.prepare().names, trial.explored()
    known = learner.names
    fresh = learner.fresh()
    more = sorted(set(fresh.names) - set(start))
    broken = f"fresh() starts with {len(fresh.names)} members instead of {len(start)}: {more[:3]}."
    yield fresh.names == start, broken
    fresh.learn(np.cos(np.arange(trial.table.n_rows))[:, None])
    yield learner.names == known, "What a fresh learner learns appears in the old one."


@rule("Let weights count as copies of rows: cut points, scales and sizes are weighted; `learn` is given p_i z_i.")
def weights_count_as_copies(trial: Trial) -> Findings:
    """Rows given twice are rows of double weight, and rows of weight 0 are absent; only the ratios of weights count.

    A class may count the effective rows of a group and leave out small ones, so a few may be in one of the two only.
    """
    table, prepare = trial.table, trial.subpopulations.prepare
    times = 1 + (trial.rng.random(table.n_rows) < 0.4)
    rows = np.repeat(np.arange(table.n_rows), times)
    learners = prepare(table, times.astype(np.float64)), prepare(table.take(rows))
    yield from _alike(*learners, rows, trial, "between double weights and rows given twice", is_strict=False)
    rows = np.flatnonzero(trial.weight > 0)
    learners = prepare(table, 1000 * trial.weight), prepare(table.take(rows), trial.weight[rows])
    yield from _alike(*learners, rows, trial, "between rows of weight 0 and these rows left out", is_strict=True)


def _alike(
    one: WeakLearner, other: WeakLearner, rows: IntArray, trial: Trial, versus: str, is_strict: bool
) -> Findings:
    """Find whether two learners, the second on `rows` of the first's, have the same members and find as much."""
    shared = [name for name in one.names if name in other.names]
    different = sorted(set(one.names) ^ set(other.names))
    enough = not different if is_strict else 2 * len(shared) >= max(len(one.names), len(other.names))
    yield enough, f"The members differ {versus}: {different[:3]} are in one only."
    C, D = one.design().dense()[rows], other.design().dense()
    for name in shared:
        away = distance(C[:, one.names.index(name)], D[:, other.names.index(name)])
        yield away <= CLOSE, f"The member {name!r} differs by {away:.3g} {versus}."
    same = one.is_exact and not different
    for z in trial.residuals():
        sizes = [0.0 if f is None else f.violation for f in (one.search(z, 1e-3), other.search(z[rows], 1e-3))]
        # of a learner only the half that the contract promises is asked (spec 4.1, 1')
        good = abs(sizes[0] - sizes[1]) <= CLOSE if same else min(sizes) >= max(sizes) / 2 - 1e-3
        yield good, f"The search finds {sizes[0]:.6g} and {sizes[1]:.6g} {versus}."


@rule("Return numbers, strings, lists and dictionaries: array.tolist(), int(...).")
def it_is_plain_data(trial: Trial) -> Findings:
    """Encoder and families are JSON, or refuse to be with an InvalidInput that says why."""
    learner = trial.explored()
    for what, value in [("encoder", learner.encoder), *((f"family of {f.names[0]!r}", f) for f in learner.families)]:
        raised = ""
        try:
            json.dumps(value.to_dict(), allow_nan=False)  # type: ignore[attr-defined]
        except InvalidInput:
            continue
        except (TypeError, ValueError) as error:
            raised = f"to_dict() of the {what} is not JSON: {error}."
        yield not raised, raised


@rule(LOOK)
def it_joins_others(trial: Trial) -> Findings:
    """`A + B` holds the members of both, once."""
    alone = trial.prepare()
    union = (Groups([]) + trial.subpopulations).prepare(trial.table, trial.weight)
    different = sorted({*alone.names, "everyone"} ^ set(union.names))
    yield not different, f"The union with everyone differs in the members {different[:3]}."
    rows = union.encoder(trial.table)
    for j in _some(len(alone.names), trial.rng):
        k = union.names.index(alone.names[j])
        away = distance(union.design(rows).column(k), alone.design().column(j))
        yield away <= CLOSE, f"In a union the member {alone.names[j]!r} is off by {away:.3g}."


@rule(LOOK)
def a_fit_reaches_alpha_and_replays(trial: Trial) -> Findings:
    """Fits reach alpha without raising the training Brier score, and the replay on the same rows predicts the same."""
    yield from _fit(trial, "worst")
    yield from _fit(trial, "block")


def _fit(trial: Trial, solver: SolverName) -> Findings:
    p, y = _problem(trial)
    how: dict[str, Any] = {"solver": solver, "geometry": "euclidean", "guard": False, "sample_weight": trial.weight}
    fit = multicalibrate(y, p, trial.table, subpopulations=trial.subpopulations, alpha=0.03, classes=(0, 1), **how)
    ended = f"A fit with the solver {solver!r} ended as {str(fit.status)!r} with the violation {fit.violation:.6g}."
    remedy = "Violations that the search reports must be those of the members it returns."
    yield fit.status == "reached", ended, remedy
    rows, fitted = trial.prepare(lambda: (y - p)[:, None]).rows, p[:, None]
    for update in fit.predictor.updates:
        fitted = update(fitted, rows)
    away = distance(fit.predictor(p, trial.table), fitted[:, 0])
    yield away <= REPLAY, f"The replay of a fit on its own rows is off by {away:.3g}."
    own = fit.history[-1].brier if fit.history else brier(p[:, None], y[:, None], trial.weight)
    away = abs(brier(fitted, y[:, None], trial.weight) - own)
    yield away <= REPLAY, f"The replay's Brier score is off by {away:.3g} from the fit's own."
    rise = largest_rise(fit, p[:, None], y[:, None], trial.weight)
    yield rise <= REPLAY, f"The training Brier score rises by {rise:.3g} in an update."


def _problem(trial: Trial) -> tuple[FloatArray, FloatArray]:
    """Return predictions and outcomes that are wrong on one of the members, the one that splits the rows best."""
    C, rng = trial.explored().design().dense(), trial.rng
    c = C[:, int(np.argmax(trial.weight @ np.square(C - trial.weight @ C)))]
    p = rng.uniform(0.2, 0.8, len(c))
    return p, (rng.random(len(c)) < np.clip(p + 0.5 * c - 0.25, 0, 1)).astype(np.float64)
