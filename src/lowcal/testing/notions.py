"""The rules of a notion (`lowcal.notions.base.Notion`), tried on small samples where mistakes show.

Every rule recomputes its figure from the definition, E[c <w(f), y - f>] (Definition 3.1), or compares two samples
whose suprema must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import check_whole
from lowcal.kernels.reference import Codes, DecodeTable, Design, Matrix, Stacked
from lowcal.kernels.simplex import FloatArray
from lowcal.notions import Notion, Suprema, Witness, parse_notion
from lowcal.notions.weights import Weight
from lowcal.solve.fitting import multicalibrate
from lowcal.solve.homes import read_random_state
from lowcal.subpopulations import Memberships
from lowcal.testing.subpopulations import CLOSE, EXACT, SOLVERS, Findings, Rule, attempt, largest_rise, listed

#: Tolerances with which a notion is asked for its basis.
ALPHAS = (0.2, 0.05)

METHODS = ("gain", "basis", "tolerance", "probes", "features", "suprema")


@dataclass(frozen=True, eq=False)
class TrialSample:
    """Predictions p and outcomes y of shape (n, d), weights that sum to one, memberships C of shape (n, m)."""

    name: str
    p: FloatArray
    y: FloatArray
    weight: FloatArray
    C: FloatArray

    @property
    def d(self) -> int:
        """The number of coordinates of a prediction: 1 for two classes."""
        return int(self.p.shape[1])

    @property
    def rho(self) -> FloatArray:
        """The weighted residuals."""
        return self.weight[:, None] * (self.y - self.p)

    @property
    def slack(self) -> float:
        """What two equal figures may differ by: a share of E||y - f||_1."""
        return CLOSE * float(np.abs(self.rho).sum())

    def take(self, rows: np.typing.NDArray[np.intp]) -> TrialSample:
        """Return some rows, in that order; the weights stay as they are."""
        return TrialSample(self.name, self.p[rows], self.y[rows], self.weight[rows], self.C[rows])

    def suprema(self, notion: Notion, alpha: float | None = None, times: float = 1.0) -> Suprema:
        """Return the notion's suprema on this sample, with residuals `times` as large."""
        return notion.suprema(self.p, times * self.rho, Matrix(self.C), alpha)

    def violation(self, witness: Witness, j: int) -> float:
        """Return the definition's figure, E[c_j <s w(f), y - f>]."""
        return float(np.sum(self.C[:, [j]] * witness(self.p) * self.rho))


def check_notion(
    notion: str | Notion, *, n_classes: Sequence[int] = (2, 3), random_state: int | np.random.Generator | None = 0
) -> None:
    """Try every rule of a notion; raise `CheckFailed` at the first that is broken.

    The rules are those of `lowcal.notions.base.Notion`: the supremum is attained by an admissible witness and covers
    the basis, the tolerance is small enough, copies of rows count as weight, and every solver reaches alpha.
    `notion_checks` lists them, so that one can be left out: a basis that does not change with alpha is taken to
    consist of weights of the class, which `supremum_covers_the_basis` relies on.

    Parameters
    ----------
    notion : a notion of your own, or a name such as "degree-2".
    n_classes : numbers of classes to try; 2 is the scalar convention.
    random_state : seed of the samples.

    >>> check_notion("degree-2", n_classes=[2])
    """
    for _, check in notion_checks(n_classes=n_classes, random_state=random_state):
        check(notion)


def notion_checks(
    *, n_classes: Sequence[int] = (2, 3), random_state: int | np.random.Generator | None = 0
) -> Iterator[tuple[str, Callable[[str | Notion], None]]]:
    """Yield the name of every rule of a notion and a function that tries it on a given notion.

    >>> [name for name, _ in notion_checks()][:3]
    ['it_follows_the_protocol', 'weights_lie_in_the_unit_interval', 'suprema_have_the_right_form']
    """
    if not n_classes:
        raise InvalidInput("n_classes is empty; give at least one number of classes, such as (2, 3).")
    for number in n_classes:
        check_whole("each of n_classes", number, 2)
    seed = int(read_random_state(random_state).integers(2**31))
    for one in RULES:
        yield one.name, partial(_try, one, tuple(n_classes), seed)


def _try(one: Rule, n_classes: Sequence[int], seed: int, notion: str | Notion) -> None:
    chosen = parse_notion(notion) if isinstance(notion, str) else notion
    for number in n_classes:
        for sample in (one.on or draw_samples)(number, np.random.default_rng(seed)):
            attempt(one, chosen, f"on the sample '{sample.name}' with {number} classes", chosen, sample)


