"""`measure_stream` and `multicalibrate_stream`: the same figures and fits, of rows that are never held whole.

A round of a fit takes two passes: one for the line search along the block step's direction, one for the moments and
losses after it. Every pass replays the updates so far from the start predictions, so nothing is kept of a row. The
direction's Gram matrix comes from a sample, as it does in memory; moments, line search and losses are sums over all
rows, so no promise depends on the sample (spec 4.4). Paper: Algorithm 1 and Lemma 5.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowcal.auditing import Measurement
from lowcal.blocks import block_terms
from lowcal.engines.clipped import Bins, Line
from lowcal.engines.products import dot
from lowcal.engines.reference import stack
from lowcal.engines.slopes import Slopes
from lowcal.errors import FitInterrupted, InvalidInput, suggest
from lowcal.files.batches import open_batches
from lowcal.fitting import read_random_state
from lowcal.inputs import check_whole
from lowcal.moments import moments_at
from lowcal.notions import Full, Notion, parse_notion
from lowcal.notions.base import Finite, Suprema
from lowcal.private import public_weights
from lowcal.progress import Passes
from lowcal.provenance import remember, sketch_rows
from lowcal.runs import Fit, Record
from lowcal.shrinkage import Fitted, group_terms, line_terms, logit_weights
from lowcal.simplex import FloatArray, Geometry, brier, log_loss
from lowcal.solvers import ROUNDING, Problem, bound, guaranteed_progress, is_within
from lowcal.stopping import Status
from lowcal.streams import (
    Piece,
    Roles,
    Sample,
    Stream,
    check_subpopulations,
    large_enough,
    learn,
    survey,
    wanted_columns,
)
from lowcal.subpopulations import Subpopulations
from lowcal.subpopulations.base import Family, Encoded
from lowcal.subpopulations.batches import BatchEncoder
from lowcal.tolerances import Tolerance
from lowcal.updates import Predictor, Term, Update, compile_updates, sum_terms
from lowcal.weights import Weight


def measure_stream(
    rows: object,
    *,
    y: str = "y",
    p: str = "p",
    sample_weight: str | None = None,
    subpopulations: Subpopulations | None = None,
    notion: str | Notion = "degree-2",
    classes: Sequence[Any] | None = None,
    progress: bool = False,
    random_state: int | np.random.Generator | None = None,
) -> Measurement:
    """Return the violation of a notion on every subpopulation of a stream of rows, exactly: `measure`, batch by batch.

    Values and cut points of columns are learned from a random sample of 2^18 rows; all that is measured is a sum over
    all rows. A group must be worth min_mass rows of the whole stream and show 3 rows in the sample, so only groups
    whose mass, and so whose violation, is below about 5 / 2^18 may be overlooked.
    Cost: two passes over the rows; memory for a few batches of 2^18 rows and the sample.

    Parameters
    ----------
    rows : the path of an Arrow or Parquet file, or several; a list of tables, or a function that returns an iterator of
        tables, the same ones at every call: Arrow tables or record batches, pandas or polars frames, dicts of arrays.
    y, p, sample_weight : the columns of labels, of the probability of the second class, of weights.
    subpopulations : Groups, Intersections, Memberships, Thresholds or a sum of these; None: the groups of all other
        columns. Columns that are no subpopulations need not be read: name the others.
    notion : "multiaccuracy", a degree, or "full-..."; smooth weights need the rows in memory.
    progress : show how far each pass is.
    random_state : seed of the sample; None: always the same one.

    Examples
    --------
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(5000, random_state=0)
    >>> table = {"label": data.y, "score": data.p, **data.X}
    >>> def batches():
    ...     return ({name: column[s : s + 1000] for name, column in table.items()} for s in range(0, 5000, 1000))
    >>> measured = measure_stream(batches, y="label", p="score")
    >>> measured.worst(1)[0][0], len(measured.names)
    ('everyone', 31)
    """
    chosen = _check_notion(parse_notion(notion))
    with closing(Passes(progress)) as bar:
        stream, sample = open_stream(rows, Roles(y, p, sample_weight), subpopulations, classes, random_state, bar)
        sample, tally = _first_tally(stream, sample, chosen, with_losses=False)
    assert tally.mass is not None
    found = replace(chosen.norm(_weights(chosen), tally.moments), moments=tally.moments)
    return Measurement(chosen, sample.learner.names, tally.mass[:, 0], found, True)


def multicalibrate_stream(
    rows: object,
    *,
    y: str = "y",
    p: str = "p",
    sample_weight: str | None = None,
    subpopulations: Subpopulations | None = None,
    notion: str | Notion = "degree-2",
    alpha: float = 0.01,
    geometry: Geometry | None = None,
    max_updates: int | None = None,
    callback: Callable[[Record], bool | None] | None = None,
    progress: bool = False,
    random_state: int | np.random.Generator | None = None,
    classes: Sequence[Any] | None = None,
) -> Fit:
    """Recalibrate probabilities until the notion holds on every subpopulation of a stream: `multicalibrate`, in passes.

    The solver is "block", without held-out rows and without a guard: give many more rows than constraints. What it
    returns is an ordinary `Fit`, whose violation, losses and bound are of all rows.
    Cost: two passes over the rows, and two for each update; memory as in `measure_stream`.

    Parameters
    ----------
    rows, y, p, sample_weight, subpopulations, notion, classes : as in `measure_stream`.
    alpha : the largest violation that may remain on these rows; always a number here.
    geometry, max_updates : as in `multicalibrate`.
    callback : called with a `Record` after every update; return True to stop.
    random_state : seed of the sample and of subsamples; None: always the same one.

    Examples
    --------
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(5000, random_state=0)
    >>> table = {"label": data.y, "score": data.p, **data.X}
    >>> fit = multicalibrate_stream([table], y="label", p="score", alpha=0.005)
    >>> fit.status.value, fit.violation <= 0.005
    ('reached', True)
    >>> calibrated = fit.predictor(data.p, data.X)
    """
    Tolerance(alpha)
    chosen = _check_notion(parse_notion(notion))
    _check_options(geometry, max_updates, callback)
    with closing(Passes(progress)) as bar:
        stream, sample = open_stream(rows, Roles(y, p, sample_weight), subpopulations, classes, random_state, bar)
        sample, tally = _first_tally(stream, sample, chosen, with_losses=True)
        seed = _seed(random_state)
        problem = Problem(sample.y, sample.weight, chosen, sample.learner, alpha, geometry or "mirror", seed=seed)
        return _Run(stream, sample, problem, chosen, tally, max_updates, callback)()


def _check_notion(notion: Notion) -> Finite:
    if not isinstance(notion, Finite):
        raise InvalidInput(
            f"A stream is measured by moments, which {notion} is not made of. Use multiaccuracy, a degree or full, or "
            "measure and multicalibrate on rows that fit into memory."
        )
    return notion


def _check_options(geometry: object, max_updates: object, callback: object) -> None:
    valid = ("euclidean", "mirror")
    if geometry is not None and geometry not in valid:
        raise InvalidInput(f"Unknown geometry {geometry!r}; valid: {', '.join(valid)}.{suggest(str(geometry), valid)}")
    if max_updates is not None:
        check_whole("max_updates", max_updates, 1)
    if callback is not None and not callable(callback):
        raise InvalidInput(f"callback must be a function of a Record, but {callback!r} was given.")


def _seed(random_state: int | np.random.Generator | None) -> int:
    return 0 if random_state is None else int(read_random_state(random_state).integers(2**31))


def open_stream(
    rows: object,
    roles: Roles,
    subpopulations: Subpopulations | None,
    classes: Sequence[Any] | None,
    random_state: int | np.random.Generator | None,
    bar: Passes,
) -> tuple[Stream, Sample]:
    """Survey the rows and learn the class from the sample."""
    chosen, batches = check_subpopulations(subpopulations), open_batches(rows)
    found = survey(batches, roles, wanted_columns(chosen), classes, _seed(random_state), bar)
    sample = learn(chosen, found, roles)
    return Stream(batches, roles, found, BatchEncoder(sample.learner.encoder), bar), sample


# --- sums over all rows -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over all rows after some updates: moments, losses, sums of w and w^2 by member, and a sketch of the rows."""

    moments: FloatArray
    brier: float
    log_loss: float
    mass: FloatArray | None
    sketch: tuple[FloatArray, FloatArray]

    def keep(self, members: np.typing.NDArray[np.intp]) -> Tally:
        """Return the sums of some of the members."""
        return replace(self, moments=self.moments[members], mass=None if self.mass is None else self.mass[members])


