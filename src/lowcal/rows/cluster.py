"""Rows on a cluster: every part of a table is encoded where it lies, and passes bring back sums.

What a worker remembers of its rows, predictions and designs, is only a cache. It goes with the rows when a worker is
lost; the engine then makes the rows again, and a pass replays what it needs from the updates that it brings along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from lowcal.data.batches import SOURCE, Batch, at_row, open_batches, read_whole, require_columns, to_numpy
from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import Layout
from lowcal.data.progress import Passes
from lowcal.kernels.exact import Fine, Scale
from lowcal.kernels.loops import part_of
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.rows.base import (
    REMEMBERED,
    START,
    Mask,
    Pass,
    Result,
    Shard,
    State,
    join_rows,
    kinds,
    take_rows,
    unpack_bits,
)
from lowcal.rows.disk import Far, RawRows, join_raw_rows, outcomes_of
from lowcal.rows.engines.base import Engine, Job, Part
from lowcal.rows.keys import draw_labels, uniforms
from lowcal.rows.reading import (
    Labels,
    Roles,
    Sampling,
    Survey,
    check_batch,
    encode_rows,
    encoded_columns,
    keep_large,
    learn_sample,
    length_of,
    require_weight,
    wanted_columns,
    weighted,
)
from lowcal.rows.wire import pack
from lowcal.subpopulations import Subpopulations, WeakLearner
from lowcal.subpopulations.base import Encoded, Encoder


class ByPart(dict[int, Any]):
    """What was found in parts of the rows, by their numbers."""

    def __add__(self, other: ByPart) -> ByPart:
        return ByPart({**self, **other})

    def in_order(self) -> list[Any]:
        """Return what was found, in the order of the rows."""
        return [self[number] for number in sorted(self)]


class Counted(NamedTuple):
    """The sums of some rows, and how many these are; None: there are none."""

    n: int
    sums: Any

    def __add__(self, other: Counted) -> Counted:  # type: ignore[override]
        if self.sums is None or other.sums is None:
            return Counted(self.n + other.n, other.sums if self.sums is None else self.sums)
        return Counted(self.n + other.n, self.sums + other.sums)


# --- on workers -----------------------------------------------------------------------------------------------


class Block:
    """The encoded rows of a part, with the shards that passes visit; None: the part is empty."""

    def __init__(self, raw: RawRows | None) -> None:
        self.raw = raw
        self._shards: dict[View, Shard] = {}

    def __len__(self) -> int:
        return 0 if self.raw is None else len(self.raw)

    def __sizeof__(self) -> int:
        return 0 if self.raw is None else self.raw.nbytes

    def __reduce__(self) -> tuple[type[Block], tuple[RawRows | None]]:
        return Block, (self.raw,)

    def shard(self, view: View, number: int) -> Shard:
        """Return the rows as a view shows them, with what is remembered of the last few views."""
        shard = self._shards.pop(view, None) or view.shard(self, number)
        self._shards[view] = shard
        if len(self._shards) > REMEMBERED:
            del self._shards[next(iter(self._shards))]
        return shard


@dataclass(frozen=True, eq=False)
class View:
    """How blocks are seen: the numbers of their first rows, weights that sum to one, and outcomes if these are drawn.

    Raw weights are divided by `most` and `total`. `drawn` are another view, a state and a seed.
    """

    starts: tuple[int, ...]
    scale: Scale
    most: float
    total: float
    d: int
    drawn: tuple[View, State, tuple[int, ...]] | None = None

    def shard(self, block: Block, number: int) -> Shard:
        """Return the rows of a block that is not empty."""
        raw = block.raw
        assert raw is not None
        if self.drawn is None:
            y = outcomes_of(raw.y, self.d)
            return Shard(raw.rows, raw.p, y, self.weight(raw), self.scale, self.starts[number])
        base, state, seed = self.drawn
        shard = block.shard(base, number)
        return shard.with_outcomes(draw_labels(shard.at(state), uniforms(seed, shard.first, len(shard))))

    def weight(self, raw: RawRows) -> FloatArray:
        """Return weights that sum to one over all rows."""
        return raw.weights(self.most, self.total)


def read(table: Any, wanted: Sequence[str] | None, shown: str = SOURCE) -> Iterator[Batch]:
    """Yield batches of a part; series of numbers as the arrays they hold, which are cut faster and have no index."""
    for batch in replace(open_batches([table]), shown=shown).read(wanted):
        yield {name: to_numpy(column) if _has_numbers(column) else column for name, column in batch.items()}


def _has_numbers(column: Any) -> bool:
    kind = getattr(column, "dtype", None)
    return isinstance(kind, np.dtype) and kind.kind in "biuf"


def visit(block: Block, number: int, view: View, one: Pass[Any]) -> Counted:
    """Return the sums of a pass over the rows of a block."""
    if len(block) == 0:
        return Counted(0, None)
    shard = block.shard(view, number)
    with part_of(len(shard), view.scale.n):
        return Counted(len(shard), one(shard))


def gather(block: Block, number: int, view: View, rows: IntArray) -> Counted:
    """Return rows by their numbers, as they are encoded, with predictions, outcomes and weights."""
    here = rows[(rows >= view.starts[number]) & (rows < view.starts[number] + len(block))] - view.starts[number]
    if len(here) == 0:
        return Counted(len(block), ByPart())
    shard = block.shard(view, number)
    picked = take_rows(shard.rows, here), shard.at(START)[here], shard.y[here], shard.weight[here]
    return Counted(len(block), ByPart({number: picked}))


class Size(NamedTuple):
    """How many rows a block holds, the first, their kinds, and the largest and smallest raw weights, if any."""

    n: int
    first: Block
    kinds: Any = None
    limits: tuple[float, ...] = ()


def size_up(block: Block, number: int) -> Counted:
    """Return the size of a block."""
    if block.raw is None or len(block) == 0:
        return Counted(0, ByPart({number: Size(0, Block(None))}))
    weight = block.raw.weight
    limits = () if weight is None else (float(weight.max()), float(weight.min()))
    first = Block(block.raw.take(slice(1)))
    return Counted(len(block), ByPart({number: Size(len(block), first, kinds(block.raw.rows), limits)}))


def add_weights(block: Block, _: int, fine: Fine, most: float, total: float, power: int) -> Counted:
    """Return the sum of weights, or of their squares."""
    if block.raw is None:
        return Counted(0, None)
    weight = block.raw.weights(most, total)
    return Counted(len(block), fine.wholes(np.square(weight) if power == 2 else weight))


def cut(block: Block, number: int, view: View, mask: Mask) -> Block:
    """Return some of the rows of a block."""
    if block.raw is None:
        return block
    own = replace(block.raw, weight=None if block.raw.weight is None else view.weight(block.raw))
    return Block(own.take(np.flatnonzero(mask(view.starts[number], len(block)))))


def recode(block: Block, _: int, change: Callable[[Encoded], Encoded]) -> Block:
    """Return the rows of a block, encoded otherwise."""
    return block if block.raw is None else Block(replace(block.raw, rows=change(block.raw.rows)))


class Checked(NamedTuple):
    """What a first look at parts found: the numbers of their rows, in all and with weight, what is wrong, labels."""

    sizes: ByPart
    wrong: ByPart
    labels: Labels

    def __add__(self, other: Checked) -> Checked:  # type: ignore[override]
        return Checked(self.sizes + other.sizes, self.wrong + other.wrong, self.labels + other.labels)


def check(table: object, number: int, roles: Roles, shown: str) -> Counted:
    """Check outcomes, predictions and weights of a part; an error is kept with the row at which its batch begins."""
    labels, n, n_weighted, wrong = Labels(roles.n_classes), 0, 0, ByPart()
    try:
        for batch in read(table, roles.columns, shown):
            check_batch(batch, roles, labels)
            n, n_weighted = n + length_of(batch), n_weighted + length_of(weighted(batch, roles))
    except InvalidInput as error:
        wrong[number] = n, error
    return Counted(n, Checked(ByPart({number: (n, n_weighted)}), wrong, labels))


def draw(
    table: object, number: int, roles: Roles, wanted: Sequence[str] | None, starts: Sequence[int], n: int, seed: int
) -> Counted:
    """Return a part's rows of the sample."""
    sample = None
    for batch in read(table, wanted):
        width = len(batch) - len(roles.columns)
        sample = sample or Sampling.after(starts[number], seed, n, width)
        sample.add(weighted(batch, roles), width)
    return Counted(0, None) if sample is None else Counted(sample.n - starts[number], ByPart({number: sample}))