# --- samples -------------------------------------------------------------------------------------------------


def draw_samples(n_classes: int, rng: np.random.Generator) -> list[TrialSample]:
    """Return small samples of the usual edge cases: ties, corners, one row, an empty subpopulation, no residual."""
    n, d = 18, 1 if n_classes == 2 else n_classes
    p = _inside(rng, n, d)
    ties = p[rng.integers(0, 3, n)]
    corners = np.where(rng.random((n, 1)) < 0.6, _labels(rng, n, d), p)
    edges = rng.integers(0, 11, (n, 1)) / 10 if d == 1 else rng.multinomial(10, np.full(d, 1 / d), n) / 10
    constant = np.full((n, d), 0.3) if d == 1 else np.full((n, d), 1 / d)
    rest = {"random": p, "ties": ties, "corners": corners, "edges": edges, "constant predictions": constant}
    samples = [_sample(name, predictions, rng) for name, predictions in rest.items()]
    samples.append(replace(samples[0], name="signed memberships", C=rng.uniform(-1, 1, (n, 3))))
    samples.append(replace(samples[0], name="no residual", y=samples[0].p))
    samples.append(replace(_sample("one row", p[:1], rng), C=np.array([[1.0, 0.5, 0.0]])))
    return samples


def draw_problem(n_classes: int, rng: np.random.Generator) -> list[TrialSample]:
    """Return one sample with few distinct predictions whose outcomes depend on the memberships: a task for a fit."""
    n, d = 160, 1 if n_classes == 2 else n_classes
    p = 0.8 * _inside(rng, 12, d)[rng.integers(0, 12, n)] + 0.2 / max(d, 2)
    C = np.column_stack([rng.integers(0, 2, n), rng.integers(0, 2, n), rng.integers(0, 3, n) / 2])
    truth = np.clip(p[:, -1] + 0.8 * (C[:, 0] - 0.5) + 0.6 * C[:, 2] * (p[:, -1] - 0.5), 0, 1)
    hit = rng.random(n) < truth
    y = hit[:, None].astype(np.float64)
    if d > 1:
        y = np.eye(d)[np.where(hit, d - 1, rng.integers(0, d - 1, n))]
    return [TrialSample("problem", p, y, np.full(n, 1 / n), C)]


