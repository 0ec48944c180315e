"""Updates and predictors: an update is a sum of terms theta c(x) w(f), then the move; a predictor is a list of them.

`Update.__call__` is the only code that moves a prediction: fitting, early stopping, prediction and replay all call it;
a single row is moved by the same sums in plain numbers, without the cost of a table.
Paper: lines 8 and 9 of Algorithm 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np

from lowcal.data.batches import Batches, at_row, is_source, open_batches, to_numpy
from lowcal.data.cards import is_on_card
from lowcal.data.errors import InvalidInput, brief
from lowcal.data.frames import Table as Frame
from lowcal.data.frames import column_like
from lowcal.data.inputs import (
    SUM_TOLERANCE,
    Layout,
    are_names,
    read_features,
    read_probabilities,
    read_table,
    take_named,
)
from lowcal.kernels.reference import Design, rows_in_cache
from lowcal.kernels.replay import LOG_ODDS, MirrorProgram, Program
from lowcal.kernels.replay import Read as ColumnRead
from lowcal.kernels.simplex import FloatArray, Geometry, IntArray, move, move_row, scores
from lowcal.notions.moments import displacement, displacer
from lowcal.notions.weights import WEIGHTS, Knots, LogOdds, Monomial, Points, Weight, evaluate, row_weights
from lowcal.rows.engines import open_engine
from lowcal.rows.explaining import Explanation, explain_rows
from lowcal.subpopulations.base import Encoded, Encoder, Family, encode_batch
from lowcal.subpopulations.single_row import (
    CodeRead,
    MemberRead,
    Read,
    Row,
    RowFacts,
    columns_of,
    reader_of,
    reads_of,
    row_of,
)
from lowcal.subpopulations.union import look_ups_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: Where encoded rows hold a code column: its place, or its part of a union and its place there.
Key: TypeAlias = tuple[int, ...]
#: From this many updates in a row on, a predictor runs them as one program.
MANY = 8
#: The tables of updates that are prepared together hold at most this many numbers.
MOST_NUMBERS = 1 << 22

#: A slice of the rows and the predictions there -> the displacement there.
Displacement: TypeAlias = Callable[[slice, FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class Term:
    """sum over c in family, u in weights, labels a of theta[c, u, a] c(x) u(f) e_a."""

    family: Family
    weights: tuple[Weight, ...]
    theta: FloatArray

    def __call__(self, p: FloatArray, design: Design) -> FloatArray:
        """Return the displacement at every row, shape (n, d); `design` is the family's on these rows."""
        return displacement(design, evaluate(self.weights, p), self.theta)

    def on(self, rows: Encoded) -> Displacement:
        """Return the displacement on encoded rows as a function of a slice of them and the predictions there."""
        design = self.family.design(rows)
        if self._is_witness:
            return partial(self._of_members, design)
        displace = displacer(design, self.theta)
        return lambda part, p: displace(part, evaluate(self.weights, p))

    @property
    def _is_witness(self) -> bool:
        """Whether the term is a witness of one subpopulation, whose weights take longer than its rows are found."""
        return len(self.family.names) == 1 and any(isinstance(u, Knots | Points) for u in self.weights)

    def _of_members(self, design: Design, part: slice, p: FloatArray) -> FloatArray:
        """Return the displacement on a slice of the rows; the weights are evaluated on members alone."""
        here, delta = design.rows(part), np.zeros(p.shape)
        members = np.flatnonzero(here.column(0))
        delta[members] = self(p[members], here.rows(members))
        return delta

    def scaled(self, step: float) -> Term:
        """Return the term times a step size."""
        return replace(self, theta=step * self.theta)

    def written_weights(self) -> list[dict[str, Any]]:
        """Return the weights as plain data; those of a user's own must be registered."""
        for u in self.weights:
            WEIGHTS.require(u)
        return [u.to_dict() for u in self.weights]  # type: ignore[attr-defined]

    def to_dict(self) -> dict[str, Any]:
        """Return the term as plain data."""
        return {"family": self.family.to_dict(), "weights": self.written_weights(), "theta": self.theta.tolist()}


