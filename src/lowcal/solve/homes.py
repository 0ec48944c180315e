"""Where the rows of a fit live, in memory, on disk or on a cluster; and the class of subpopulations there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.data.batches import has_more, is_source, open_batches
from lowcal.data.cards import is_on_card
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import Layout, Outcomes, are_names, check_fit, check_whole, read_rows
from lowcal.data.progress import Passes
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.rows import START, Memory, Rows, State
from lowcal.rows.base import Mask
from lowcal.rows.cluster import on_cluster, read_parts
from lowcal.rows.engines import open_engine
from lowcal.rows.keys import Drawn, count
from lowcal.rows.ordering import ordered
from lowcal.rows.reading import Roles, in_memory, needs_no_matrix, of_copies, on_disk
from lowcal.rows.updates import Predictor
from lowcal.solve.provenance import remember, sketch_rows, was_fitted_on
from lowcal.subpopulations import Groups, Subpopulations, default_subpopulations
from lowcal.subpopulations.base import ClassChoice, WeakLearner

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: Numbers a row that a fit in memory holds beside the columns of the table: in all cases, and for each class.
NUMBERS, NUMBERS_OF_CLASS = 6, 4

#: All rows but a fold, and the fold -> the class on the former, the former, and the fold.
Refit = Callable[[Mask, Mask], tuple[WeakLearner, Rows, Rows]]


@dataclass(frozen=True, eq=False)
class Home:
    """The rows of a fit, the class on them, held-out rows, and how to split off a fold with a class of its own."""

    rows: Rows
    learner: WeakLearner
    layout: Layout
    held: Rows | None
    refit: Refit
    #: All rows that were given, where some of them are held out or have no weight.
    given: tuple[Outcomes, Frame] | None
    is_far: bool = False

    def remember(self, predictor: Predictor, end: State) -> None:
        """Leave a sketch of the rows, so that an audit on them can warn."""
        if self.given is None:
            remember(*self._sketch(end))
        else:
            remember_rows(*self.given, predictor)

    @property
    def is_fitted(self) -> bool:
        """Whether a fit of this process was given these rows."""
        if self.given is None:
            return was_fitted_on(*self._sketch(START))
        outcomes = self.given[0]
        some = sketch_rows(len(outcomes.p))
        return was_fitted_on(len(outcomes.p), outcomes.y[some], outcomes.p[some])

    def _sketch(self, state: State) -> tuple[int, FloatArray, FloatArray]:
        n = self.rows.scale.n
        some = self.rows.sample(sketch_rows(n))
        return n, some.y, some.at(state)


def open_home(
    y: ArrayLike,
    p: ArrayLike,
    X: object,
    sample_weight: ArrayLike | None,
    classes: Sequence[Any] | None,
    subpopulations: ClassChoice,
    seed: int,
    memory: int | None,
    bar: Passes,
    held_share: float = 0.0,
    chance: tuple[int, ...] = (0,),
    is_fit: bool = True,
    frequency_weight: ArrayLike | None = None,
) -> Home:
    """Read the rows into memory, or onto disk where they come from a source and do not fit; leave those of a cluster.

    A fit needs rows of two classes; a measure does not, where the classes are named.
    """
    chosen = read_class(subpopulations)
    engine = open_engine(X)
    if engine is not None:
        _refuse_copies(frequency_weight, "lie on a cluster")
        given: tuple[Any, ...] = engine, cluster_roles(y, p, sample_weight, engine.shown), classes, seed, bar, is_fit
        return _far(chosen, on_cluster, given, held_share, chance, "lie on a cluster")
    if any(is_on_card(each) for each in (y, p, X, sample_weight)):
        _refuse_copies(frequency_weight, "lie on a card")
        from lowcal.rows.card.reading import open_card, settle_on_card

        given = open_card(y, p, X, sample_weight), classes, seed, is_fit
        return _far(chosen, settle_on_card, given, held_share, chance, "lie on a card")
    if (far := far_roles(y, p, X, sample_weight, memory)) is not None:
        _refuse_copies(frequency_weight, "do not fit there")
        given = open_batches(X), far, classes, seed, bar, is_fit
        return _far(chosen, on_disk, given, held_share, chance, "do not fit into memory")
    outcomes, table = read_rows(y, p, X, sample_weight, classes, frequency_weight)
    if is_fit:
        check_fit(outcomes)
    chosen = choose_subpopulations(chosen, X, table)
    whole = (outcomes, table) if held_share > 0.0 or not outcomes.weight.all() else None
    outcomes, table = drop_weightless(outcomes, table)
    if outcomes.copies is not None:
        rows, learner = of_copies(chosen, outcomes, table, outcomes.copies)
    elif needs_no_matrix(chosen):
        rows, learner = in_memory(chosen, outcomes, table, seed)
    else:
        return _learned(chosen, outcomes, table, held_share, chance, whole)
    return _encoded(rows, learner, outcomes.layout, held_share, chance, whole)


def _refuse_copies(frequency_weight: object, why: str) -> None:
    if frequency_weight is not None:
        raise InvalidInput(f"Rows with a frequency_weight must be in memory, but these {why}; make fewer cells.")


def far_roles(
    y: ArrayLike, p: ArrayLike, X: object, sample_weight: ArrayLike | None, memory: int | None
) -> Roles | None:
    """Return the columns of rows that come from a source and do not fit into memory; None: read them."""
    if memory is not None:
        check_whole("memory", memory, 1)
    roles = named_roles(y, p, sample_weight)
    if roles is None or not is_source(X):
        return None
    return roles if has_more(X, (memory or _quarter()) // 8, _beside(len(roles.p))) else None


def named_roles(y: ArrayLike, p: ArrayLike, sample_weight: ArrayLike | None) -> Roles | None:
    """Return the columns that are named; None: some of these are arrays."""
    are_named = isinstance(y, str) and are_names(p) and (sample_weight is None or isinstance(sample_weight, str))
    return Roles(y, (p,) if isinstance(p, str) else tuple(p), sample_weight) if are_named else None  # type: ignore[arg-type]


def cluster_roles(y: ArrayLike, p: ArrayLike, sample_weight: ArrayLike | None, shown: str) -> Roles:
    """Return the columns of rows on a cluster, which must be named."""
    roles = named_roles(y, p, sample_weight)
    if roles is None:
        raise InvalidInput(
            f"{shown} lies on a cluster: give y, p and sample_weight as the names of its columns, not as arrays."
        )
    return roles


def near_rows(y: ArrayLike, p: ArrayLike, X: object, sample_weight: ArrayLike | None, bar: Passes) -> object:
    """Return rows that are looked at all at once: those on a cluster are brought here, if they fit into memory."""
    engine = open_engine(X)
    if engine is None:
        return X
    cluster_roles(y, p, sample_weight, engine.shown)
    rows = read_parts(engine, _quarter() // 8, bar)
    if rows is None:
        raise InvalidInput(
            f"{engine.shown} does not fit into the memory of this machine, and recalibrate looks at all rows at once. "
            "Use multicalibrate, or give a sample of the rows."
        )
    return rows


def is_far(n: int, n_columns: int, n_p: int) -> bool:
    """Whether n rows of n_columns, n_p of them probabilities, do not fit into memory."""
    return n * (n_columns + _beside(n_p)) > _quarter() // 8


def _beside(n_p: int) -> int:
    """Return the numbers that a fit holds for each row beside its columns."""
    return NUMBERS + NUMBERS_OF_CLASS * n_p


def _quarter() -> int:
    """Return a quarter of the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, ValueError, OSError):
        return 1 << 31


