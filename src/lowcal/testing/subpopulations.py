"""The rules of a hypothesis class (`lowcal.subpopulations.base.Subpopulations`), tried on one small table.

`WeakLearner` searches the members by itself. The rules are about what a class adds: its encoder, its families and its
`learn`. Prediction relies above all on new rows being read like the fitted ones, row by row.

What a rule is comes first, for those of notions too.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lowcal.data.errors import CheckFailed, FitWarning, InvalidInput, sentence
from lowcal.data.frames import Column
from lowcal.data.frames import Table as Frame
from lowcal.kernels.simplex import FloatArray, IntArray, brier
from lowcal.solve.fitting import Fit, multicalibrate
from lowcal.solve.homes import read_random_state
from lowcal.solve.solvers import SolverName
from lowcal.subpopulations import Family, Subpopulations, WeakLearner

#: The solvers with which every notion and class is fitted; "first" may need very many updates.
SOLVERS: tuple[SolverName, ...] = ("worst", "block")
#: Two figures agree if they differ by no more than this share of the size of the problem.
CLOSE = 1e-8
#: Brier scores of the same predictions differ by no more than this, by rounding.
EXACT = 1e-12
#: The most members that are looked at one by one.
MOST_MEMBERS = 25

Findings = Iterator[tuple[bool | np.bool_, str] | tuple[bool | np.bool_, str, str]]


# --- what a rule is -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A function that yields findings, the remedy, and what draws its samples if they are not the usual ones."""

    check: Callable[..., Findings]
    remedy: str
    on: Any = None

    @property
    def name(self) -> str:
        """The name by which a failure calls the rule."""
        return self.check.__name__


def listed(
    rules: list[Rule], remedy: str = "", on: Any = None
) -> Callable[[Callable[..., Findings]], Callable[..., Findings]]:
    """Return a decorator that adds a rule to a list."""

    def add(check: Callable[..., Findings]) -> Callable[..., Findings]:
        rules.append(Rule(check, remedy, on))
        return check

    return add


def attempt(rule: Rule, subject: object, where: str, *arguments: Any) -> None:
    """Try a rule; a failure, or an error in the subject's own code, names the subject, the rule and the place."""
    name = type(subject).__name__ if not isinstance(subject, type) else f"the class {subject.__name__}"
    place = f"{name} breaks the rule '{rule.name}' {where}:"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # fits to a few rows are studied, not used
            broken = next((rest for holds, *rest in rule.check(*arguments) if not holds), None)
    except Exception as error:
        raise CheckFailed(f"{place} it raised {type(error).__name__}: {error}") from error
    if broken is not None:
        raise CheckFailed(f"{place} {' '.join(broken if len(broken) == 2 else [*broken, rule.remedy])}")


def distance(given: ArrayLike, wanted: ArrayLike) -> float:
    """Return the largest difference of two arrays, infinity if their shapes differ.

    >>> distance([1.0, 2.0], [1.0, 2.5]), distance([1.0], [1.0, 2.0]), distance([], [])
    (0.5, inf, 0.0)
    """
    a, b = np.asarray(given), np.asarray(wanted)
    return float(np.abs(a - b).max(initial=0.0)) if a.shape == b.shape else np.inf


def largest_rise(fit: Fit, p: FloatArray, y: FloatArray, weight: FloatArray) -> float:
    """Return by how much an update of a fit raises the training Brier score, at most; 0 if none does."""
    return float(np.diff([brier(p, y, weight), *(record.brier for record in fit.history)]).max(initial=0.0))


# --- the class under test -----------------------------------------------------------------------------------------


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

    def prepare(self) -> WeakLearner:
        """Return the learner on the table."""
        return self.subpopulations.prepare(self.table, self.weight)

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

    The rules: memberships lie in [-1, 1] and are read row by row, also on new rows; names are unique; what is learned
    includes negative correlations (spec 4.1); weights count as copies; a fit reaches alpha and its predictor gives the
    same predictions. `subpopulation_checks` lists them.

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
    n = 320
    group = rng.choice(np.array(["a", "b", "c", None], dtype=object), n, p=[0.4, 0.3, 0.2, 0.1])
    age = np.where(rng.random(n) < 0.1, np.nan, rng.normal(40, 12, n).round(1))
    member, score = rng.random(n) < 0.5, rng.random(n)
    return {"group": group, "member": member, "age": age, "score": score, "count": rng.integers(0, 4, n)}


# --- the rules, in the order in which they are tried -----------------------------------------------------------

RULES: list[Rule] = []
rule = partial(listed, RULES)


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
    """Find whether members of the same name are the same, including those that are dropped as known."""
    families: list[Family] = [*learner._start, *learner.found(z[:, None])]
    for family in families:
        C = family.design(learner.rows).dense()
        for k, name in enumerate(family.names):
            if name in learner.names:
                away = distance(C[:, k], learner.design().column(learner.names.index(name)))
                yield away <= CLOSE, f"The name {name!r} stands for two members, which differ by up to {away:.3g}."