@dataclass(frozen=True, eq=False)
class Update:
    """f <- move(f, sum of terms): add and project, or add in log space and normalise; without terms f stays."""

    terms: tuple[Term, ...]
    geometry: Geometry = "euclidean"

    def __call__(self, p: FloatArray, rows: Encoded) -> FloatArray:
        """Return the moved predictions on encoded rows."""
        moved = np.empty(p.shape)
        for part, here in self.pieces(p, rows):
            moved[part] = here
        return moved

    def pieces(self, p: FloatArray, rows: Encoded) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the moved predictions, a piece of the rows at a time."""
        if not self.terms:
            yield slice(0, len(p)), p
            return
        compiled = compile_updates([self])
        if compiled is not None:
            yield from compiled.pieces(p, rows)
            return
        for part, delta in displacements(self.terms, p, rows):
            yield part, move(p[part], delta, self.geometry)

    def __str__(self) -> str:
        named = [
            f"{theta:+.4g} * [{brief(name)}] * {u}{'' if term.theta.shape[2] == 1 else f' on label {a}'}"
            for term in self.terms
            for name, by_weight in zip(term.family.names, term.theta, strict=True)
            for u, by_label in zip(term.weights, by_weight, strict=True)
            for a, theta in enumerate(by_label)
            if theta != 0.0
        ]
        return "f <- f " + " ".join(named[:6]) + (f" ... ({len(named)} terms)" if len(named) > 6 else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the update as plain data."""
        return {"geometry": self.geometry, "terms": [term.to_dict() for term in self.terms]}


def displacements(terms: Sequence[Term], p: FloatArray, rows: Encoded) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the displacement of all terms, a piece of the rows at a time."""
    each = [term.on(rows) for term in terms]
    for part in rows_in_cache(len(p), max([1, *(term.theta[0].size for term in terms)])):
        here = p[part]
        delta = np.zeros(here.shape)
        for displace in each:
            delta += displace(part, here)
        yield part, delta


@dataclass(frozen=True, eq=False)
class Compiled:
    """Scalar updates on code columns as one program, and where the rows hold its columns."""

    program: Program | MirrorProgram
    keys: tuple[Key, ...]

    def __call__(self, p: FloatArray, rows: Encoded) -> FloatArray:
        """Return the predictions after all updates."""
        return self.program(p[:, 0], [_at(rows, key) for key in self.keys])[:, None]

    def pieces(self, p: FloatArray, rows: Encoded) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the predictions after all updates, a piece of the rows at a time."""
        for part, moved in self.program.pieces(p[:, 0], [_at(rows, key) for key in self.keys]):
            yield part, moved[:, None]

    def one(self, p: float, row: Any) -> float:
        """Return the prediction of one encoded row."""
        return self.program.one(p, [_at(row, key) for key in self.keys])


def _has_look_ups(update: Update, weights: Any) -> bool:
    """Whether an update is scalar, its families live on code columns, and its weights are of these kinds."""
    return bool(update.terms) and all(
        term.theta.shape[2] == 1
        and all(isinstance(u, weights) for u in term.weights)
        and look_ups_of(term.family) is not None
        for term in update.terms
    )


def table_size(update: Update) -> int | None:
    """Return how many numbers the tables of an update's look-ups hold; None if it is not made of look-ups.

    It is if it is scalar and Euclidean, its families live on code columns, and its weights are powers of f.
    """
    if update.geometry != "euclidean" or not _has_look_ups(update, Monomial):
        return None
    tables = ((len(term.weights), t) for term in update.terms for _, t in look_ups_of(term.family) or ())
    return sum(n_weights * t.shape[0] for n_weights, t in tables)


def _reads(term: Term) -> Iterator[tuple[Key, int, FloatArray]]:
    """Yield the look-ups (column, power of f, table) of a term on code columns."""
    start = 0
    for key, decode in look_ups_of(term.family) or ():
        table = decode.spread(term.theta[start : start + decode.shape[1], :, 0])
        start += decode.shape[1]
        for s, u in enumerate(term.weights):
            power = len(u.factors) if isinstance(u, Monomial) else LOG_ODDS
            yield key, power, np.ascontiguousarray(table[:, s])