def _far(
    subpopulations: Subpopulations | None,
    settle: Callable[..., tuple[Rows, WeakLearner, Layout]],
    given: tuple[Any, ...],
    held_share: float,
    chance: tuple[int, ...],
    where: str,
) -> Home:
    """Return the home of rows that are not in memory, where `settle` encodes them."""
    chosen = subpopulations or Groups()
    if not needs_no_matrix(chosen):
        raise InvalidInput(
            f"The rows {where}, and {chosen!r} is learned from all of them at once. Use Groups, Intersections, "
            "Memberships, Thresholds or Trees, or give a sample of the rows."
        )
    return replace(_encoded(*settle(chosen, *given), held_share, chance, None), is_far=True)


def _encoded(
    rows: Rows,
    learner: WeakLearner,
    layout: Layout,
    held_share: float,
    chance: tuple[int, ...],
    given: tuple[Outcomes, Frame] | None,
) -> Home:
    """Return the home of encoded rows; what is learned from outcomes is learned from the fitted ones."""
    masks = _draw_held(rows, held_share, chance)
    fitted, held = (rows, None) if masks is None else (rows.part(masks[0]), rows.part(masks[1]))
    own, ordered_rows, ordered_held = ordered(learner, fitted, held)
    return Home(ordered_rows, own, layout, ordered_held, partial(_refit_encoded, learner, fitted), given)


def _refit_encoded(learner: WeakLearner, rows: Rows, outside: Mask, inside: Mask) -> tuple[WeakLearner, Rows, Rows]:
    """Return the class as it is at the start on the rows outside a fold, these rows, and the fold."""
    own, fitted, held = ordered(learner, rows.part(outside), rows.part(inside))
    assert held is not None
    return own, fitted, held