class Tallying:
    """A tally under construction."""

    def __init__(
        self, families: Sequence[Family], weights: Sequence[Weight], n: int, with_mass: bool, with_losses: bool
    ) -> None:
        self.families, self.weights, self.with_losses = families, weights, with_losses
        members = sum(len(family.names) for family in families)
        self.moments = np.zeros((members, len(weights), 1))
        self.mass = np.zeros((members, 2)) if with_mass else None
        self.brier = self.log_loss = 0.0
        self.watched, self.sketch = sketch_rows(n), ([np.zeros((0, 1))], [np.zeros((0, 1))])

    def add(self, piece: Piece, p: FloatArray) -> None:
        """Add the rows of a piece with their present predictions."""
        design = stack([family.design(piece.rows) for family in self.families])
        rho = piece.y - p
        rho *= piece.weight[:, None]
        self.moments += moments_at(design, self.weights, p, rho)
        if self.mass is not None:
            self.mass += design.moments(np.column_stack([piece.weight, np.square(piece.weight)]))
        if self.with_losses:
            self.brier += brier(p, piece.y, piece.weight)
            self.log_loss += log_loss(p, piece.y, piece.weight)
            here = self.watched[(self.watched >= piece.start) & (self.watched < piece.start + len(p))] - piece.start
            self.sketch[0].append(piece.y[here])
            self.sketch[1].append(p[here])

    def done(self) -> Tally:
        """Return the sums."""
        y, p = (np.concatenate(part) for part in self.sketch)
        return Tally(self.moments, self.brier, self.log_loss, self.mass, (y, p))