def compile_updates(updates: Sequence[Update]) -> Compiled | None:
    """Return a program that does the same as the updates; None if one is of another kind, or the tables are large."""
    is_mirror = bool(updates) and all(update.geometry == "mirror" for update in updates)
    if is_mirror and not all(_has_look_ups(update, Monomial | LogOdds) for update in updates):
        return None
    sizes = [0 if is_mirror else table_size(update) for update in updates]
    if any(size is None for size in sizes) or (len(updates) > 1 and sum(size or 0 for size in sizes) > MOST_NUMBERS):
        return None
    every = [[read for term in update.terms for read in _reads(term)] for update in updates]
    keys = {key: k for k, key in enumerate(dict.fromkeys(key for reads in every for key, _, _ in reads))}
    listed = [[ColumnRead(keys[key], power, table) for key, power, table in reads] for reads in every]
    return Compiled(MirrorProgram.of(listed) if is_mirror else Program.of(listed), tuple(keys))


def _runs(updates: Sequence[Update]) -> Iterator[list[Update]]:
    """Yield runs of updates that are made of look-ups and whose tables together are small; others stand alone."""
    run, total = list[Update](), 0
    for update in updates:
        size = table_size(update)
        total += MOST_NUMBERS + 1 if size is None else size
        if run and total > MOST_NUMBERS:
            yield run
            run, total = [], MOST_NUMBERS + 1 if size is None else size
        run.append(update)
    if run:
        yield run


def _at(rows: Any, key: Key) -> Any:
    """Return the code column that a key names: its place, inside its part of a union."""
    for k in key:
        rows = rows[k]
    return rows