def _draw_held(rows: Rows, share: float, chance: tuple[int, ...]) -> tuple[Mask, Mask] | None:
    """Return the fitted rows and a share of them that is held out; None: none are. Weight must be on both sides."""
    if share == 0.0:
        return None
    outside, inside = (Drawn(chance, rows.count, share, is_inside) for is_inside in (False, True))
    if count(inside, rows.count) in (0, rows.count):
        raise InvalidInput(
            f"validation_fraction={share:g} of {rows.count} rows leaves a part without weighted rows; use 0 or more "
            "rows."
        )
    return outside, inside


def _learned(
    chosen: Subpopulations,
    outcomes: Outcomes,
    table: Frame,
    held_share: float,
    chance: tuple[int, ...],
    given: tuple[Outcomes, Frame] | None,
) -> Home:
    """Return rows in memory with a class that is learned from a matrix of them and their outcomes."""
    masks = _draw_held(Memory.of((), outcomes.p, outcomes.y, outcomes.weight), held_share, chance)
    held: Rows | None = None
    if masks is None:
        learner = chosen.prepare(table, outcomes.weight, outcomes.residual)
        rows: Rows = Memory.of(learner.rows, outcomes.p, outcomes.y, outcomes.weight)
    else:
        learner, rows, held = _refit_learned(chosen, outcomes, table, *masks)
        fitted = np.flatnonzero(masks[0](0, len(outcomes.p)))
        outcomes, table = subset(outcomes, fitted), table.take(fitted)
    return Home(rows, learner, outcomes.layout, held, partial(_refit_learned, chosen, outcomes, table), given)


def _refit_learned(
    chosen: Subpopulations, outcomes: Outcomes, table: Frame, outside: Mask, inside: Mask
) -> tuple[WeakLearner, Rows, Rows]:
    """Return the class learned from the rows outside a fold, these rows, and the fold."""
    fitted, held = (np.flatnonzero(mask(0, len(outcomes.p))) for mask in (outside, inside))
    some, rest = subset(outcomes, fitted), subset(outcomes, held)
    learner = chosen.prepare(table.take(fitted), some.weight, some.residual)
    rows = Memory.of(learner.rows, some.p, some.y, some.weight)
    return learner, rows, Memory.of(learner.encoder(table.take(held)), rest.p, rest.y, rest.weight)


def subset(outcomes: Outcomes, rows: IntArray) -> Outcomes:
    """Return some rows, with weights that sum to one."""
    some = _take(outcomes, rows)
    return replace(some, weight=some.weight / some.weight.sum())


def _take(outcomes: Outcomes, rows: IntArray) -> Outcomes:
    copies = None if outcomes.copies is None else outcomes.copies[rows]
    return Outcomes(outcomes.y[rows], outcomes.p[rows], outcomes.weight[rows], outcomes.layout, copies)


def drop_weightless(outcomes: Outcomes, table: Frame) -> tuple[Outcomes, Frame]:
    """Return the rows that have weight: not even the choice of a sample depends on the others."""
    if outcomes.weight.all():
        return outcomes, table
    kept = np.flatnonzero(outcomes.weight)  # their weights sum to one as they are: dividing again would cost a bit
    return _take(outcomes, kept), table.take(kept)


def remember_rows(outcomes: Outcomes, table: Frame, predictor: Predictor) -> None:
    """Leave a sketch of rows in memory, so that an audit on them can warn."""
    some = sketch_rows(len(outcomes.p))
    end = predictor.replay(outcomes.p[some], predictor.rows(outcomes.p[some], table.take(some)))
    remember(len(outcomes.p), outcomes.y[some], end)


def choose_subpopulations(subpopulations: ClassChoice, X: object, table: Frame) -> Subpopulations:
    """Return the class to use; None is the default for this kind of X."""
    chosen = read_class(subpopulations)
    if chosen is None:
        return default_subpopulations(table)
    if X is None:
        raise InvalidInput("subpopulations were given without X; pass the columns they are functions of as X.")
    return chosen


def read_class(given: object) -> Subpopulations | None:
    """Return a class of subpopulations, or None; a list of columns and a dictionary of cut points are `Groups`."""
    if isinstance(given, list | tuple | Mapping):
        return Groups(given)
    if given is not None and not isinstance(given, Subpopulations):
        raise InvalidInput(
            "subpopulations must be a class such as Groups([...]) or Trees(), or a list of columns, but "
            f"{given!r} was given."
        )
    return given
