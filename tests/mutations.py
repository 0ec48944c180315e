"""Saved models, changed at random and signed anew: each must be refused, or predict within bounds of size and memory.

`python mutations.py SEED COUNT` checks as many documents in a process of its own, whose memory is limited, and prints
one line for each that breaks a rule.
"""

from __future__ import annotations

import base64
import copy
import json
import resource
import sys
import traceback
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import cycle, islice
from typing import Any

import numpy as np

import saved
from lowcal import InvalidInput, MulticalibratedClassifier, MulticalibratedRegressor, persistence
from worlds import multicalibrate

#: What loading and predicting one document may take beyond what the process holds.
MOST_MEMORY = 200 << 20


# Documents.


def signed(changed: dict[str, Any]) -> bytes:
    """Return a document with a checksum that fits, made without lowcal."""
    rest = {key: value for key, value in changed.items() if key != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    digest = sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
    return json.dumps({**rest, "checksum": f"sha256:{digest}"}).encode("utf-8")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def nest(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def as_lists(value: Any) -> Any:
    """Return a document with all its arrays as lists."""
    if isinstance(value, list):
        return [as_lists(one) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"dtype", "shape", "base64"}:
        numbers = np.frombuffer(base64.b64decode(value["base64"]), dtype=np.dtype(value["dtype"]).newbyteorder("<"))
        return numbers.reshape(value["shape"]).tolist()
    return {key: as_lists(one) for key, one in value.items()}


KINDS: dict[str, tuple[str, int | str, dict[str, Any]]] = {
    "log odds by group": ("groups", 2, {}),
    "three classes": ("groups", 3, {"geometry": "mirror"}),
    "cells": ("thresholds", 2, {"notion": "full-0.3"}),
    "cells of three classes": ("thresholds", 3, {"notion": "full-0.25", "max_updates": 1}),
    "knots": ("thresholds", 2, {"notion": "smooth", "geometry": "euclidean", "max_updates": 1}),
    "points": ("thresholds", 3, {"notion": "smooth", "alpha": 0.1, "max_updates": 1, "solver": "worst"}),
    "trees": ("trees", 3, {}),
    "boosted trees": ("boosted trees", 2, {}),
    "linear": ("linear", 2, {"geometry": "euclidean"}),
    "memberships": ("memberships", 2, {}),
    "mixed union": ("mixed union", 3, {"notion": "degree-3", "max_updates": 1, "solver": "worst"}),
    "many steps": ("groups", 2, {"solver": "first", "max_updates": 12}),
    "private": ("private", 2, {}),
}


def models() -> dict[str, tuple[Any, Any, Any]]:
    """Return models of every kind, each with probabilities and columns to predict for."""
    made = {}
    for kind, (name, outcome, given) in KINDS.items():
        y, p, X = saved.people(outcome)
        subpopulations, here, _ = saved.tables(name, X)
        options = {"alpha": 0.02, "random_state": 0, **given}
        if kind != "private":
            options = {"max_updates": 2, "guard": False, **options}
        fit = multicalibrate(y, p, here, subpopulations=subpopulations, **options)
        made[kind] = (fit if len(made) % 2 else fit.predictor), p, here
    X = np.random.default_rng(0).normal(size=(90, 2))
    y = (X[:, 0] > 0.1) * 1
    options = {"max_updates": 2, "random_state": 0}
    made["classifier"] = MulticalibratedClassifier(**options).fit(X, y), np.linspace(0, 1, 90), X
    made["regressor"] = MulticalibratedRegressor(**options).fit(X, X[:, 0]), np.linspace(0, 1, 90), X
    return made


# Mutations.

EXTREMES: tuple[Any, ...] = (
    *(1e308, -1e308, 1e-308, 5e-324, 0, 0.0, -0.0, 1, -1, 2, 3, 0.5, 1.0, 1e99, -1e99, 1e-9, 1 / 3),
    *(2**24, 2**31, 2**53, 2**63, -(2**64), 10**18, 10**300, 1e20, 1 / (2**26 + 0.3), "nan", "inf", "-inf"),
)
STRINGS = ("", "x", "NaN", "euclidean", "mirror", "monomial", "cell", "log_odds", "union", "everyone", "\0", "é", "0")
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [0], [0.5], {"kind": "everyone"}, {"number": "inf"})


def _pick(some: Sequence[Any], rng: np.random.Generator) -> Any:
    return some[int(rng.integers(len(some)))]


def _number(old: Any, rng: np.random.Generator) -> Any:
    if type(old) in (int, float) and rng.random() < 0.4:
        return _pick([old + 1, old - 1, -old, 2 * old, old * 1000, float(old), int(old)], rng)
    return _pick(EXTREMES, rng)


def _bytes(old: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return an array of bytes with a number changed, or some of the bytes of smaller ones."""
    try:
        content = bytearray(base64.b64decode(old["base64"]))
    except (TypeError, ValueError):  # changed before
        return old
    extreme = _pick([np.inf, -np.inf, np.nan, 1e308, -1e308, 1e-308, -1.0, 0.0, 255.0], rng)
    start = 8 * int(rng.integers(len(content) // 8 + 1))
    content[start : start + 8] = np.float64(extreme).tobytes()[: len(content) - start]
    return {**old, "base64": base64.b64encode(content).decode()}


def _list(old: list[Any], rng: np.random.Generator) -> list[Any]:
    """Return a list emptied, doubled, repeated, shortened, lengthened, reversed or nested."""
    ways = ([], old + old, old * 50, old[:-1], old[1:], [*old, *old[-1:]], old[::-1], [old], [[one] for one in old])
    return copy.deepcopy(_pick(ways, rng))


def _swap(holder: dict[str, Any], key: str, rng: np.random.Generator) -> None:
    """Swap two values, rename a key, or take one away."""
    other = _pick(sorted(holder), rng)
    match int(rng.integers(3)):
        case 0:
            holder[key], holder[other] = holder[other], holder[key]
        case 1:
            holder[f"{key}s"] = holder.pop(key)
        case 2:
            del holder[key]


def _change(old: Any, rng: np.random.Generator) -> Any:
    """Return something in the place of a value."""
    way = int(rng.integers(10))
    if way == 0:
        return copy.deepcopy(_pick(OTHERS, rng))
    if isinstance(old, list):
        return _list(old, rng)
    if isinstance(old, str) and way < 8:
        return _pick(STRINGS, rng)
    if isinstance(old, dict) and set(old) == {"dtype", "shape", "base64"}:
        return _bytes(old, rng)
    if isinstance(old, dict):
        return nest(old, int(rng.choice([1, 2, 90])))
    return _number(old, rng)


def by_name(model: Any) -> list[list[tuple[Any, ...]]]:
    """Return the places inside a model, those under one name together, so that rare ones are hit as often as others."""
    named: dict[str, list[tuple[Any, ...]]] = {}
    for path in places(model):
        if path:
            named.setdefault(next(key for key in reversed(path) if isinstance(key, str)), []).append(path)
    return list(named.values())


def mutate(model: Any, named: Sequence[Sequence[tuple[Any, ...]]], rng: np.random.Generator) -> None:
    """Change one to three of the values; a place that a change before has taken away is left out."""
    for _ in range(int(rng.integers(1, 4))):
        path, other = _pick(_pick(named, rng), rng), _pick(_pick(named, rng), rng)
        try:
            holder, key, elsewhere = at(model, path[:-1]), path[-1], at(model, other)
            old = holder[key]
        except (LookupError, TypeError):
            continue
        if isinstance(holder, dict) and rng.random() < 0.05:
            _swap(holder, key, rng)
        elif isinstance(holder, dict | list):
            holder[key] = copy.deepcopy(elsewhere) if rng.random() < 0.1 else _change(old, rng)


# Rules.


def check(data: bytes, p: Any, X: Any) -> bool:
    """Load a document and predict; return whether it was refused. Any error but an `InvalidInput` comes through."""
    try:
        model = persistence.from_bytes(data).model
        predictor = getattr(model, "predictor", getattr(model, "predictor_", model))
        d = predictor.layout.d
        start = p if np.ndim(p) + (d == 1) == 2 else np.full((len(p), d), 1 / d)[:, 0 if d == 1 else slice(None)]
        found = [predictor(start, X)] if d < 50 else []
        found += [model.predict_proba(X)] if hasattr(model, "predict_proba") else []
    except InvalidInput:
        return True
    except ValueError as error:
        if str(error).startswith("X has "):  # scikit-learn's own, where the file wants another number of columns
            return True
        raise
    for rows in found:
        assert np.isfinite(rows).all(), "not finite"
        assert rows.min() >= 0.0, f"a probability of {rows.min()}"
        assert rows.max() <= 1.0 + 1e-9, f"a probability of {rows.max()}"
        off = 0.0 if rows.ndim == 1 else abs(rows.sum(axis=1) - 1.0).max()
        assert off <= 1e-9, f"a row whose sum is off by {off}"
    return False


def held() -> int:
    """Return how much address space the process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def run(seed: int, count: int) -> Iterator[str]:
    """Yield what is wrong, for documents of all kinds in turn; at the end how many were refused."""
    rng = np.random.default_rng(seed)
    ready = []
    for kind, (model, p, X) in models().items():
        written = json.loads(persistence.to_bytes(model))
        for document in (written, as_lists(written)):
            assert not check(signed(document), p, X)
            ready.append((kind, json.dumps(document), by_name(document["model"]), p, X))
    resource.setrlimit(resource.RLIMIT_AS, (held() + MOST_MEMORY,) * 2)
    refused = 0
    for kind, text, named, p, X in islice(cycle(ready), count):
        changed = json.loads(text)
        mutate(changed["model"], named, rng)
        try:
            with np.errstate(all="ignore"):
                refused += check(signed(changed), p, X)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            yield f"{kind}: {type(error).__name__}: {error} in {where.filename.split('/')[-1]}:{where.lineno}"
    yield f"refused {refused} of {count}"


if __name__ == "__main__":
    for line in run(int(sys.argv[1]), int(sys.argv[2])):
        print(line, flush=True)