def _inside(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    return rng.random((n, 1)) if d == 1 else rng.dirichlet(np.ones(d), n)


def _labels(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    return rng.integers(0, 2, (n, 1)).astype(np.float64) if d == 1 else np.eye(d)[rng.integers(0, d, n)]


def _sample(name: str, p: FloatArray, rng: np.random.Generator) -> TrialSample:
    """Add outcomes, unequal weights, and four subpopulations: everyone, fractional memberships, some rows, no row."""
    n, d = p.shape
    C = np.column_stack([np.ones(n), rng.random(n), rng.integers(0, 2, n), np.zeros(n)])
    return TrialSample(name, p, _labels(rng, n, d), rng.dirichlet(np.ones(n)), C)


def _space(sample: TrialSample) -> FloatArray:
    """Return points of the whole space of predictions, the sample's own and the corners among them."""
    rng = np.random.default_rng(0)
    if sample.d == 1:
        return np.vstack([sample.p, np.linspace(0, 1, 101)[:, None]])
    pairs = (np.eye(sample.d)[:, None] + np.eye(sample.d)[None]).reshape(-1, sample.d) / 2
    return np.vstack([sample.p, pairs, rng.dirichlet(np.ones(sample.d), 80)])


# --- the rules, in the order in which they are tried -----------------------------------------------------------

RULES: list[Rule] = []
rule = partial(listed, RULES)


@rule("See lowcal.notions.base.Notion.")
def it_follows_the_protocol(notion: Notion, sample: TrialSample) -> Findings:
    """A notion is an object, not a class, with all methods of the protocol; its figures are numbers in range."""
    yield not isinstance(notion, type), "The class itself was given.", "Give an instance, with brackets: MyNotion()."
    absent = [name for name in METHODS if not callable(getattr(notion, name, None))]
    yield not absent, f"It has no method {', '.join(absent)}."
    text = str(notion)  # it appears in reports
    readable = bool(text.strip()) and "\n" not in text and " object at 0x" not in text
    yield readable, f"str(notion) is {text!r}.", "Write __str__: one short line that says which notion this is."
    gain: object = notion.gain(sample.d)
    broken = f"gain({sample.d}) is {gain!r}, not a number in (0, 1]."
    yield isinstance(gain, Real) and 0 < float(gain) <= 1, broken, "Return 1.0 if the witness is exact."
    for alpha in ALPHAS:
        beta: object = notion.tolerance(sample.p, alpha)
        good = isinstance(beta, Real) and 0 < float(beta) <= alpha
        remedy = "Return alpha if the supremum is the largest basis violation, otherwise less."
        yield good, f"tolerance(p, {alpha:g}) is {beta!r}, not in (0, {alpha:g}].", remedy


@rule("A weight lies in [0, 1] at every prediction: rescale or clip it.")
def weights_lie_in_the_unit_interval(notion: Notion, sample: TrialSample) -> Findings:
    """Basis, probes and features are functions of a prediction with values in [0, 1], everywhere."""
    sources = {f"basis(p, {alpha:g})": notion.basis(sample.p, alpha) for alpha in ALPHAS}
    sources |= {f"probes({sample.d})": notion.probes(sample.d)}
    for source, weights in sources.items():
        yield len(weights) > 0, f"{source} is empty.", "Return at least one weight, such as weights.Monomial()."
    sources["features(p)"] = notion.features(sample.p)  # may be empty: every subpopulation brings its witness
    Z = _space(sample)
    n = len(Z)
    for source, weights in sources.items():
        for k, u in enumerate(weights):
            what, values = f"{source}[{k}], {u}", np.asarray(u(Z))
            shape = f"{what}, returns shape {values.shape} for {n} predictions."
            yield values.shape == (n,), shape, f"Return one number for each row: shape ({n},)."
            good = np.all((values >= 0) & (values <= 1))
            yield good, f"{what}, takes values from {values.min():.6g} to {values.max():.6g}."


@rule("Return one finite number that is not negative for each subpopulation, also for an empty one.")
def suprema_have_the_right_form(notion: Notion, sample: TrialSample) -> Findings:
    """`suprema` returns a Suprema with a number for each subpopulation, and witnesses with a coefficient per label."""
    found = sample.suprema(notion)
    m = sample.C.shape[1]
    yield isinstance(found, Suprema), f"suprema returned {found!r}.", "Return a lowcal.notions.Suprema."
    for name in ("value", "upper", "basis"):
        figure = np.asarray(getattr(found, name))
        good = figure.shape == (m,) and bool(np.isfinite(figure).all() and (figure >= 0).all())
        yield good, f"suprema(...).{name} is {np.array2string(figure, precision=6)} for {m} subpopulations."
    for j, (value, upper) in enumerate(zip(found.value, found.upper, strict=True)):
        remedy = "`upper` is certified to be no less than the supremum; return the same array twice where it is exact."
        yield value <= upper + sample.slack, f"value[{j}] is {value:.9g}, above upper[{j}] = {upper:.9g}.", remedy
        one: object = found.witness(j)
        yield isinstance(one, Witness), f"witness({j}) is {one!r}.", "Return a lowcal.notions.Witness."
        assert isinstance(one, Witness)
        shape, wanted = np.shape(one.coefficients), (len(one.weights), sample.d)
        broken = (
            f"The coefficients of witness({j}) have shape {shape}, with {wanted[0]} weights and {sample.d} coordinates."
        )
        yield shape == wanted and wanted[0] > 0, broken, f"Give one for each weight and label: shape {wanted}."
        yield bool(str(one)), f"str(witness({j})) is empty.", "Give its weights a __str__."


@rule()
def sign_of_the_residuals_does_not_matter(notion: Notion, sample: TrialSample) -> Findings:
    """The supremum of |E[c <w(f), y - f>]| is the same for y - f and f - y."""
    remedy = "The supremum is one of absolute values: look at both signs and keep the larger."
    turned = sample.suprema(notion, times=-1.0)
    yield from _same(sample, sample.suprema(notion), turned, 1.0, "residuals of the other sign", remedy)


@rule("Both must be E[c <s w(f), y - f>] of the same signed weight.")
def witness_attains_the_value(notion: Notion, sample: TrialSample) -> Findings:
    """value[j] = E[c_j <s w(f), y - f>] for the signed weight s w = witness(j)."""
    for alpha in (None, 0.05):
        found = sample.suprema(notion, alpha)
        for j, value in enumerate(found.value):
            shown = sample.violation(found.witness(j), j)
            sign = "; a negative figure means a wrong sign" if shown < 0 < value else ""
            broken = f"value[{j}] is {value:.9g}, but the violation of witness({j}) is {shown:.9g}{sign}."
            yield abs(shown - value) <= sample.slack, broken


@rule("A witness is plus or minus a weight in [0, 1]: one sign for all labels and predictions.")
def witness_is_admissible(notion: Notion, sample: TrialSample) -> Findings:
    """The witness is s w with one sign s and w in [0, 1]^d at every prediction, seen or not."""
    found = sample.suprema(notion)
    Z = _space(sample)
    for j in range(sample.C.shape[1]):
        signed = found.witness(j)(Z)
        low, high = float(signed.min()), float(signed.max())
        good = (low >= -CLOSE and high <= 1 + CLOSE) or (low >= -1 - CLOSE and high <= CLOSE)
        yield good, f"witness({j}) takes values from {low:.6g} to {high:.6g}."


@rule("`basis` is the largest |E[c u(f) (y_a - f_a)]| over the weights u of basis(p, alpha) and the labels a.")
def supremum_covers_the_basis(notion: Notion, sample: TrialSample) -> Findings:
    """The supremum is at least the violation of every basis element, and `basis` is the largest of these.

    A basis that changes with alpha only approximates the class (spec 1.2): its elements need not belong to it. Then
    `basis` has to lie below both the largest violation of an element and the supremum.
    """
    found, Z = sample.suprema(notion), _space(sample)
    U = _values(notion.basis(sample.p, ALPHAS[-1]), sample.p)
    moments = np.einsum("nm,ns,na->msa", sample.C, U, sample.rho)
    first, second = (_values(notion.basis(sample.p, alpha), Z) for alpha in (0.5, 0.005))
    inside = first.shape == second.shape and bool(np.array_equal(first, second))
    for j, (value, basis) in enumerate(zip(found.value, found.basis, strict=True)):
        shown = float(np.abs(moments[j]).max())
        broken = f"value[{j}] is {value:.9g}, but a basis element shows {max(shown, basis):.9g}."
        remedy = "The supremum runs over the whole class, the basis and both signs included."
        yield value >= (shown if inside else basis) - sample.slack, broken, remedy
        good = abs(basis - shown) <= sample.slack if inside else basis <= shown + sample.slack
        yield good, f"basis[{j}] is {basis:.9g}, but the largest violation of a basis element is {shown:.9g}."


def _values(weights: Sequence[Weight], Z: FloatArray) -> FloatArray:
    return np.column_stack([u(Z) for u in weights])


@rule("The supremum is too small: it must be the largest over the whole class, whatever the sample.")
def supremum_covers_every_witness(notion: Notion, sample: TrialSample) -> Findings:
    """Every witness is a weight of the class, so no subpopulation's supremum is below what it shows there."""
    found = sample.suprema(notion)
    turned = replace(sample, y=np.roll(sample.y, 1, axis=0)).suprema(notion)
    m = sample.C.shape[1]
    for source, other in (("its own", found), ("other outcomes'", turned)):
        for j in range(m):
            witness = other.witness(j)
            for k, upper in enumerate(found.upper.tolist()):
                shown = abs(sample.violation(witness, k))
                broken = f"upper[{k}] is {upper:.9g}, but {source} witness({j}) shows {shown:.9g} there."
                yield shown <= upper + sample.slack, broken


@rule("It is E[c <w(f), y - f>] on the whole sample: linear in the weighted residuals, and a sum over rows.")
def equal_samples_have_equal_suprema(notion: Notion, sample: TrialSample) -> Findings:
    """Suprema follow the residuals, and depend neither on how rows are split and ordered nor on how C is stored."""
    found = sample.suprema(notion)
    for changed, times, other, remedy in _equal_samples(notion, sample):
        yield from _same(sample, found, other, times, changed, remedy)


def _same(sample: TrialSample, found: Suprema, other: Suprema, times: float, changed: str, remedy: str) -> Findings:
    """Find whether the suprema of a changed sample are `times` those of the sample."""
    for name in ("value", "upper"):
        wanted, given = times * np.asarray(getattr(found, name)), np.asarray(getattr(other, name))
        for j, (a, b) in enumerate(zip(wanted, given, strict=True)):
            good = abs(a - b) <= max(1.0, times) * sample.slack
            yield good, f"With {changed}: {name}[{j}] should be {a:.9g} and is {b:.9g}.", remedy


def _equal_samples(notion: Notion, sample: TrialSample) -> Iterator[tuple[str, float, Suprema, str]]:
    """Yield how a sample is changed, by what its suprema must then be multiplied, what they are, and a remedy."""
    for t in (0.125, 3.0):
        linear = "E[c <w(f), y - f>] is linear in the residuals; use no fixed thresholds."
        yield f"residuals times {t:g}", t, sample.suprema(notion, times=t), linear
    every = np.arange(len(sample.p))
    turned = sample.take(every[::-1].copy())
    yield "rows in reverse", 1.0, turned.suprema(notion), "Sort, or sum over rows; use no row by its position."
    counted = "rho holds the weights already, 0 for rows without: sum over rows, never divide by their number."
    halved = replace(sample, weight=np.where(every % 2 == 0, 0.5, 1.0) * sample.weight)
    yield "copied rows", 1.0, halved.take(np.concatenate([every, every[::2]])).suprema(notion), counted
    more = sample.take(np.concatenate([every, every[::-1]]))
    p, weight = np.concatenate([sample.p, _space(sample)[-len(every) :]]), np.repeat([1.0, 0.0], len(every))
    yield "rows of weight 0", 1.0, replace(more, p=p, weight=weight * more.weight).suprema(notion), counted
    for kind, design in _stored(sample.C).items():
        stored = "Use only the methods of Design (moments, column, ...), or lowcal.notions.moments.moments."
        yield f"memberships as {kind}", 1.0, notion.suprema(sample.p, sample.rho, design), stored


def _stored(C: FloatArray) -> dict[str, Design]:
    """Return memberships as a sparse matrix, as codes with a table, and side by side."""
    table, codes = np.unique(C, axis=0, return_inverse=True)
    return {
        "a sparse matrix": Matrix(sparse.csr_array(C)),
        "codes": Codes((codes.ravel().astype(np.uint8),), (DecodeTable(sparse.csr_array(table)),)),
        "two designs side by side": Stacked((Matrix(C[:, :1]), Matrix(C[:, 1:]))),
    }


@rule("Work on a copy.")
def nothing_is_changed(notion: Notion, sample: TrialSample) -> Findings:
    """A notion is a value: it changes none of its arguments, and the same question has the same answer."""
    p, rho, C = sample.p.copy(), sample.rho, sample.C.copy()
    given = rho.copy()
    first = notion.suprema(p, rho, Matrix(C)).value.copy()
    for name, now, before in (("p", p, sample.p), ("rho", rho, given), ("memberships", C, sample.C)):
        changed = f"suprema changes its argument {name}, by up to {np.abs(now - before).max():.6g}."
        yield np.array_equal(now, before), changed
    again = notion.suprema(p, rho, Matrix(C)).value
    remedy = "Keep no state, and draw no random numbers without a fixed seed."
    yield np.array_equal(first, again), f"Two equal calls of suprema give {first} and {again}.", remedy


@rule("The hint may save work only where it can't change whether the supremum exceeds alpha.")
def alpha_changes_no_decision(notion: Notion, sample: TrialSample) -> Findings:
    """With the hint `alpha`, work may be saved, but whether the supremum exceeds alpha stays the same."""
    found = sample.suprema(notion)
    largest = float(found.value.max()) or 0.1
    for alpha in (0.25 * largest, 0.8 * largest, 1.25 * largest, 4.0 * largest):
        hinted = sample.suprema(notion, alpha)
        for name in ("value", "upper"):
            a, b = float(getattr(found, name).max()), float(getattr(hinted, name).max())
            broken = f"The largest {name} is {a:.9g} without a hint and {b:.9g} with alpha={alpha:.6g}."
            yield (a > alpha) == (b > alpha), broken


@rule("Find better witnesses, a smaller `upper`, or return a smaller gain.")
def gain_is_kept(notion: Notion, sample: TrialSample) -> Findings:
    """Whenever the certified supremum exceeds alpha, a witness shows at least gain * alpha."""
    gain = float(notion.gain(sample.d))
    upper = float(sample.suprema(notion).upper.max())
    for alpha in (upper * (1 - 1e-6), 0.7 * upper, 0.3 * upper):
        hinted = sample.suprema(notion, alpha)
        shown, certified = float(hinted.value.max()), float(hinted.upper.max())
        broken = (
            f"gain({sample.d}) is {gain:g} and the supremum may be {certified:.6g}, above alpha={alpha:.6g}, "
            f"but the best witness shows only {shown:.6g}."
        )
        yield certified <= alpha or shown >= gain * alpha - sample.slack, broken


@rule()
def tolerance_implies_the_class(notion: Notion, sample: TrialSample) -> Findings:
    """Basis violations of at most the tolerance imply a supremum of at most alpha.

    An adversary looks for outcomes that are harmless on the basis and harmful on the class: for a fixed weight w the
    worst outcomes are a linear program, for fixed outcomes the witness is the worst weight; the two take turns.
    """
    rng = np.random.default_rng(0)
    everyone = Matrix(np.ones((len(sample.p), 1)))
    for alpha in ALPHAS:
        beta = float(notion.tolerance(sample.p, alpha))
        U = _values(notion.basis(sample.p, alpha), sample.p)
        w = rng.uniform(-1, 1, sample.p.shape)
        for _ in range(6):
            rho = _harmless(sample, U, w, beta)
            found = notion.suprema(sample.p, rho, everyone, alpha)
            broken = (
                f"tolerance(p, {alpha:g}) is {beta:.6g}, but there are outcomes whose basis violations are at most "
                f"{np.abs(U.T @ rho).max():.6g} and whose supremum is {found.upper[0]:.6g}, above {alpha:g}."
            )
            most = alpha * beta / max(found.upper[0], alpha)
            remedy = f"For these predictions it must be at most about {most:.6g}."
            yield found.upper[0] <= alpha * (1 + CLOSE), broken, remedy
            w = found.witness(0)(sample.p)


def _harmless(sample: TrialSample, U: FloatArray, w: FloatArray, beta: float) -> FloatArray:
    """Return weighted residuals with |E[u_s (y_a - f_a)]| <= beta for all s, a that maximise E<w, y - f>."""
    n, d = sample.p.shape
    blocks = [sparse.csr_array((U * sample.weight[:, None]).T) for _ in range(d)]
    A = sparse.block_diag(blocks, format="csr")  # outcomes in the order label, row
    centre = A @ sample.p.T.ravel()
    one = sparse.hstack([sparse.eye_array(n)] * d, format="csr") if d > 1 else None
    found = linprog(
        -(w * sample.weight[:, None]).T.ravel(),
        A_ub=sparse.vstack([A, -A]),
        b_ub=np.concatenate([centre + beta, beta - centre]),
        A_eq=one,
        b_eq=None if one is None else np.ones(n),
        bounds=(0, 1),
        method="highs",
    )
    rho = sample.weight[:, None] * (found.x.reshape(d, n).T - sample.p)
    shown = float(np.abs(U.T @ rho).max())
    return np.asarray(rho * min(1.0, beta / shown) if shown > 0 else rho)  # the program's own rounding is undone


@rule("The supremum, its witnesses, the gain and the tolerance contradict each other; see other rules.", draw_problem)
def fits_reach_alpha(notion: Notion, sample: TrialSample) -> Findings:
    """Every solver reaches alpha, and the training Brier score never rises (spec 4.3).

    Algorithm 1 is tried where its basis is small and its tolerance large: its number of updates grows with the inverse
    square of the tolerance.
    """
    # about half of the violation at the start; not exactly, as fixed steps would then end on alpha itself
    alpha = max(0.47 * float(sample.suprema(notion).value.max()), 0.01)
    is_small = len(notion.basis(sample.p, alpha)) * sample.d <= 48
    is_fast = is_small and notion.tolerance(sample.p, alpha) >= 0.05 * alpha
    p, y = (sample.p[:, 0], sample.y[:, 0]) if sample.d == 1 else (sample.p, sample.y.argmax(axis=1))
    how: dict[str, Any] = {"notion": notion, "alpha": alpha, "geometry": "euclidean", "guard": False}
    for solver in (*SOLVERS, "first") if is_fast else SOLVERS:
        fit = multicalibrate(y, p, sample.C, subpopulations=Memberships(min_mass=0), solver=solver, **how)
        rise = largest_rise(fit, sample.p, sample.y, sample.weight)
        broken = f"The training Brier score of a fit with the solver {solver!r} rises by {rise:.3g} in an update."
        yield rise <= EXACT, broken, "A witness must point where the violation is: its sign or its weights are wrong."
        broken = (
            f"A fit with the solver {solver!r} ended as {str(fit.status)!r} after {fit.n_updates} updates: the "
            f"violation is {fit.violation:.6g}, certified {fit.upper:.6g}, for alpha={fit.alpha:g}."
        )
        yield fit.status == "reached", broken