def _first_tally(stream: Stream, sample: Sample, notion: Finite, with_losses: bool) -> tuple[Sample, Tally]:
    """Return the tally of the start, and the sample, both with the members that the whole stream has enough rows of."""
    sums = Tallying(sample.learner.families, _weights(notion), stream.found.n, True, with_losses)
    stream.each("measuring", lambda piece: sums.add(piece, piece.p))
    tally = sums.done()
    assert tally.mass is not None
    kept = large_enough(sample, tally.mass)
    return sample.keep(kept), tally.keep(kept)


def _weights(notion: Finite) -> Sequence[Weight]:
    """Return the weights whose moments a notion wants of scalar predictions: the same for all of them."""
    return public_weights(notion, 1) if isinstance(notion, Full) else notion.constraints(np.zeros((1, 1)))


Replay = Callable[[FloatArray, Encoded], FloatArray]


def _replay(updates: Sequence[Update], predictor: Predictor) -> Replay:
    """Return how predictions of a piece follow from the start: one program, where the updates are made of look-ups."""
    compiled = compile_updates(updates) if updates else None
    return predictor.replay if compiled is None else compiled


# --- the fit ------------------------------------------------------------------------------------------------


class _Run:
    """One fit of a stream."""

    def __init__(
        self,
        stream: Stream,
        sample: Sample,
        problem: Problem,
        notion: Finite,
        tally: Tally,
        max_updates: int | None,
        callback: Callable[[Record], bool | None] | None,
    ) -> None:
        self.stream, self.sample, self.problem, self.notion = stream, sample, problem, notion
        self.callback, self.tally = callback, tally
        self.bound = bound("block", problem, sample.p, self._loss(tally))
        self.limit = self.bound if max_updates is None else max_updates
        self.updates: tuple[Update, ...] = ()
        self.history: list[Record] = []
        self.n_passes = 1

    def __call__(self) -> Fit:
        """Update until the notion holds, a stop rule speaks, or nothing lowers the loss any more."""
        status = None
        try:
            for attempt in itertools.count():
                if self._holds():
                    break
                if not self._update(attempt):
                    status = Status.STALLED
                    break
                status = self._stop()
                if status is not None:
                    break
        except KeyboardInterrupt:
            raise FitInterrupted(
                f"Interrupted after {len(self.updates)} updates; they are kept in .fit.", self._fit(Status.STOPPED)
            ) from None
        if self.updates:
            remember(self.stream.found.n, *self.tally.sketch)
        return self._fit(status)

    @property
    def suprema(self) -> Suprema:
        """The suprema after the updates so far."""
        return replace(self.notion.norm(_weights(self.notion), self.tally.moments), moments=self.tally.moments)

    def _holds(self) -> bool:
        return is_within(float(self.suprema.upper.max()), self.problem.alpha)

    def _loss(self, tally: Tally) -> float:
        return tally.brier if self.problem.geometry == "euclidean" else tally.log_loss

    def _stop(self) -> Status | None:
        if self.callback is not None and self.callback(self.history[-1]):
            return Status.STOPPED
        return Status.LIMIT if len(self.updates) >= self.limit else None

    def _update(self, attempt: int) -> bool:
        """Take a shrunk step (first, in log odds), the step along all constraints, or along the worst one."""
        found = self.suprema
        return (
            (attempt < 2 and self._shrunk(found, attempt))
            or self._along(self._directions(found, attempt), 1.0, found)  # least squares: about one step
            or self._along_worst(found)
        )

    def _shrunk(self, found: Suprema, attempt: int) -> bool:
        """Take a line of log odds for everyone, then a shift and a slope for each group, shrunk by the sample."""
        if self.problem.geometry != "mirror":
            return False
        learner, seed = self.sample.learner, (self.problem.seed, attempt)
        rows = Fitted(self._sampled(), self.sample.y, self.sample.weight)
        if attempt == 0:
            shrunk = line_terms(learner, rows, seed)
        else:
            shrunk = group_terms(learner.families, logit_weights(self.notion, 1), learner, rows, seed)
        return shrunk is not None and self._along(shrunk, 1.0, found)

    def _directions(self, found: Suprema, attempt: int) -> tuple[Term, ...]:
        """Return the block step's direction: moments of all rows, the Gram matrix of the sample."""
        s, p = self.sample, self._sampled()
        place = {u: k for k, u in enumerate(_weights(self.notion))}
        assert found.moments is not None
        known = replace(found, moments=found.moments[:, [place[u] for u in self.notion.features(p)]])
        seed = (self.problem.seed, attempt)
        return block_terms(
            self.notion,
            s.learner,
            p,
            self.problem.rho(p),
            s.weight,
            known,
            self.problem.geometry,
            seed,
            self.problem.alpha,
        )

    def _along_worst(self, found: Suprema) -> bool:
        """Step along the witness of the worst subpopulation."""
        j, witness = found.worst, found.witness(found.worst)
        terms = (Term(self.sample.learner.member(j), witness.weights, witness.coefficients[None]),)
        return self._along(terms, self._guess(terms, float(found.value.max())), found)

    def _sampled(self) -> FloatArray:
        """Return the predictions of the sampled rows after the updates so far."""
        return self._predictor(self.updates).replay(self.sample.p, self.sample.learner.rows)

    def _predictor(self, updates: tuple[Update, ...]) -> Predictor:
        return Predictor(self.sample.learner.encoder, updates, self.stream.found.layout)

    def _along(self, terms: tuple[Term, ...], guess: float, found: Suprema) -> bool:
        """Take the line-search step along some terms, if it makes the progress that the worst constraint guarantees."""
        eta = self._line_search(terms, guess)
        return eta > 0.0 and self._take(tuple(term.scaled(eta) for term in terms), found)

    def _line_search(self, terms: tuple[Term, ...], guess: float) -> float:
        """Return a step that loses no more than the Newton step, from sums over all rows."""
        line = (Bins if self.problem.geometry == "euclidean" else Slopes)(guess)
        replay = _replay(self.updates, self._predictor(self.updates))

        def add(piece: Piece) -> None:
            p = replay(piece.p, piece.rows)
            delta = sum_terms(terms, p, piece.rows)
            line.add(Line(p[:, 0], piece.y[:, 0], delta[:, 0], piece.weight))

        self.stream.each(f"update {len(self.updates) + 1}, searching", add)
        return line.best()

    def _guess(self, terms: tuple[Term, ...], violation: float) -> float:
        """Return about how far to go along the worst constraint: its violation over the curvature of the sample."""
        s, p = self.sample, self._sampled()
        square = np.square(sum_terms(terms, p, s.learner.rows)[:, 0])
        bend = dot(s.weight, square if self.problem.geometry == "euclidean" else square * p[:, 0] * (1.0 - p[:, 0]))
        return violation / bend if bend > 0.0 else 1.0

    def _take(self, terms: tuple[Term, ...], found: Suprema) -> bool:
        """Take an update if the loss of all rows falls as much as the violation guarantees (spec 4.3)."""
        updates = (*self.updates, Update(terms, self.problem.geometry))
        tally = self._measure(updates)
        enough = guaranteed_progress(self.problem, float(found.value.max()), 1)
        if self._loss(tally) > self._loss(self.tally) - enough + ROUNDING:
            return False
        self.updates, self.tally = updates, tally
        violation = float(self.suprema.value.max())
        self.history.append(Record(len(updates), violation, tally.brier, tally.log_loss))
        return True

    def _measure(self, updates: tuple[Update, ...]) -> Tally:
        """Return the tally after some updates."""
        replay = _replay(updates, self._predictor(updates))
        sums = Tallying(self.sample.learner.families, _weights(self.notion), self.stream.found.n, False, True)
        self.stream.each(
            f"update {len(updates)}, measuring", lambda piece: sums.add(piece, replay(piece.p, piece.rows))
        )
        self.n_passes += 1
        return sums.done()

    def _fit(self, status: Status | None) -> Fit:
        """Say what is true of the predictor on all rows."""
        found = self.suprema
        if status is not Status.STOPPED and self._holds():
            status = Status.REACHED
        return Fit(
            self._predictor(self.updates),
            status or Status.STALLED,
            tuple(self.history),
            float(found.value.max()),
            float(found.upper.max()),
            self.bound,
            self.n_passes,
            True,
            self.notion,
            self.problem.alpha,
        )