def count_values(table: object, _: int) -> Counted:
    """Return how many values a part holds."""
    return Counted(0, sum(len(batch) * length_of(batch) for batch in read(table, None)))


def fetch(table: object, number: int) -> Counted:
    """Return the rows of a part as they are."""
    batches = list(read(table, None))
    return Counted(sum(map(length_of, batches)), ByPart({number: batches}))


def encode(table: object, _: int, roles: Roles, layout: Layout, encoder: Encoder) -> Block:
    """Return the rows of a part that have weight, checked and encoded."""
    batches = read(table, encoded_columns(roles, encoder))
    chunks = [encode_rows(batch, roles, layout, encoder) for batch in batches]
    return Block(join_raw_rows(chunks) if chunks else None)


# --- where the fit runs ---------------------------------------------------------------------------------------


def add_parts(engine: Engine, job: Job, parts: Sequence[Part], bar: Passes, n: int | None = None) -> Any:
    """Return the sum of what a job returns for all parts, which hold n rows, if that is known."""
    total = Counted(0, None)
    bar.start(job.name, n)
    for some in engine.sums(job, parts):
        total += some
        bar.add(some.n)
    bar.close()
    return total.sums


class Cluster(Far):
    """Rows in blocks on the workers of an engine."""

    reason = "lie on a cluster"

    def __init__(self, engine: Engine, blocks: Sequence[Part], d: int, bar: Passes) -> None:
        self.engine, self.blocks, self.d, self.bar = engine, blocks, d, bar
        sizes: list[Size] = add_parts(engine, Job("counting", size_up, pack()), blocks, bar).in_order()
        firsts = [size.first for size in sizes if len(size.first)]
        if len({size.kinds for size in sizes if size.n}) > 1:  # sums over bits are others than over numbers
            self.blocks = engine.keep(Job("recoding", recode, pack(unpack_bits)), blocks)
            firsts = [recode(firsts[0], 0, unpack_bits)]
        limits = [limit for size in sizes for limit in size.limits]
        n, most = sum(size.n for size in sizes), max(limits, default=1.0)
        self.is_even = most - min(limits, default=1.0) <= 1e-12 * most
        self.scale = Scale(n, 1.0)
        total = self._total(most) if limits else float(n)
        self.scale = Scale(n, 1.0 / total)
        self.view = View(tuple(accumulate((size.n for size in sizes), initial=0)), self.scale, most, total, d)
        self.worth = 1.0 / self._squares(bool(limits))
        self._first = replace(self.view, starts=(0,)).shard(firsts[0], 0)

    def _total(self, most: float) -> float:
        """Return the sum of the weights over the largest."""
        fine = Fine.of(1.0, self.scale.n)
        return fine.number(self._add_up("weighing", add_weights, fine, most, 1.0, 1))

    def _squares(self, is_weighted: bool) -> float:
        """Return the sum of squared weights; those of rows without weights need no pass."""
        fine, view = Fine.of(self.scale.most**2, self.scale.n), self.view
        if not is_weighted:
            return fine.number(self.scale.n * fine.wholes(np.array([np.square(1.0 / view.total)])))
        return fine.number(self._add_up("weighing", add_weights, fine, view.most, view.total, 2))

    def _add_up(self, name: str, function: Callable[..., Counted], *given: object) -> Any:
        job = Job(name, function, pack(*given))
        return add_parts(self.engine, job, self.blocks, self.bar, self.scale.n)

    def run(self, one: Pass[Result]) -> Result:
        """Take one pass over all rows."""
        total = self._add_up(type(one).__name__.strip("_").lower(), visit, self.view, one)
        return one.read(total, self._first, self.scale)

    def _gather(self, rows: IntArray) -> Shard:
        found = self._add_up("gathering", gather, self.view, rows)
        encoded, *columns = zip(*found.in_order(), strict=True)
        p, y, weight = (np.concatenate(column) for column in columns)
        return Shard(
            join_rows(encoded), p, y, weight if len(rows) == self.scale.n else weight / weight.sum(), self.scale
        )

    def part(self, mask: Mask) -> Cluster:
        """Return some of the rows, as blocks of their own."""
        job = Job("dividing", cut, pack(self.view, mask))
        return Cluster(self.engine, self.engine.keep(job, self.blocks), self.d, self.bar)

    def recoded(self, change: Callable[[Encoded], Encoded]) -> Cluster:
        """Return the same rows, encoded otherwise."""
        other = self._copy()
        other.blocks = self.engine.keep(Job("recoding", recode, pack(change)), self.blocks)
        first = self._first
        other._first = Shard(change(first.rows), first.at(START), first.y, first.weight, first.scale)
        return other

    def redrawn(self, state: State, seed: Sequence[int]) -> Cluster:
        """Return the same rows with outcomes drawn from the predictions of a state."""
        other = self._copy()
        other.view = replace(self.view, drawn=(self.view, state, tuple(seed)))
        return other