@dataclass(frozen=True, eq=False)
class Predictor:
    """What recalibrates probabilities: f_T = u_T o ... o u_1 (f_0) for any start f_0 = p.

    `predictor(p, X)` replays the updates on new rows of any supported frame; `predictor[:50]` keeps the first 50;
    `predictor.staged(p, X)` yields the predictions after each update.
    """

    encoder: Encoder
    updates: tuple[Update, ...]
    layout: Layout
    #: The names under which the encoder reads the scores of p as columns of X: log odds, or log p of each class.
    scores: tuple[str, ...] = ()

    @overload
    def __call__(self, p: str | Sequence[str], X: object) -> Any: ...

    @overload
    def __call__(self, p: ArrayLike, X: object = None) -> FloatArray: ...

    def __call__(self, p: ArrayLike, X: object = None) -> Any:
        """Return the calibrated probabilities, in the shape of p.

        p may be the name of a column of X: a data frame then gives a column of its own kind. A list of names, one for
        each class, gives an array. If X is a source of rows (a Parquet or Arrow file, a folder, a glob, a list of
        files, an Arrow dataset, a polars LazyFrame, a function that returns an iterator of tables), names give an
        iterator instead: an array for each batch of rows, in their order, never all of them. A Dask frame gives a lazy
        series, or a frame with a column for each name; a Ray dataset gives a lazy dataset of these columns; a Spark
        frame gives a column of numbers, or of arrays.

        >>> from lowcal import Groups, multicalibrate
        >>> rows = {"y": [0, 1] * 50, "p": [0.4, 0.5] * 50, "sex": ["F", "M"] * 50}
        >>> predictor = multicalibrate("y", "p", rows, subpopulations=Groups("sex")).predictor
        >>> batches = predictor("p", lambda: iter([rows, rows, rows]))
        >>> [len(calibrated) for calibrated in batches]
        [100, 100, 100]
        """
        if is_on_card(p) or is_on_card(X):
            from lowcal.rows.card.reading import predict_on_card

            return predict_on_card(self, p, X)
        if are_names(p):
            names: Any = p if isinstance(p, str) else tuple(p)  # type: ignore[arg-type]
            if (engine := open_engine(X)) is not None:
                return engine.predict(self, names)
            if is_source(X):
                return self._in_batches((p,) if isinstance(p, str) else names, open_batches(X))
            table = read_table(X)
            calibrated = self(take_named(table, p), table)
            return column_like(X, p, calibrated) if isinstance(p, str) else calibrated
        given = read_probabilities(p, self.layout)
        return self.layout.show(self.replay(given, self.rows(given, read_features(X, len(given)))), p)

    def _in_batches(self, names: tuple[str, ...], source: Batches) -> Iterator[FloatArray]:
        """Yield the calibrated probabilities of each batch of a source."""
        is_own, start = reader_of(self.encoder) is not None, 0
        for batch in source.read(tuple(dict.fromkeys([*names, *self.columns])) if is_own else None):
            source.require(batch, names)
            with at_row(start):
                columns = [to_numpy(batch[name]) for name in names]
                p = columns[0] if len(columns) == 1 else np.column_stack(columns)
                given = read_probabilities(p, self.layout)
                known = dict(zip(self.scores, scores(given).T, strict=True)) if self.scores else {}
                calibrated = self.replay(given, encode_batch(self.encoder, {**batch, **known}))
            yield self.layout.show(calibrated, p)
            start += len(given)

    def rows(self, p: FloatArray, table: Frame) -> Encoded:
        """Return the encoded rows of a table, for checked predictions p."""
        return self.encoder(table.joined(self.scores, scores(p)) if self.scores else table)

    def one(self, p: float | Sequence[float], row: Mapping[str, Any] | Sequence[Any]) -> float | FloatArray:
        """Return the calibrated probability of one row, without the cost of a data frame.

        `predictor.one(p, row)` equals `predictor([p], X)[0]` for a table X that holds the row alone, but for rounding.

        Parameters
        ----------
        p : a probability, or one for each class.
        row : the raw values, as a dict from column names, or as a sequence in the order of `predictor.columns`.

        >>> from lowcal import Groups, multicalibrate
        >>> from lowcal.datasets import make_miscalibrated
        >>> data = make_miscalibrated(5000, random_state=0)
        >>> predictor = multicalibrate(data.y, data.p, data.X, subpopulations=Groups(), alpha=0.005).predictor
        >>> row = {name: data.X[name][0] for name in predictor.columns}
        >>> bool(abs(predictor.one(data.p[0], row) - predictor(data.p, data.X)[0]) < 1e-15)
        True
        """
        single, read = np.ndim(p) == 0, self._with_scores(row_of(self.columns, row), p)
        if single and self._by_program is not None:
            return self._by_program(read_probability(p, self.layout), read)
        given = read_point(p, self.layout)
        if self._by_row is not None:
            moved = self._by_row(given, read)
        else:
            start = np.array([given])
            moved = self.replay(start, self.rows(start, self._table_of_one(row, read)))[0].tolist()
        return moved[0] if single else self.layout.show(np.array([moved]), np.array([p]))[0]

    def explain(self, p: float | Sequence[float], row: Mapping[str, Any] | Sequence[Any]) -> Explanation:
        """Return why the probability of one row changed: what its groups, the trees and the score contributed.

        The contributions sum to the change in log odds, or in probability if all updates are Euclidean. Everything that
        applies to each row with this probability is called "score"; the trees of a sum are put together by the columns
        that lead to the row's leaves. Of predictors that mix both geometries, each Euclidean update is one
        contribution, "update 3" for `predictor.updates[2]`. The time does not depend on how many rows were fitted.

        Parameters
        ----------
        p : a probability, or one for each class.
        row : the raw values, as in `one`.

        >>> from lowcal import Groups, multicalibrate
        >>> y, sex = [0, 0, 0, 1] * 100 + [0, 1, 1, 1] * 100, ["F"] * 400 + ["M"] * 400
        >>> predictor = multicalibrate(y, [0.5] * 800, {"sex": sex}, subpopulations=Groups()).predictor
        >>> print(predictor.explain(0.5, {"sex": "F"}))
        0.50 became 0.25.
        <BLANKLINE>
                 Added to the log odds  Probability
          sex=F                -1.0837       0.2528
          sum                  -1.0837       0.2528
        """
        read = row_of(self.columns, row)
        for name in self.columns:
            if np.ndim(read(name)) > 0:
                raise InvalidInput(
                    f"explain takes one row, but {name!r} holds several values. Give one value a column."
                )
        given = np.array([read_point(p, self.layout)])
        return next(explain_rows(self, given, self._table_of_one(row, read)))

    def _with_scores(self, read: Row, p: float | Sequence[float]) -> Row:
        """Return the look-up of values in a row that knows the scores too."""
        if not self.scores:
            return read
        known = dict(zip(self.scores, scores(np.array([read_point(p, self.layout)]))[0].tolist(), strict=True))
        return lambda name: known[name] if name in known else read(name)

    def _table_of_one(self, row: Mapping[str, Any] | Sequence[Any], read: Row) -> Frame:
        """Return the table that holds one row, with all its columns where an encoder is not lowcal's own."""
        if reader_of(self.encoder) is not None:
            return Frame.of({name: [read(name)] for name in self.columns})
        return Frame.of({name: [value] for name, value in row.items()} if isinstance(row, Mapping) else [list(row)])

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of X that are read, in the order in which `one` takes a sequence."""
        return tuple(name for name in columns_of(self.encoder) if name not in self.scores)

    @cached_property
    def _by_row(self) -> RowUpdates | None:
        """All updates of a single row in plain numbers; None: by a table."""
        return _row_updates(self.encoder, self.updates)

    @cached_property
    def _by_program(self) -> Callable[[float, Row], float] | None:
        """All updates of a single row as one program, if they are made of look-ups and of one geometry."""
        read, compiled = reader_of(self.encoder), compile_updates(self.updates)
        if read is None or compiled is None:
            return None
        return lambda p, row: compiled.one(p, read(row))

    @cached_property
    def _segments(self) -> tuple[Update | Compiled, ...]:
        """The updates, long runs of those on code columns as programs."""
        segments: list[Update | Compiled] = []
        for run in _runs(self.updates):
            compiled = compile_updates(run) if len(run) >= MANY else None
            segments += run if compiled is None else [compiled]
        return tuple(segments)

    def staged(self, p: ArrayLike, X: object = None) -> Iterator[FloatArray]:
        """Yield the probabilities after each update."""
        current = read_probabilities(p, self.layout)
        rows = self.rows(current, read_features(X, len(current)))
        for update in self.updates:
            current = update(current, rows)
            yield self.layout.show(current, p)

    def replay(self, p: FloatArray, rows: Encoded) -> FloatArray:
        """Return the calibrated predictions for checked p and encoded rows."""
        for segment in self._segments:
            p = segment(p, rows)
        return p

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made again on first use."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __len__(self) -> int:
        """How many updates there are."""
        return len(self.updates)

    def __getitem__(self, rounds: slice) -> Predictor:
        """Return the predictor with some of the updates."""
        if not isinstance(rounds, slice):
            raise TypeError("A predictor is sliced, as in predictor[:50]; a single update is predictor.updates[t].")
        return replace(self, updates=self.updates[rounds])

    def __repr__(self) -> str:
        return f"Predictor({len(self.updates)} updates, {self.layout})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything needed to predict, as plain data (numbers, strings, lists, dictionaries)."""
        return {
            "kind": "lowcal.predictor",
            "layout": self.layout.to_dict(),
            "encoder": self.encoder.to_dict(),
            **({"scores": list(self.scores)} if self.scores else {}),
            "updates": [update.to_dict() for update in self.updates],
        }