@rule("`take` must keep the members in the given order, each with its name.")
def a_member_is_a_column_of_the_design(trial: Trial) -> Findings:
    """member(j) holds the name and the memberships of the member j alone."""
    learner = trial.explored()
    C = learner.design().dense()
    for j in _some(C.shape[1], trial.rng):
        name, member = learner.names[j], learner.member(j)
        yield member.names == (name,), f"member({j}) is named {member.names}, not {name!r}."
        away = distance(member.design(learner.rows).dense()[:, 0], C[:, j])
        yield away <= CLOSE, f"member({j}), {name!r}, is off by {away:.3g} from the column {j} of the design."


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


@rule("Look at both signs: the largest |E[c z]| is the same for both (spec 4.1).")
def both_signs_are_learned(trial: Trial) -> Findings:
    """What is learned from a residual is learned from its negative too.

    For some members c, the residual c - E[c] is uncorrelated with everyone: what a new learner finds in it, another one
    must find in E[c] - c.
    """
    learner = trial.explored()
    C, w = learner.design().dense(), trial.weight
    for j in [] if learner.is_exact else _some(C.shape[1], trial.rng):
        z, name = C[:, j] - w @ C[:, j], learner.names[j]
        spread = float(w @ np.square(z))
        first = trial.prepare().search(z / 2, spread / 4) if spread > 1e-3 else None
        if first is not None:
            again = trial.prepare().search(-z / 2, spread / 4)
            broken = f"The search finds no member, but E[c z] = {-spread / 2:.6g} for {name!r}"
            yield again is not None, f"{broken}, which has been found in the opposite residual."
            assert again is not None
            broken = f"In a residual {first.violation:.6g} is found, but only {again.violation:.6g} in its negative."
            yield again.violation >= 0.75 * first.violation, broken  # learners may be rough


@rule("Let weights count as copies of rows: cut points, scales and sizes are weighted.")
def weights_count_as_copies(trial: Trial) -> Findings:
    """Rows given twice are rows of double weight, and rows of weight 0 are absent.

    A class may count the effective rows of a group and leave out small ones, so a few may be in one of the two only.
    """
    n = trial.table.n_rows
    for times in 1 + (trial.rng.random(n) < 0.4), np.arange(n) % 9 > 0:
        rows, versus = np.repeat(np.arange(n), times), f"between weights up to {times.max():d} and rows given as often"
        one = trial.subpopulations.prepare(trial.table, times.astype(np.float64))
        other = trial.subpopulations.prepare(trial.table.take(rows))
        shared = [name for name in one.names if name in other.names]
        different = sorted(set(one.names) ^ set(other.names))
        enough = 2 * len(shared) >= max(len(one.names), len(other.names))
        yield enough, f"The members differ {versus}: {different[:3]} are in one only."
        C, D = one.design().dense()[rows], other.design().dense()
        for name in shared:
            away = distance(C[:, one.names.index(name)], D[:, other.names.index(name)])
            yield away <= CLOSE, f"The member {name!r} differs by {away:.3g} {versus}."


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


@rule("Look at the `encoder` and at the `design` of your families.")
def a_fit_reaches_alpha_and_replays(trial: Trial) -> Findings:
    """Fits reach alpha without raising the training Brier score, and their predictors give the fitted predictions."""
    p, y = _problem(trial)
    for solver in SOLVERS:
        how: dict[str, Any] = {"solver": solver, "geometry": "euclidean", "guard": False, "alpha": 0.03}
        how |= {"subpopulations": trial.subpopulations, "sample_weight": trial.weight, "classes": (0, 1)}
        fit = multicalibrate(y, p, trial.table, **how)
        ended = f"A fit with the solver {solver!r} ended as {str(fit.status)!r} with the violation {fit.violation:.6g}."
        yield fit.status == "reached", ended
        replayed = brier(fit.predictor(p, trial.table)[:, None], y[:, None], trial.weight)
        own = fit.history[-1].brier if fit.history else brier(p[:, None], y[:, None], trial.weight)
        away = abs(replayed - own)
        yield away <= EXACT, f"The Brier score of a fit's predictor on the fitted rows is off by {away:.3g}."
        rise = largest_rise(fit, p[:, None], y[:, None], trial.weight)
        yield rise <= EXACT, f"The training Brier score rises by {rise:.3g} in an update."


def _problem(trial: Trial) -> tuple[FloatArray, FloatArray]:
    """Return predictions and outcomes that are wrong on one of the members, the one that splits the rows best."""
    C, rng = trial.explored().design().dense(), trial.rng
    c = C[:, int(np.argmax(trial.weight @ np.square(C - trial.weight @ C)))]
    p = rng.uniform(0.2, 0.8, len(c))
    return p, (rng.random(len(c)) < np.clip(p + 0.5 * c - 0.25, 0, 1)).astype(np.float64)
