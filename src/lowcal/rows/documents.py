"""Predictors as documents: families and forests are written once, and updates name them by their place.

A predictor of many updates mentions the same groups and trees in most of them. Encoders, families and weights write and
read themselves; what predicting relies on is checked where they are read, so that no prediction can fail on it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from lowcal.data.checked_json import MOST, MOST_LISTED, Plain, PlainLabels, Pool, pack, packed
from lowcal.data.inputs import Layout
from lowcal.kernels.simplex import Geometry
from lowcal.notions.weights import WEIGHTS
from lowcal.rows.updates import Predictor, Term, Update
from lowcal.subpopulations.base import ENCODERS, FAMILIES, Family, ReadFor
from lowcal.subpopulations.growing import Forest
from lowcal.subpopulations.union import innermost, leaves


def write_predictor(predictor: Predictor) -> dict[str, Any]:
    """Return everything needed to predict, as plain data."""
    families, forests = Pool(), Pool()
    known: dict[int, int] = {}

    def place(family: Family) -> int:
        if id(family) not in known:  # the predictor keeps it alive, so no other object gets its id
            written = family.to_dict()
            FAMILIES.require(innermost(family))
            known[id(family)] = families.place(packed(written, forests))
        return known[id(family)]

    def write_term(term: Term) -> dict[str, Any]:
        weights = [packed(u, forests) for u in term.written_weights()]
        return {"family": place(term.family), "weights": weights, "theta": pack(term.theta)}

    for encoder in leaves(predictor.encoder):
        ENCODERS.require(encoder)
    layout = predictor.layout.to_dict()
    if layout["classes"] is not None:
        layout["classes"] = PlainLabels(layout["classes"], "Classes")
    updates = [{"geometry": u.geometry, "terms": [write_term(term) for term in u.terms]} for u in predictor.updates]
    return {
        "kind": "predictor",
        "layout": packed(layout, forests),
        "encoder": packed(predictor.encoder.to_dict(), forests),
        **({"scores": list(predictor.scores)} if predictor.scores else {}),
        "forests": forests.values,
        "families": families.values,
        "updates": updates,
    }


def read_predictor(at: Plain) -> Predictor:
    """Return the predictor of plain data."""
    kind, layout, encoder, forests, families, updates, scores = at.fields(
        "kind", "layout", "encoder", "forests", "families", "updates", optional=("scores",)
    )
    kind.choice(("predictor",))
    rows, classes = ENCODERS.read(encoder), read_layout(layout)
    context = ReadFor(rows, [Forest.from_dict(forest) for forest in forests.items()])
    known = [FAMILIES.read(family, context) for family in families.items()]
    names = () if scores.is_null else scores.texts()
    if names and len(names) != classes.d:
        scores.refuse(f"a list of {classes.d} names")
    return Predictor(rows, tuple(_read_update(update, known, classes.d) for update in updates.items()), classes, names)


def read_layout(at: Plain) -> Layout:
    """Return the layout: how many classes, and their names where they have some."""
    number, classes = at.fields("n_classes", "classes")
    n_classes = number.whole(2, MOST_LISTED)
    names = None if classes.is_null else classes.labels()
    if names is not None and len(names) != n_classes:
        classes.refuse(f"a list of {n_classes} classes")
    return Layout(n_classes, names)


def _read_update(at: Plain, families: Sequence[Family], d: int) -> Update:
    geometry, terms = at.fields("geometry", "terms")
    chosen: Geometry = "mirror" if geometry.choice(get_args(Geometry)) == "mirror" else "euclidean"
    return Update(tuple(_read_term(term, families, d) for term in terms.items()), chosen)


def _read_term(at: Plain, families: Sequence[Family], d: int) -> Term:
    place, weights, theta = at.fields("family", "weights", "theta")
    family = families[place.whole(0, len(families) - 1)]
    functions = tuple(WEIGHTS.read(one, d) for one in weights.some())
    return Term(family, functions, theta.floats((len(family.names), len(functions), d), -MOST, MOST))