# --- a single row ---------------------------------------------------------------------------------------------


def read_probability(p: Any, layout: Layout) -> float:
    """Return one checked probability of a binary problem."""
    if type(p) in (float, np.float64) and 0.0 <= p <= 1.0 and layout.n_classes == 2:
        return float(p)
    return float(read_probabilities([p], layout)[0, 0])


def read_point(p: Any, layout: Layout) -> list[float]:
    """Return one checked prediction, as `read_probabilities` does."""
    if np.ndim(p) == 0:
        return [read_probability(p, layout)]
    values = p.tolist() if isinstance(p, np.ndarray) else p
    is_plain = 1 < layout.d == len(values) and all(type(x) is float and 0.0 <= x <= 1.0 for x in values)
    total = sum(values) if is_plain else 0.0
    if abs(total - 1.0) > SUM_TOLERANCE:
        return [float(x) for x in read_probabilities([p], layout)[0]]
    return [x / total for x in values]


#: A prediction and a row -> the prediction after all updates.
RowUpdates: TypeAlias = Callable[[list[float], Row], list[float]]


def _row_updates(encoder: Encoder, updates: Sequence[Update]) -> RowUpdates | None:
    """Return the updates as one function of a single row; None if a part can't be read off a row, or is large."""
    read, facts = reader_of(encoder), RowFacts()
    if read is None:
        return None
    steps = []
    for update in updates:
        if not update.terms:  # it changes nothing, not even by rounding
            continue
        sums = _sums(update.terms, facts)
        if sums is None:
            return None
        steps.append((update.geometry, sums))
    if sum(each.size for _, sums in steps for each in sums) > MOST_NUMBERS:
        return None
    evaluate = facts.evaluator()

    def run(f: list[float], row: Row) -> list[float]:
        found = evaluate(read(row))
        for geometry, sums in steps:
            delta = [0.0] * len(f)
            for each in sums:
                delta = each.add(delta, f, found)
            f = move_row(f, delta, geometry)
        return f

    return run


