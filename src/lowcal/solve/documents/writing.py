"""Predictors as plain data: families and forests are written once, and updates name them by their place.

A predictor of many updates mentions the same groups and trees in most of them. The values write themselves
(`to_dict()`); here their arrays are packed, and what occurs twice is written once.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from lowcal.data.errors import InvalidInput
from lowcal.notions.weights import weight_to_dict
from lowcal.rows.updates import Predictor, Term
from lowcal.solve.documents.document import compact
from lowcal.solve.documents.plain import pack, pack_labels, pack_number
from lowcal.subpopulations.base import CodeFamily, Encoder, Everyone, Family
from lowcal.subpopulations.bins import BinEncoder
from lowcal.subpopulations.features import FeatureEncoder
from lowcal.subpopulations.groups import GroupEncoder
from lowcal.subpopulations.linear import Sigmoids
from lowcal.subpopulations.memberships import Members, MembershipEncoder
from lowcal.subpopulations.regressor import Fitted
from lowcal.subpopulations.thresholds import ThresholdEncoder
from lowcal.subpopulations.trees import TreeNodes, TreeSum
from lowcal.subpopulations.union import Part, UnionEncoder

#: Fields that hold an array of numbers.
ARRAYS = frozenset({"theta", "feature", "cut", "value", "nodes", "cuts", "is_above", "positions", "heights", "centres"})
#: Lowcal's own encoders and families: what is written can be read again. `Fitted` says itself why it can't be written.
ENCODERS = (GroupEncoder, ThresholdEncoder, BinEncoder, FeatureEncoder, MembershipEncoder)
FAMILIES = (CodeFamily, Everyone, Members, Sigmoids, TreeNodes, TreeSum, Fitted)


class Pool:
    """Plain values, each once: `place` says where one stands."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self._places: dict[bytes, int] = {}

    def place(self, value: dict[str, Any]) -> int:
        """Return the place of a value, a new one if it was not met before.

        >>> pool = Pool()
        >>> [pool.place({"a": k}) for k in (3, 4, 3)]
        [0, 1, 0]
        """
        place = self._places.setdefault(sha256(compact(value).encode("utf-8")).digest(), len(self.values))
        if place == len(self.values):
            self.values.append(value)
        return place


def write_predictor(predictor: Predictor) -> dict[str, Any]:
    """Return everything needed to predict, as plain data."""
    families, forests = Pool(), Pool()
    known: dict[int, int] = {}

    def place(family: Family) -> int:
        if id(family) not in known:  # the predictor keeps it alive, so no other object gets its id
            known[id(family)] = families.place(_write_family(family, forests))
        return known[id(family)]

    updates = [
        {"geometry": update.geometry, "terms": [_write_term(term, place(term.family)) for term in update.terms]}
        for update in predictor.updates
    ]
    layout = predictor.layout.to_dict()
    if layout["classes"] is not None:
        layout["classes"] = pack_labels(layout["classes"], "Classes")
    return {
        "kind": "predictor",
        "layout": layout,
        "encoder": _write_encoder(predictor.encoder),
        **({"scores": list(predictor.scores)} if predictor.scores else {}),
        "forests": forests.values,
        "families": families.values,
        "updates": updates,
    }


def _write_term(term: Term, place: int) -> dict[str, Any]:
    weights = [_packed(weight_to_dict(u)) for u in term.weights]
    return {"family": place, "weights": weights, "theta": pack(term.theta)}


def _write_encoder(encoder: Encoder) -> dict[str, Any]:
    if type(encoder) is UnionEncoder:
        return {"kind": "union", "parts": [_write_encoder(part) for part in encoder.parts]}
    if type(encoder) not in ENCODERS:
        raise _foreign("encoder", encoder)
    return _packed(encoder.to_dict())


def _write_family(family: Family, forests: Pool) -> dict[str, Any]:
    if type(family) is Part:
        return {"kind": "part", "index": family.index, "family": _write_family(family.family, forests)}
    if type(family) not in FAMILIES:
        raise _foreign("family of subpopulations", family)
    written = _packed(family.to_dict())
    return {key: forests.place(value) if key in ("tree", "forest") else value for key, value in written.items()}


def _foreign(what: str, value: object) -> InvalidInput:
    cls = type(value)
    return InvalidInput(
        f"The model holds an {what} of the type {cls.__module__}.{cls.__qualname__}, which is not lowcal's: a saved "
        "file could not be loaded without its code. Build the class from Groups, Memberships, Thresholds, Trees or "
        "Linear, or pickle the model at your own risk."
    )


def _packed(data: dict[str, Any]) -> dict[str, Any]:
    """Return what a value's `to_dict()` gave with its arrays, categories and special numbers as they are written."""
    return {key: _pack_field(data.get("kind"), key, value) for key, value in data.items()}


def _pack_field(kind: str | None, key: str, value: Any) -> Any:
    if value is None:
        return None
    if key == "categories":
        return pack_labels(value, "Categories")
    if key == "entries":
        levels, groups, values = value
        return [pack(levels), pack(groups), None if all(v == 1.0 for v in values) else pack(values)]
    if (kind, key) == ("thresholds", "cuts"):
        return [pack(cuts) for cuts in value]
    if key in ARRAYS:
        return pack(value)
    if isinstance(value, dict):
        return _packed(value)
    if isinstance(value, list):
        return [_packed(one) if isinstance(one, dict) else one for one in value]
    return pack_number(value) if isinstance(value, float) else value