def on_cluster(
    subpopulations: Subpopulations,
    engine: Engine,
    roles: Roles,
    classes: Sequence[Any] | None,
    seed: int,
    bar: Passes,
    is_fit: bool = True,
) -> tuple[Cluster, WeakLearner, Layout]:
    """Survey the rows of a table, learn a class that needs no matrix, and encode all rows where they lie."""
    wanted = wanted_columns(subpopulations)
    columns = None if wanted is None else tuple(dict.fromkeys([*roles.columns, *wanted]))
    if engine.columns is not None:
        require_columns(engine.shown, engine.columns, columns or roles.columns)
    parts = engine.parts(columns)
    found = survey_parts(engine, parts, roles, columns, classes, seed, bar)
    learner = learn_sample(subpopulations, found, roles, is_fit)
    columns = encoded_columns(roles, learner.encoder)
    job = Job("encoding", encode, pack(roles, found.layout, learner.encoder), columns)
    rows = Cluster(engine, engine.keep(job, parts), found.layout.d, bar)
    found.require_same(engine.shown, rows.scale.n)
    return rows, keep_large(subpopulations, learner, rows, found.size), found.layout


def read_parts(engine: Engine, most: int, bar: Passes) -> Batch | None:
    """Return all rows of a table as a dict of columns, as `read_whole` does; None if they hold more values."""
    parts = engine.parts(None)
    if (add_parts(engine, Job("counting", count_values, pack()), parts, bar) or 0) > most:
        return None
    found = add_parts(engine, Job("reading", fetch, pack()), parts, bar)
    return read_whole(lambda: (batch for batches in found.in_order() for batch in batches))