class RowLookUp(NamedTuple):
    """Codes of one block: code v of the k-th position has its numbers in row `offset[k] + v` of the table."""

    block: int
    positions: IntArray
    offset: IntArray
    table: FloatArray

    def __call__(self, facts: Sequence[IntArray]) -> FloatArray:
        """Return the sum of the codes' rows."""
        rows = facts[self.block].take(self.positions) + self.offset
        return np.asarray(np.add.reduce(self.table.take(rows, axis=0), axis=0))


class RowProduct(NamedTuple):
    """Members of one block times their factors, shape (members, width)."""

    block: int
    positions: IntArray
    theta: FloatArray

    def __call__(self, facts: Sequence[FloatArray]) -> FloatArray:
        """Return the sum of the factors, each times its member."""
        return np.asarray(np.einsum("k,kw->w", facts[self.block].take(self.positions), self.theta))


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """sum over c, u and labels a of theta[c, u, a] c(x) u(f) e_a, for all terms of an update with the same weights."""

    weights: Callable[[Sequence[float]], Sequence[float]]
    constant: FloatArray
    parts: Sequence[RowLookUp | RowProduct]

    @property
    def size(self) -> int:
        """How many numbers the tables hold."""
        return sum(part[-1].size for part in self.parts)

    def add(self, delta: list[float], f: list[float], facts: Sequence[Any]) -> list[float]:
        """Return the displacement with this sum added to it."""
        total = self.constant
        for part in self.parts:
            total = total + part(facts)
        factors, u, d = total.tolist(), self.weights(f), len(f)
        return [before + sum(map(mul, u, factors[a::d])) for a, before in enumerate(delta)]


def _sums(terms: Sequence[Term], facts: RowFacts) -> list[WeightedSum] | None:
    """Return an update's terms, those of the same weights together; None if a family can't be read off a row."""
    groups: dict[tuple[Weight, ...], list[tuple[Read, FloatArray]]] = {}
    for term in terms:
        reads = reads_of(term.family, facts)
        if reads is None:
            return None
        pieces = np.split(term.theta.reshape(len(term.theta), -1), np.cumsum([read.size for read in reads])[:-1])
        groups.setdefault(term.weights, []).extend(zip(reads, pieces, strict=True))
    return [_weighted_sum(weights, reads) for weights, reads in groups.items()]


def _weighted_sum(weights: Sequence[Weight], reads: Sequence[tuple[Read, FloatArray]]) -> WeightedSum:
    """Return the sum over some reads, those of one block together."""
    constant, codes, members = np.zeros(reads[0][1].shape[1]), defaultdict(list), defaultdict(list)
    for read, theta in reads:
        if isinstance(read, CodeRead):
            codes[read.block].append((read.position, read.table.spread(theta)))
        elif isinstance(read, MemberRead):
            members[read.block].append((read.positions, theta))
        else:
            constant += theta[0]
    parts: list[RowLookUp | RowProduct] = []
    for block, found in codes.items():  # the tables one after the other
        tables = [table for _, table in found]
        offset = np.cumsum([0, *(len(table) for table in tables)])[:-1]
        parts.append(RowLookUp(block, np.array([position for position, _ in found]), offset, np.concatenate(tables)))
    for block, listed in members.items():  # the factors one below the other
        positions = np.array([k for places, _ in listed for k in places], dtype=np.intp)
        parts.append(RowProduct(block, positions, np.concatenate([theta for _, theta in listed])))
    return WeightedSum(row_weights(weights), constant, parts)
