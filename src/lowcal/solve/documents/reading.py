"""Predictors from plain data: registries of known kinds, which check what predicting relies on.

Codes lie inside their tables, trees ask for features that exist, coefficients have the shape of what they multiply: a
file that says something else is refused here, so that no prediction can fail on it later. Nothing is imported by a
name in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeVar, get_args

import numpy as np
from scipy import sparse

from lowcal.data.inputs import Layout
from lowcal.kernels.reference import Cumulative, Decode, Table
from lowcal.kernels.simplex import Geometry
from lowcal.notions.weights import Cell, Knots, LogOdds, LogRest, Monomial, Points, Weight, n_intervals
from lowcal.rows.updates import Predictor, Term, Update
from lowcal.solve.documents.plain import Plain
from lowcal.subpopulations.base import CodeFamily, Encoder, Everyone, Family
from lowcal.subpopulations.bins import BinEncoder
from lowcal.subpopulations.features import FeatureEncoder, Indicators, Scale
from lowcal.subpopulations.groups import MOST_LEVELS, GroupEncoder
from lowcal.subpopulations.growing import Forest
from lowcal.subpopulations.levels import MISSING, Levels
from lowcal.subpopulations.linear import Sigmoids
from lowcal.subpopulations.memberships import Members, MembershipEncoder
from lowcal.subpopulations.thresholds import ThresholdEncoder
from lowcal.subpopulations.trees import TreeNodes, TreeSum
from lowcal.subpopulations.union import Part, UnionEncoder

T = TypeVar("T")

#: The largest finite number, and the smallest positive one.
LARGEST, SMALLEST = float(np.finfo(float).max), float(np.finfo(float).smallest_subnormal)
#: No fit makes larger coefficients, and sums and products of a few so large ones stay finite.
MOST = 1e100
#: Predictions and weights lie in [0, 1], up to rounding.
LOW, HIGH = -1e-6, 1.0 + 1e-6
#: More classes, factors of a monomial or conditions of a tree are not believed.
MOST_CLASSES, MOST_FACTORS, MOST_DEPTH = 1_000_000, 1_000, 24
#: Intervals of a grid of cells: beyond these, numbers lose their meaning.
MOST_INTERVALS = 1 << 50
#: Dates lie within this many seconds of 1970: microseconds fit into 64 bits.
MOST_SECONDS = 9e12


@dataclass(frozen=True, eq=False)
class Context:
    """What families are read for: the encoder whose rows they will see, and the forests that they name by place."""

    encoder: Encoder
    forests: Sequence[Forest]

    def rows_of(self, at: Plain, kind: type[T]) -> T:
        """Return the encoder, which must be of the kind that the family reads."""
        if not isinstance(self.encoder, kind):
            at.refuse(f"a family for the rows of {type(self.encoder).__name__}")
        return self.encoder


def read_predictor(at: Plain) -> Predictor:
    """Return the predictor of plain data."""
    kind, layout, encoder, forests, families, updates, scores = at.fields(
        "kind", "layout", "encoder", "forests", "families", "updates", optional=("scores",)
    )
    kind.choice(("predictor",))
    rows, classes = read_encoder(encoder), read_layout(layout)
    context = Context(rows, [read_forest(forest) for forest in forests.items()])
    known = [read_family(family, context) for family in families.items()]
    names = () if scores.is_null else scores.texts()
    if names and len(names) != classes.d:
        scores.refuse(f"a list of {classes.d} names")
    return Predictor(rows, tuple(_read_update(update, known, classes.d) for update in updates.items()), classes, names)


def read_layout(at: Plain) -> Layout:
    """Return the layout: how many classes, and their names where they have some."""
    number, classes = at.fields("n_classes", "classes")
    n_classes = number.whole(2, MOST_CLASSES)
    if classes.is_null:
        return Layout(n_classes, None)
    names = classes.labels()
    if len(names) != n_classes:
        classes.refuse(f"a list of {n_classes} classes")
    return Layout(n_classes, names)


# Updates.


def _read_update(at: Plain, families: Sequence[Family], d: int) -> Update:
    geometry, terms = at.fields("geometry", "terms")
    chosen: Geometry = "mirror" if geometry.choice(get_args(Geometry)) == "mirror" else "euclidean"
    return Update(tuple(_read_term(term, families, d) for term in terms.items()), chosen)


def _read_term(at: Plain, families: Sequence[Family], d: int) -> Term:
    place, weights, theta = at.fields("family", "weights", "theta")
    family = families[place.whole(0, len(families) - 1)]
    functions = tuple(WEIGHTS[one.kind(WEIGHTS)](one, d) for one in _some(weights))
    return Term(family, functions, theta.floats((len(family.names), len(functions), d), -MOST, MOST))


def _some(at: Plain) -> list[Plain]:
    """Return the elements of a list that is not empty."""
    return at.items() or at.refuse("a list that is not empty")


# Weights of predictions with d coordinates.


def _read_monomial(at: Plain, d: int) -> Weight:
    _, factors = at.fields("kind", "factors")
    listed = factors.items()
    if len(listed) > MOST_FACTORS:
        factors.refuse(f"a list of at most {MOST_FACTORS} factors")
    return Monomial(tuple(factor.whole(0, d - 1) for factor in listed))


def _read_log_odds(at: Plain, d: int) -> Weight:
    _, coordinate = at.fields("kind", "coordinate")
    return LogOdds(coordinate.whole(0, d - 1))


def _read_log_rest(at: Plain, d: int) -> Weight:
    _, coordinate = at.fields("kind", "coordinate")
    return LogRest(coordinate.whole(0, d - 1))


def _read_cell(at: Plain, d: int) -> Weight:
    _, width, index = at.fields("kind", "width", "index")
    side = width.number(1.0 / MOST_INTERVALS, 1.0)
    intervals = n_intervals(side)
    place = tuple(one.whole(0, intervals - 1) for one in index.items())
    if len(place) != d:
        index.refuse(f"a list of {d} numbers")
    return Cell(side, place)


def _read_knots(at: Plain, d: int) -> Weight:
    _, coordinate, positions, heights = at.fields("kind", "coordinate", "positions", "heights")
    places = positions.increasing()
    if len(places) == 0 or places[0] < LOW or places[-1] > HIGH:
        positions.refuse("a list of predictions that is not empty")
    return Knots(coordinate.whole(0, d - 1), places, heights.floats(places.shape, LOW, HIGH))


def _read_points(at: Plain, d: int) -> Weight:
    _, centres, heights = at.fields("kind", "centres", "heights")
    places = centres.floats((None, d), LOW, HIGH)
    return Points(places, heights.floats((len(places),), LOW, HIGH))


WEIGHTS: dict[str, Callable[[Plain, int], Weight]] = {
    "monomial": _read_monomial,
    "log_odds": _read_log_odds,
    "log_rest": _read_log_rest,
    "cell": _read_cell,
    "knots": _read_knots,
    "points": _read_points,
}


# Encoders.


def read_encoder(at: Plain) -> Encoder:
    """Return the encoder of a known kind."""
    return ENCODERS[at.kind(ENCODERS)](at)


def _read_levels(at: Plain) -> Levels:
    is_date = type(at.value) is dict and "is_date" in at.value  # written for dates alone, as true
    column, categories, cuts, *dates = at.fields("column", "categories", "cuts", *(["is_date"] if is_date else []))
    inner = cuts.increasing()
    levels = Levels(column.text(), None if categories.is_null else categories.labels(), tuple(inner.tolist()), is_date)
    if len(inner) and levels.categories is not None:
        cuts.refuse("empty beside categories")
    seconds = levels.cuts if levels.categories is None else levels.categories
    if is_date and not (dates[0].value is True and all(_is_moment(value) for value in seconds)):
        at.refuse("levels of dates: seconds since 1970")
    return levels


def _is_moment(value: Any) -> bool:
    """Whether this is a number of seconds that a date can hold."""
    return type(value) in (int, float) and abs(value) <= MOST_SECONDS


def _read_columns(at: Plain) -> tuple[Levels, ...]:
    """Return the levels of different columns."""
    levels = tuple(_read_levels(one) for one in at.items())
    if len({level.column for level in levels}) < len(levels):
        at.refuse("a list of different columns")
    return levels


def _read_groups(at: Plain) -> Encoder:
    _, columns, plan = at.fields("kind", "levels", "plan")
    levels = _read_columns(columns)
    merged = tuple(tuple(k.whole(0, len(levels) - 1) for k in one.items()) for one in _some(plan))
    if any(any(a >= b for a, b in pairwise(one)) or (not one) != (not levels) for one in merged):
        plan.refuse("lists of increasing places of columns")
    if any(prod(levels[k].count for k in one) > MOST_LEVELS for one in merged):
        plan.refuse(f"a plan of at most {MOST_LEVELS} joint levels")
    return GroupEncoder(levels, merged)


def _read_thresholds(at: Plain) -> Encoder:
    _, columns, cuts = at.fields("kind", "columns", "cuts")
    names, points = columns.texts(), tuple(one.increasing() for one in cuts.items())
    if len(names) != len(points) or not names:
        cuts.refuse(f"a list of cut points for each of {len(names)} columns")
    return ThresholdEncoder(names, points)


def _read_bins(at: Plain) -> Encoder:
    _, columns = at.fields("kind", "levels")
    return BinEncoder(_read_columns(columns))


def _read_features(at: Plain) -> Encoder:
    _, features = at.fields("kind", "features")
    return FeatureEncoder(tuple(FEATURES[one.kind(FEATURES)](one) for one in features.items()))


def _read_scale(at: Plain) -> Scale:
    _, column, mean, deviation = at.fields("kind", "column", "mean", "deviation")
    return Scale(column.text(), mean.number(-LARGEST, LARGEST), deviation.number(SMALLEST))


def _read_indicators(at: Plain) -> Indicators:
    _, levels, wanted = at.fields("kind", "levels", "wanted")
    column = _read_levels(levels)
    return Indicators(column, tuple(one.whole(MISSING, column.count - 1) for one in wanted.items()))


def _read_memberships(at: Plain) -> Encoder:
    _, names, columns = at.fields("kind", "names", "columns")
    shown = names.texts()
    found = None if columns.is_null else columns.texts()
    if not shown or (found is not None and (len(found) != len(shown) or len(set(found)) < len(found))):
        at.refuse("names and different columns, as many of each")
    return MembershipEncoder(shown, found)


def _read_union(at: Plain) -> Encoder:
    _, parts = at.fields("kind", "parts")
    return UnionEncoder(tuple(read_encoder(part) for part in _some(parts)))


FEATURES: dict[str, Callable[[Plain], Scale | Indicators]] = {"scale": _read_scale, "indicators": _read_indicators}
ENCODERS: dict[str, Callable[[Plain], Encoder]] = {
    "groups": _read_groups,
    "thresholds": _read_thresholds,
    "bins": _read_bins,
    "features": _read_features,
    "memberships": _read_memberships,
    "union": _read_union,
}


# Families, for the encoder whose rows they see.


def read_family(at: Plain, context: Context) -> Family:
    """Return the family of a known kind; it must suit the encoder."""
    return FAMILIES[at.kind(FAMILIES)](at, context)


def _read_names(at: Plain, count: int) -> tuple[str, ...]:
    names = at.texts()
    if len(names) != count or not names:
        at.refuse(f"a list of {count} names")
    return names


def _read_codes(at: Plain, context: Context) -> Family:
    _, names, tables = at.fields("kind", "names", "tables")
    if isinstance(context.encoder, GroupEncoder):
        sizes = [prod(context.encoder.shape(merged)) for merged in context.encoder.plan]
    else:
        sizes = [len(cuts) + 2 for cuts in context.rows_of(at, ThresholdEncoder).cuts]
    decoded = [DECODES[one.kind(DECODES)](one, sizes) for one in tables.items()]
    shown = _read_names(names, sum(table.shape[1] for _, table in decoded))
    return CodeFamily(shown, tuple(column for column, _ in decoded), tuple(table for _, table in decoded))


def _read_table(at: Plain, sizes: Sequence[int]) -> tuple[int, Decode]:
    place, _, shape, entries = at.fields("column", "kind", "shape", "entries")
    column = place.whole(0, len(sizes) - 1)
    n_levels, n_groups = shape.wholes((2,), 1, MOST_LEVELS).tolist()
    parts = entries.items()
    if n_levels != sizes[column] or len(parts) != 3:
        at.refuse(f"a table of {sizes[column]} levels: the levels, groups and values of its entries")
    levels = parts[0].wholes((None,), 0, n_levels - 1)
    groups = parts[1].wholes(levels.shape, 0, n_groups - 1)
    values = np.ones(len(levels)) if parts[2].is_null else parts[2].floats(levels.shape, -1.0, 1.0)
    # the order of the entries is kept, as it is the order in which they are summed
    if (np.diff(levels) < 0).any() or len(np.unique(levels * n_groups + groups)) < len(levels):
        entries.refuse("entries level by level, each once")
    starts = np.concatenate([[0], np.cumsum(np.bincount(levels, minlength=n_levels))])
    return column, Table(sparse.csr_array((values, groups, starts), shape=(n_levels, n_groups)))


def _read_cumulative(at: Plain, sizes: Sequence[int]) -> tuple[int, Decode]:
    place, _, levels, cuts, is_above = at.fields("column", "kind", "levels", "cuts", "is_above")
    column = place.whole(0, len(sizes) - 1)
    size = levels.whole(sizes[column], sizes[column])
    places = cuts.wholes((None,), 1, size - 2)
    return column, Cumulative(size, places, is_above.wholes(places.shape, 0, 1).astype(bool))


def _read_everyone(at: Plain, context: Context) -> Family:
    at.fields("kind")
    if not isinstance(context.encoder, BinEncoder | FeatureEncoder):
        context.rows_of(at, MembershipEncoder)
    return Everyone()


def _read_members(at: Plain, context: Context) -> Family:
    _, names, columns = at.fields("kind", "names", "columns")
    last = len(context.rows_of(at, MembershipEncoder).names) - 1
    places = tuple(one.whole(0, last) for one in columns.items())
    return Members(_read_names(names, len(places)), places)


def _read_sigmoids(at: Plain, context: Context) -> Family:
    _, names, theta = at.fields("kind", "names", "theta")
    features = context.rows_of(at, FeatureEncoder).features
    width = sum(1 if isinstance(feature, Scale) else len(feature.wanted) for feature in features)
    shown = names.texts()
    return Sigmoids(_read_names(names, len(shown)), theta.floats((width + 1, len(shown)), -MOST, MOST))


def _read_tree(at: Plain, context: Context) -> Family:
    _, names, tree, nodes = at.fields("kind", "names", "tree", "nodes")
    grown = _read_grown(at, tree, context)
    if len(grown.feature) != 1:
        tree.refuse("the place of a single tree")
    places = nodes.wholes((None,), 1, 2 ** (grown.depth + 1) - 2)
    return TreeNodes(_read_names(names, len(places)), grown, places)


def _read_sum(at: Plain, context: Context) -> Family:
    _, names, forest, scale = at.fields("kind", "names", "forest", "scale")
    grown = _read_grown(at, forest, context)
    if grown.value.shape[2] != 1:
        forest.refuse("the place of a forest with one value in a leaf")
    return TreeSum(_read_names(names, 1)[0], grown, scale.number(1.0 / MOST, MOST))


def _read_grown(at: Plain, place: Plain, context: Context) -> Forest:
    """Return the forest at a place, which must split features that the encoder has at bins that they have."""
    forest = context.forests[place.whole(0, len(context.forests) - 1)]
    counts = np.array([level.count for level in context.rows_of(at, BinEncoder).levels], dtype=np.intp)
    split = forest.feature >= 0
    if len(counts) == 0 or forest.feature.max() >= len(counts):
        place.refuse(f"the place of a forest on {len(counts)} features")
    if (forest.cut[split] >= counts[forest.feature[split]]).any():
        place.refuse("the place of a forest that splits at bins of its features")
    return forest


def _read_part(at: Plain, context: Context) -> Family:
    _, index, family = at.fields("kind", "index", "family")
    parts = context.rows_of(at, UnionEncoder).parts
    place = index.whole(0, len(parts) - 1)
    return Part(place, read_family(family, Context(parts[place], context.forests)))


def read_forest(at: Plain) -> Forest:
    """Return complete binary trees."""
    depth, feature, cut, value = at.fields("depth", "feature", "cut", "value")
    inner = 2 ** depth.whole(1, MOST_DEPTH) - 1
    features = feature.wholes((None, inner), -1, 2**31)
    if len(features) == 0:
        feature.refuse("the features of at least one tree")
    cuts = cut.wholes(features.shape, 0, 2**31)
    values = value.floats((len(features), inner + 1, None), -MOST, MOST)
    if values.shape[2] == 0:
        value.refuse("an array with a value in each leaf")
    return Forest(features, cuts, values)


DECODES: dict[str, Callable[[Plain, Sequence[int]], tuple[int, Decode]]] = {
    "table": _read_table,
    "cumulative": _read_cumulative,
}
FAMILIES: dict[str, Callable[[Plain, Context], Family]] = {
    "codes": _read_codes,
    "everyone": _read_everyone,
    "members": _read_members,
    "sigmoids": _read_sigmoids,
    "tree": _read_tree,
    "forest": _read_sum,
    "part": _read_part,
}