def survey_parts(
    engine: Engine,
    parts: Sequence[Part],
    roles: Roles,
    columns: Sequence[str] | None,
    classes: Sequence[Any] | None,
    seed: int,
    bar: Passes,
) -> Survey:
    """Read all rows twice: check outcomes, predictions and weights, then draw the sample by the rows' numbers."""
    job = Job("checking", check, pack(roles, engine.shown), roles.columns)
    checked: Checked = add_parts(engine, job, parts, bar)
    _refuse_wrong(checked)
    sizes = checked.sizes.in_order()
    if sum(n for n, _ in sizes) == 0:
        raise InvalidInput(f"{engine.shown} holds no rows; give at least one.")
    *starts, n = accumulate((own for _, own in sizes), initial=0)
    require_weight(n)
    drawing = Job("sampling", draw, pack(roles, columns, starts, n, seed))
    samples = add_parts(engine, drawing, parts, bar, n).in_order()
    return Survey(n, *checked.labels.layout(classes), Sampling.join(samples).rows())


def _refuse_wrong(checked: Checked) -> None:
    """Raise the error of the first part that has one, with the number of the row at which its batch begins."""
    for number, (n, error) in sorted(checked.wrong.items()):
        with at_row(n + sum(size for part, (size, _) in checked.sizes.items() if part < number)):
            raise error
