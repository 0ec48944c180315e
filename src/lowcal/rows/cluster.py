"""Rows on a cluster: every part of a table is encoded where it lies, and passes bring back sums.

What a worker remembers of its rows, predictions and designs, is only a cache. It goes with the rows when a worker is
lost; the engine then makes the rows anew, and a pass replays what it needs from the updates that it brings along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.data.files.batches import at_row, open_batches, require_columns
from lowcal.data.inputs import Layout
from lowcal.data.progress import Passes
from lowcal.kernels.exact import Fine, Scale, Wholes
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.kernels.switch import part_of
from lowcal.rows.base import REMEMBERED, START, Local, Mask, Pass, Result, Rows, Shard, State
from lowcal.rows.disk import MOST_LOCAL, RawRows, join_raw_rows, outcomes_of
from lowcal.rows.engines.base import Engine, Job, Part
from lowcal.rows.keys import draw_labels, uniforms
from lowcal.rows.packing import join_rows, take_rows
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


class Found(dict[int, Any]):
    """What was found in parts of the rows, by their numbers."""

    def __add__(self, other: Found) -> Found:
        return Found({**self, **other})

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

    def __getstate__(self) -> RawRows | None:
        return self.raw

    def __setstate__(self, raw: RawRows | None) -> None:
        self.__init__(raw)  # type: ignore[misc]

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
        return Counted(len(block), Found())
    shard = block.shard(view, number)
    picked = take_rows(shard.rows, here), shard.at(START)[here], shard.y[here], shard.weight[here]
    return Counted(len(block), Found({number: picked}))


def size_up(block: Block, number: int) -> Counted:
    """Return how many rows a block holds, and its largest and smallest raw weights, if rows have any."""
    weight = None if block.raw is None else block.raw.weight
    limits = None if weight is None or len(block) == 0 else (float(weight.max()), float(weight.min()))
    return Counted(len(block), Found({number: (len(block), limits)}))


def add_weights(block: Block, number: int, fine: Fine, most: float, total: float, power: int) -> Counted:
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


def recode(block: Block, number: int, change: Callable[[Encoded], Encoded]) -> Block:
    """Return the rows of a block, encoded otherwise."""
    return block if block.raw is None else Block(replace(block.raw, rows=change(block.raw.rows)))


class Checked(NamedTuple):
    """What a first look at parts found: the numbers of their rows, in all and with weight, what is wrong, labels."""

    sizes: Found
    wrong: Found
    labels: Labels

    def __add__(self, other: Checked) -> Checked:  # type: ignore[override]
        return Checked(*(a + b for a, b in zip(self, other, strict=True)))


def check(table: object, number: int, roles: Roles, shown: str) -> Counted:
    """Check outcomes, predictions and weights of a part; an error is kept with the row at which its batch begins."""
    labels, n, n_weighted, wrong = Labels(roles.n_classes), 0, 0, Found()
    try:
        for batch in replace(open_batches([table]), shown=shown).read(roles.columns):
            check_batch(batch, roles, labels)
            n, n_weighted = n + length_of(batch), n_weighted + length_of(weighted(batch, roles))
    except InvalidInput as error:
        wrong[number] = n, error
    return Counted(n, Checked(Found({number: (n, n_weighted)}), wrong, labels))


def draw(
    table: object, number: int, roles: Roles, wanted: Sequence[str] | None, starts: Sequence[int], n: int, seed: int
) -> Counted:
    """Return a part's rows of the sample."""
    sample = None
    for batch in open_batches([table]).read(wanted):
        width = len(batch) - len(roles.columns)
        sample = sample or Sampling.after(starts[number], seed, n, width)
        sample.add(weighted(batch, roles), width)
    return Counted(0, None) if sample is None else Counted(sample.n - starts[number], Found({number: sample}))


def encode(table: object, number: int, roles: Roles, layout: Layout, encoder: Encoder) -> Block:
    """Return the rows of a part that have weight, checked and encoded."""
    batches = open_batches([table]).read(encoded_columns(roles, encoder))
    chunks = [encode_rows(batch, roles, layout, encoder) for batch in batches]
    return Block(join_raw_rows(chunks) if chunks else None)


# --- where the fit runs ---------------------------------------------------------------------------------------


def add_parts(engine: Engine, job: Job, parts: Sequence[Part], bar: Passes, n: int | None) -> Any:
    """Return the sum of what a job returns for all parts, which hold n rows."""
    total = Counted(0, None)
    bar.start(job.name, n)
    for some in engine.sums(job, parts):
        total += some
        bar.add(some.n)
    bar.close()
    return total.sums


