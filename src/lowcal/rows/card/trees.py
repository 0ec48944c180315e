"""Trees grown on a device: what a level is split by as sums of whole numbers, and the passes of sums of forests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from lowcal.kernels.card.formula import FINE_BITS, Formula, Inputs, power_above
from lowcal.kernels.card.trees import trees_on
from lowcal.kernels.exact import Grid, Tables
from lowcal.kernels.simplex import FLOOR, FloatArray
from lowcal.notions.weights import Cell, Weight, n_intervals
from lowcal.rows.base import State, outdated
from lowcal.rows.card.coded import bound_of_text, cell_text, weight_text
from lowcal.rows.card.forests import BinColumns, forest_values, tree_sum, tree_sum_values
from lowcal.rows.card.passes import residual_texts, weight_texts  # what is registered there is extended here
from lowcal.rows.card.rows import BLOCK, Card, on_card
from lowcal.rows.passes import CellMoments, CellSums, MassSums, Moments, Probed, Witnessed, bound_of
from lowcal.subpopulations.base import Family, Residuals
from lowcal.subpopulations.growing import LEAST_BEND, Grown, LevelSums
from lowcal.subpopulations.single_row import part_of_rows
from lowcal.subpopulations.trees import Largest, LargestValues, Start, Unexplained

#: The most cells of a grid that are counted on the card.
MOST_CELLS = 64
#: Whole numbers at every row, None: 1, and their unit.
Whole: TypeAlias = tuple[Any | None, float]
#: A pass, a card, and a family, if it is the sum of a forest -> sums; and how several of them become one.
Own: TypeAlias = Callable[..., Any]
Join: TypeAlias = Callable[[Any, Card, Sequence[Any]], Any]


# --- what trees start from ------------------------------------------------------------------------------------


def factor_text(u: Weight, card: Card) -> str | None:
    """Return a weight as a formula, that of a cell of two classes as well; None: there is none."""
    if isinstance(u, Cell) and len(u.index) == 1:
        return f"pick({cell_text(u.width, card.device.kind)} == {u.index[0]}, T(1), T(0))"
    return weight_text(u, card.d)


def asked_texts(residuals: Residuals, card: Card) -> tuple[State, list[str], list[float]] | None:
    """Return the state of residuals, a formula of each, and constants; None: a weight has no formula."""
    own = residual_texts(card.d)
    if isinstance(residuals, Probed):
        texts, sizes = [factor_text(u, card) for u, _ in residuals.pairs], list[float]()
        found = [f"{own[a]}*({text})" for text, (_, a) in zip(texts, residuals.pairs, strict=True)]
    elif isinstance(residuals, Witnessed):
        texts = [factor_text(u, card) for u in residuals.witness.weights]
        sizes = residuals.witness.coefficients.ravel().tolist()  # by weight and label
        weighed = [f"k[{s * card.d + a}]*({text})*{own[a]}" for s, text in enumerate(texts) for a in range(card.d)]
        found = [" + ".join(weighed)]
    else:
        return None
    return None if None in texts else (residuals.state, found, sizes)


def start_of(start: Any, card: Card) -> list[Any]:
    """Return what forests start from, an array for each column; what has no formula is found block by block."""
    columns = _start_on(start, card)
    if columns is None:
        near = np.concatenate([start(card._shard(at)) for at in range(0, card.scale.n, BLOCK)])
        columns = [card.device.upload(column.astype(card.device.kind)) for column in near.T]
    return columns


def _start_on(start: Any, card: Card) -> list[Any] | None:
    """Return the same by formulas; None: there are none."""
    found = asked_texts(start.residuals, card) if isinstance(start, Start) else None
    inputs = None if found is None else card.inputs(state=found[0], constants=found[2])
    if found is None or inputs is None:
        return None
    texts, device = found[1][: start.size], card.device
    if start.geometry == "euclidean":
        return [device.rows(Formula((text,), card.lines), inputs, device.kind) for text in texts]
    columns = []
    for text in texts:
        if text == "(y - f)*(T(1))" and card.y.dtype == np.uint8:  # labels tell the log odds as they are
            columns += [device.rows(Formula(("s",), card.lines), inputs, device.kind), card.y]
            continue
        lines = (*card.lines, ("r", text), ("o", "pick(r > T(0), T(1), T(0))"))
        odds = f"inside(logit(least(most(o - r, T({FLOOR!r})), T({1.0 - FLOOR!r}))))"
        columns += [device.rows(Formula((text,), lines), inputs, device.kind) for text in (odds, "o")]
    return columns


@dataclass(frozen=True, eq=False)
class Carried:
    """The columns of forests on their way, and what is added up of every row, made when it is first asked for."""

    columns: list[Any]
    masses: list[Whole]
    terms: dict[int, list[Whole]] = field(default_factory=dict)


def carried_at(grown: Grown, card: Card) -> Carried:
    """Return the columns of forests on their way, each moved by the values of its last tree."""
    if grown not in card._z:
        if grown.before is None:
            card._z[grown] = Carried(start_of(grown.request.start, card), _masses(card))
        else:
            before = carried_at(grown.before, card)
            card._z[grown] = Carried(_after(grown, before.columns, card), before.masses)
        for old in outdated(card._z, Grown):
            del card._z[old]
    carried: Carried = card._z[grown]
    return carried


def _after(grown: Grown, before: list[Any], card: Card) -> list[Any]:
    """Return the columns after one more tree for each target."""
    request, columns, device = grown.request, list(before), card.device
    rows: BinColumns = part_of_rows(card.coded.rows, request.part)
    move = Formula(("e + L[0]" if request.is_mirror else "e - L[0]",))
    for targets, tree in zip(request.targets, grown.trees, strict=True):
        leaf = rows.leaves(device, tree)
        for a, k in enumerate(targets[: request.q]):
            value = tree.value[0, :, a, None]
            given = Inputs(card.scale.n, {"e": columns[k]}, [leaf], [len(value)], value)
            columns[k] = device.rows(move, given, device.kind)
    return columns


# --- the sums of a level --------------------------------------------------------------------------------------


@on_card.register
def _(one: LevelSums, card: Card) -> Tables | None:
    request, rows = one.grown.request, part_of_rows(card.coded.rows, one.grown.request.part)
    if rows.columns[0].dtype.itemsize > 2 or len(rows.columns) >= 1 << 16:
        return None
    carried, tables = carried_at(one.grown, card), Tables()
    columns, counts = rows.columns[one.part], request.counts[one.part]
    kernels, width = request.kernels(card.scale.n), 3 + request.q
    for k, (tree, build) in enumerate(zip(one.trees, one.builds, strict=True)):
        terms = _terms(one.grown, carried, k, card)
        node = rows.at_level(card.device, tree, one.depth)
        sums = trees_on(card.device).add_up(columns, counts, node, build, [term for term, _ in terms])
        table = np.zeros((len(build), int(counts.sum()), width + (0 if kernels is None else -width % kernels.LANES)))
        table[build, :, :width] = (sums * [unit for _, unit in terms])[:, :, _order(card, request.is_mirror, request.q)]
        tables.append(table.reshape(-1, table.shape[2]))
    return tables


def _order(card: Card, is_mirror: bool, q: int) -> list[int]:
    """Return which term is the mass of a row, its square, its bend and each residual: equal ones are added up once."""
    square = 0 if card.weight is None else 1
    bend = square + 1 if is_mirror else 0
    return [0, square, bend, *range(max(square, bend) + 1, max(square, bend) + 1 + q)]


def _terms(grown: Grown, carried: Carried, k: int, card: Card) -> list[Whole]:
    """Return what is added up of every row for a target: masses, bends in log odds, residuals."""
    if k not in carried.terms:
        columns = [carried.columns[a] for a in grown.request.targets[k]]
        if grown.request.is_mirror:
            arrays, lines = dict(zip(("e", "o"), columns, strict=True)), (("g", "sigmoid(e)"),)
            texts = card.terms(f"most(g*(T(1) - g), T({LEAST_BEND!r}))", "o - g")
            carried.terms[k] = [_wholes(card, text, arrays=arrays, lines=lines) for text in texts]
        else:
            (text,), bound = card.terms("e"), grown.bounds[k]
            carried.terms[k] = [_wholes(card, text, bound, {"e": column}) for column in columns]
    return [*carried.masses, *carried.terms[k]]


def _masses(card: Card) -> list[Whole]:
    """Return the mass of every row and its square, rounded up; rows that weigh the same are counted."""
    return [(None, 1.0)] if card.weight is None else [_wholes(card, "w"), _wholes(card, "w*w", is_above=True)]


def _wholes(
    card: Card,
    text: str,
    bound: float = 1.0,
    arrays: Mapping[str, Any] = MappingProxyType({}),
    lines: tuple[tuple[str, str], ...] = (),
    is_above: bool = False,
) -> Whole:
    """Return a formula of at most `bound` at every row as whole numbers of a unit, and the unit.

    In double precision the unit is that of trees in memory, in single precision that of all sums on a card.
    """
    device, n = card.device, card.scale.n
    is_single = device.precision == "single"
    unit = power_above(bound) * 2.0**-FINE_BITS if is_single else float(Grid.whole(bound, n).unit)
    far = 1.5 * 2.0 ** (23 if is_single else 52)  # what is added to it is rounded to a whole number
    lines = (*lines, ("exact", f"({text})*k[0]"), ("near", "(exact + k[1]) - k[1]"))
    term = "near + pick(near < exact, T(1), T(0))" if is_above else "near"
    given = {**arrays, **({} if card.weight is None else {"w": card.weight})}
    inputs = Inputs(n, given, constants=[1.0 / unit, far])
    return device.rows(Formula((term,), lines), inputs, trees_on(device).whole), unit


# --- forests on all rows --------------------------------------------------------------------------------------


def _largest(values: Any) -> float:
    return max(float(values.max()), -float(values.min()))


@on_card.register
def _(one: LargestValues, card: Card) -> Largest:
    rows, split = part_of_rows(card.coded.rows, one.part), [(forest.feature >= 0).any() for forest in one.forests]
    pairs = zip(one.forests, split, strict=True)
    return Largest(np.array([_largest(forest_values(card.device, rows, f)) if any_ else 0.0 for f, any_ in pairs]))


@on_card.register
def _(one: Unexplained, card: Card) -> Largest:
    z, seen = (start_of(Start(each, "euclidean", each.q), card) for each in (one.residuals, one.seen))
    rest = z[0] - sum(float(share) * column for share, column in zip(one.theta, seen, strict=True))
    return Largest(np.array([_largest(z[0]), _largest(rest)]))


# --- sums of forests among the families of a pass -------------------------------------------------------------


def _moments(one: Moments, card: Card, family: Family) -> FloatArray | None:
    texts = weight_texts(one.weights, card.d)
    if texts is None:
        return None
    bounds, c, every = [bound_of_text(text) for text in texts], tree_sum_values(card.coded, family), []
    for own in card.each_label(one.state):
        arrays = {**own.pop("arrays"), "c": c}
        found = card.total([f"c*((yo - o)*{text})" for text in texts], bounds, **own, arrays=arrays)
        assert found is not None
        every.append(found)
    return np.stack(every, axis=1).ravel()  # by weight and label


def _mass_sums(one: MassSums, card: Card, family: Family) -> FloatArray | None:  # noqa: ARG001
    c, w = tree_sum_values(card.coded, family), "T(1)" if card.weight is None else "w"
    found = card.total(("c", f"{w}*c"), (1.0, 1.0), arrays={"c": c})
    return None if found is None else found * [1.0, card.scale.most]


def _cell_moments(one: CellMoments, card: Card, family: Family) -> CellSums | None:
    cells = n_intervals(one.width)
    if card.d > 1 or not 1 < cells <= MOST_CELLS:
        return None
    lines, given = (("cell", cell_text(one.width, card.device.kind)),), {"c": tree_sum_values(card.coded, family)}
    found = card.in_cells(("c*(y - f)", "T(1)"), (1.0, 1.0), cells, lines, state=one.state, arrays=given)
    if found is None:
        return None
    held = np.flatnonzero(found[:, 1])
    return CellSums(held[:, None], card.scale.grid().wholes(found[None, held, :1]))


def _as_tables(grid: Callable[[Any, Card], Grid]) -> Join:
    """Return how sums of forests, side by side, become a table like those of code columns."""
    return lambda one, card, each: Tables([grid(one, card).wholes(np.array(each))])


def _cells_joined(one: CellMoments, card: Card, each: Sequence[CellSums]) -> CellSums:  # noqa: ARG001
    """Return the sums of all families: the cells that hold a row are the same."""
    return CellSums(each[0].cells, np.concatenate([sums.sums for sums in each]))


def _beside_sums(plain: Own, own: Own, join: Join, join_runs: Join) -> Callable[[Any, Card], Any | None]:
    """Return a pass that takes the families in runs: those of code columns as before, each sum of a forest by itself.

    A launch for each forest: a kernel of several would be compiled anew whenever there is one more.
    """

    def taken(one: Any, card: Card) -> Any | None:
        runs = []
        for is_sum, run in groupby(one.families, key=lambda family: tree_sum(family) is not None):
            some = tuple(run)
            each = [own(one, card, family) for family in some] if is_sum else [plain(replace(one, families=some), card)]
            if any(sums is None for sums in each):
                return None
            runs.append(join(one, card, each) if is_sum else each[0])
        return join_runs(one, card, runs)

    return taken


def _tables_joined(one: Any, card: Card, each: Sequence[Tables]) -> Tables:  # noqa: ARG001
    return Tables(table for tables in each for table in tables)


for kind, own, join, join_runs in (
    (Moments, _moments, _as_tables(lambda one, card: card.scale.grid(bound_of(one.weights))), _tables_joined),
    (MassSums, _mass_sums, _as_tables(lambda one, card: one._grid(card.scale)), _tables_joined),
    (CellMoments, _cell_moments, _cells_joined, _cells_joined),
):
    on_card.register(kind, _beside_sums(on_card.dispatch(kind), own, join, join_runs))