class Cluster(Rows):
    """Rows in blocks on the workers of an engine."""

    is_near = False

    def __init__(self, engine: Engine, blocks: Sequence[Part], d: int, bar: Passes) -> None:
        self.engine, self.blocks, self.d, self.bar = engine, blocks, d, bar
        sizes = add_parts(engine, Job("counting", size_up, pack()), blocks, bar, None).in_order()
        limits = [limit for _, limit in sizes if limit is not None]
        most, least = max((high for high, _ in limits), default=1.0), min((low for _, low in limits), default=1.0)
        n, self.is_even = sum(size for size, _ in sizes), most - least <= 1e-12 * most
        self.scale = Scale(n, 1.0)
        fine = Fine.of(1.0, n)
        total = float(fine.total(self._weights(fine, most, 1.0, 1))) if limits else float(n)
        self.scale = Scale(n, 1.0 / total)
        squares = Fine.of(self.scale.most**2, n)
        wholes = (
            self._weights(squares, most, total, 2)
            if limits
            else n * squares.wholes(np.array([np.square(1.0 / total)]))  # the same bits without a pass
        )
        self.worth = 1.0 / squares.number(wholes)
        starts = tuple(accumulate((size for size, _ in sizes), initial=0))
        self.view = View(starts, self.scale, most, total, d)
        self._samples: dict[bytes, Shard] = {}

    def _weights(self, fine: Fine, most: float, total: float, power: int) -> Wholes:
        found: Wholes = self._add_up("weighing", add_weights, fine, most, total, power)
        return found

    def _add_up(self, name: str, function: Callable[..., Counted], *given: object) -> Any:
        job = Job(name, function, pack(*given))
        return add_parts(self.engine, job, self.blocks, self.bar, self.scale.n)

    def run(self, one: Pass[Result]) -> Result:
        """Take one pass over all rows."""
        total = self._add_up(type(one).__name__.strip("_").lower(), visit, self.view, one)
        return one.read(total, self._first, self.scale)

    @cached_property
    def _first(self) -> Shard:
        """The first row."""
        return self._gather(np.arange(1))

    def sample(self, rows: IntArray | None) -> Local:
        """Return rows by their numbers, with weights that sum to one; None: all of them, if they are not too many."""
        if rows is None:
            if self.scale.n > MOST_LOCAL:
                raise InvalidInput(
                    f"This notion or class looks at all {self.scale.n:,} rows at once, and they lie on a cluster. Use "
                    "a degree, multiaccuracy or full with Groups, Intersections, Memberships, Thresholds or Trees, or "
                    "give a sample of the rows."
                )
            rows = np.arange(self.scale.n)
        key = rows.tobytes()
        if key not in self._samples:
            self._samples[key] = self._gather(rows)
            if len(self._samples) > REMEMBERED:
                del self._samples[next(iter(self._samples))]
        return self._samples[key]

    def _gather(self, rows: IntArray) -> Shard:
        found = self._add_up("gathering", gather, self.view, rows)
        encoded, *columns = zip(*found.in_order(), strict=True)
        p, y, weight = (np.concatenate(column) for column in columns)
        return Shard(join_rows(encoded), p, y, weight if len(rows) == self.scale.n else weight / weight.sum(), self.scale)

    def part(self, mask: Mask) -> Cluster:
        """Return some of the rows, as blocks of their own."""
        job = Job("dividing", cut, pack(self.view, mask))
        return Cluster(self.engine, self.engine.keep(job, self.blocks), self.d, self.bar)

    def recoded(self, change: Callable[[Encoded], Encoded]) -> Cluster:
        """Return the same rows, encoded otherwise."""
        other = self._copy()
        other.blocks = self.engine.keep(Job("recoding", recode, pack(change)), self.blocks)
        return other

    def redrawn(self, state: State, seed: Sequence[int]) -> Cluster:
        """Return the same rows with outcomes drawn from the predictions of a state."""
        other = self._copy()
        other.view = replace(self.view, drawn=(self.view, state, tuple(seed)))
        return other

    def _copy(self) -> Cluster:
        other: Cluster = object.__new__(Cluster)
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("lost", "_sorted", "_first")})
        other._samples = {}
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
    with engine.reading(None if wanted is None else [*roles.columns, *wanted]):
        found = survey_parts(engine, roles, wanted, classes, seed, bar)
        learner = learn_sample(subpopulations, found, roles, is_fit)
        job = Job("encoding", encode, pack(roles, found.layout, learner.encoder))
        blocks = engine.keep(job, engine.parts(encoded_columns(roles, learner.encoder)))
    rows = Cluster(engine, blocks, found.layout.d, bar)
    found.require_same(engine.shown, rows.scale.n)
    return rows, keep_large(subpopulations, learner, rows, found.size), found.layout


def survey_parts(
    engine: Engine,
    roles: Roles,
    wanted: Sequence[str] | None,
    classes: Sequence[Any] | None,
    seed: int,
    bar: Passes,
) -> Survey:
    """Read all rows twice: check outcomes, predictions and weights, then draw the sample by the rows' numbers."""
    columns = None if wanted is None else tuple(dict.fromkeys([*roles.columns, *wanted]))
    if engine.columns is not None:
        require_columns(engine.shown, engine.columns, columns or roles.columns)
    job = Job("checking", check, pack(roles, engine.shown))
    checked: Checked = add_parts(engine, job, engine.parts(roles.columns), bar, None)
    _refuse_wrong(checked)
    sizes = checked.sizes.in_order()
    if sum(n for n, _ in sizes) == 0:
        raise InvalidInput(f"{engine.shown} holds no rows; give at least one.")
    *starts, n = accumulate((own for _, own in sizes), initial=0)
    require_weight(n)
    drawing = Job("sampling", draw, pack(roles, columns, starts, n, seed))
    samples = add_parts(engine, drawing, engine.parts(columns), bar, n).in_order()
    return Survey(n, *checked.labels.layout(classes), Sampling.join(samples).rows())


def _refuse_wrong(checked: Checked) -> None:
    """Raise the error of the first part that has one, with the number of the row at which its batch begins."""
    for number, (n, error) in sorted(checked.wrong.items()):
        with at_row(n + sum(size for part, (size, _) in checked.sizes.items() if part < number)):
            raise error
