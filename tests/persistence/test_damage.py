"""Damaged, changed and foreign files give an `InvalidInput`, never another error and never a wrong model."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import re
import warnings
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import lowcal
import saved
from lowcal import Groups, InvalidInput, MulticalibratedClassifier, Regressor, __version__, persistence
from lowcal.data.errors import DamagedFile, LowcalError
from lowcal.notions.weights import Monomial
from lowcal.subpopulations.base import Subpopulations
from lowcal.subpopulations.groups import CodeFamily
from mutations import as_lists, at, nest, places, signed
from worlds import multicalibrate

SEEDS = range(4)
KINDS = ("groups", "thresholds", "trees", "boosted trees", "linear", "mixed union", "memberships", "smooth", "model")


@cache
def model_of(kind: str) -> Any:
    """Return a model, small enough that every part of its file is hit."""
    if kind == "model":
        rng = np.random.default_rng(0)
        X = rng.normal(size=(200, 2))
        y = np.array(["a", "b"])[(X[:, 0] > 0.1).astype(int)]
        return MulticalibratedClassifier(subpopulations=Groups(), max_updates=2, random_state=0).fit(X, y)
    y, p, X = saved.people(3 if kind in ("trees", "mixed union") else 2)
    subpopulations, here, _ = saved.tables("groups" if kind == "smooth" else kind, X)
    notion = {"smooth": "smooth", "thresholds": "full-0.5"}.get(kind, "degree-2")
    options = {"notion": notion, "alpha": 0.02, "max_updates": 2, "random_state": 0, "guard": False}
    if notion != "degree-2":
        options["geometry"] = "euclidean"  # whose first update has the weights of the notion
    fit = multicalibrate(y, p, here, subpopulations=subpopulations, **options)
    return fit if kind in ("groups", "trees") else fit.predictor


@cache
def bytes_of(kind: str) -> bytes:
    return persistence.to_bytes(model_of(kind), {"label": "y", "columns": ["p"]})


def document(kind: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(bytes_of(kind))
    return parsed


def load(data: bytes) -> Any:
    """Load bytes; any error but an InvalidInput fails the test."""
    return persistence.from_bytes(data).model


def is_refused(data: bytes) -> bool:
    try:
        load(data)
    except InvalidInput as error:
        return bool(str(error))
    return False


# Bytes.


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the bytes with some flipped, cut off, taken out, put in or swapped."""
    at, other = sorted(int(k) for k in rng.integers(0, len(data), 2))
    short = at + int(rng.integers(1, 20))
    changed = bytearray(data)
    match int(rng.integers(7)):
        case 0:
            changed[at] ^= 1 << int(rng.integers(8))
        case 1:
            changed[at] = int(rng.integers(256))
        case 2:
            del changed[at:]
        case 3:
            del changed[at:short]
        case 4:
            changed[at:at] = rng.bytes(int(rng.integers(1, 20)))
        case 5:
            changed[at:at] = data[other : other + 50]
        case 6:
            changed[at:short], changed[other:] = changed[other:], changed[at:short]
    return bytes(changed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_random_damage(kind: str, seed: int) -> None:
    rng, data = np.random.default_rng(seed), bytes_of(kind)
    refused = 0
    for _ in range(25):
        changed = damage(data, rng)
        if is_refused(changed):
            refused += 1
        else:  # white space, or nothing at all, was hit
            assert json.loads(changed) == json.loads(data)
            assert persistence.to_bytes(load(changed), {"label": "y", "columns": ["p"]}) == data
    assert refused >= 15


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_truncation(kind: str) -> None:
    data = bytes_of(kind).rstrip()
    for size in {0, 1, 2, 10, len(data) // 2, len(data) - 2, len(data) - 1}:
        with pytest.raises(DamagedFile):
            load(data[:size])


# Content, with a checksum that fits.


STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**63, -(2**64), 10**300, 0.0, -0.0, 0.5, -1.5, 1e-320, 1e99),
    *(
        1e308,
        -1e308,
        "",
        "x",
        "nan",
        "inf",
        "-inf",
        "euclidean",
        "union",
        [],
        {},
        [[]],
        [0],
        [0.5, 0.5],
        {"kind": "codes"},
    ),
    *({"number": "inf"}, {"dtype": "float64", "shape": [1], "base64": "AAAAAAAA8D8="}, "\ud800", "é\n\0"),
)


def change(document: dict[str, Any], rng: np.random.Generator) -> None:
    """Change one value of a document: its type, its size, its place, its number."""
    ways = [path for path in places(document) if path and path[0] in ("model", "metadata", "version", "lowcal")]
    path = ways[int(rng.integers(len(ways)))]
    holder, key = at(document, path[:-1]), path[-1]
    old = holder[key]
    match int(rng.integers(8)):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[f"{key}s"] = old
        case 2 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(old))
        case 3 if isinstance(holder, list):
            del holder[key]
        case 4 if isinstance(holder, list):
            rng.shuffle(holder)
        case 5 if isinstance(old, int | float):
            holder[key] = [old + 1, old - 1, -old, old * 1000, old / 3, str(old)][int(rng.integers(6))]
        case 6:
            holder[key] = nest(old, int(rng.choice([1, 2, 90, 300])))
        case _:
            holder[key] = copy.deepcopy(STRANGE[int(rng.integers(len(STRANGE)))])


def plain(value: Any) -> Any:
    """Return what a model says, however it is written: arrays as lists, families and forests in their places."""
    value = as_lists(value)
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: plain(one) for key, one in value.items()}
    if "entries" in made and made["entries"][2] is None:
        made["entries"][2] = [1.0] * len(made["entries"][0])
    if "families" in made:
        forests, families = made.pop("forests"), made.pop("families")
        for family in families:
            inner = family["family"] if family["kind"] == "part" else family
            inner |= {key: forests[inner[key]] for key in ("tree", "forest") if key in inner}
        for update in made["updates"]:
            for term in update["terms"]:
                term["family"] = families[term["family"]]
    return made


def predict(kind: str, model: Any) -> None:
    """Predict on good rows; what comes out is finite and in [0, 1]."""
    if kind == "model":
        p, X, predictor = [0.1, 0.5, 0.9], np.random.default_rng(1).normal(size=(3, 2)), model.predictor_
    else:
        _, start, columns = saved.people(3 if kind in ("trees", "mixed union") else 2)
        predictor = getattr(model, "predictor", model)
        p, X = start, saved.tables("groups" if kind == "smooth" else kind, columns)[1]
    problem, found = "", np.zeros(0)
    try:
        with np.errstate(all="ignore"):
            found = predictor(p, X)
    except InvalidInput as error:  # the file asks for other columns, classes or kinds of columns than these
        problem = str(error)
    assert not problem or re.search("no column|not numeric|p must have|[Mm]emberships|holds text", problem)
    assert np.isfinite(found).all()
    assert ((found >= 0.0) & (found <= 1.0 + 1e-12)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_random_changes_with_a_checksum_that_fits(kind: str, seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    refused = 0
    for _ in range(25):
        changed = document(kind)
        change(changed, rng)
        data = signed(changed)
        if is_refused(data):
            refused += 1
            continue
        model = load(data)
        says = json.loads(persistence.to_bytes(model))["model"]
        assert plain(says) == plain(changed["model"]), "the model is what the file says"
        predict(kind, model)
    assert refused >= 5


# Files that are something else.


def text_of(kind: str = "groups") -> str:
    return bytes_of(kind).decode("utf-8")


OTHERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "it is empty"),
    "blank": (lambda: b" \n\t ", "it is empty"),
    "pickle": (lambda: pickle.dumps({"a": 1}), "it is not a text file"),
    "zeros": (lambda: bytes(1000), "not valid JSON"),
    "utf-16": (lambda: text_of().encode("utf-16"), "it is not a text file"),
    "csv": (lambda: b"y,p\n0,0.5\n", "not valid JSON from line 1, column 1"),
    "number": (lambda: b"3", "not a model saved by lowcal"),
    "list": (lambda: b"[1, 2]", "not a model saved by lowcal"),
    "null": (lambda: b"null", "not a model saved by lowcal"),
    "other json": (lambda: b'{"format": "onnx"}', "not a model saved by lowcal"),
    "two documents": (lambda: bytes_of("groups") * 2, "not valid JSON"),
    "half": (lambda: bytes_of("groups")[:500], "cut off, damaged"),
    "deep lists": (lambda: b"[" * 1_000_000, "nested too deeply|not valid JSON"),
    "deep objects": (lambda: b'{"format":"lowcal","a":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "too deeply"),
    "deep metadata": (
        lambda: text_of().replace('"metadata": {', '"metadata": {"a":' + "[" * 20_000 + "]" * 20_000 + ",").encode(),
        "too deeply",
    ),
    "1e999": (lambda: text_of().replace('"alpha": 0.02', '"alpha": 1e999').encode(), "1e999 is too large"),
    "-1e999": (lambda: text_of().replace('"alpha": 0.02', '"alpha": -1e999').encode(), "-1e999 is too large"),
    "NaN": (lambda: text_of().replace('"alpha": 0.02', '"alpha": NaN').encode(), "NaN is not valid JSON"),
    "Infinity": (
        lambda: text_of().replace('"alpha": 0.02', '"alpha": -Infinity').encode(),
        "Infinity is not valid JSON",
    ),
    "long number": (lambda: text_of().replace('"bound": ', '"bound": ' + "9" * 5000).encode(), "has 500. digits"),
    "key twice": (lambda: text_of().replace('"alpha": 0.02', '"alpha": 0.02, "alpha": 0.5').encode(), "a key twice"),
    "half a character": (lambda: signed({**document("groups"), "lowcal": "\ud800"}), "not valid Unicode"),
    "no checksum": (lambda: text_of().replace("checksum", "checksun").encode(), "checksum does not match"),
    "other checksum": (lambda: text_of().replace('"sha256:', '"sha512:').encode(), "checksum does not match"),
    "changed": (lambda: text_of().replace('"alpha": 0.02', '"alpha": 0.01').encode(), "damaged or was changed"),
    "more keys": (lambda: signed({**document("groups"), "more": 1}), "checksum does not match"),
    "version 2": (
        lambda: signed({**document("groups"), "version": 2}),
        rf"newer lowcal {re.escape(__version__)} \(format 2.*update lowcal",
    ),
    "version 0": (lambda: signed({**document("groups"), "version": 0}), "its version is 0"),
    "version 1.0": (lambda: signed({**document("groups"), "version": 1.0}), "its version is 1.0"),
    "version true": (lambda: signed({**document("groups"), "version": True}), "its version is True"),
    "no version": (lambda: signed({"format": "lowcal"}), "its version is None"),
    "future": (lambda: b'{"format": "lowcal", "version": 99}', "newer lowcal .format 99"),
    "metadata list": (lambda: signed({**document("groups"), "metadata": []}), "metadata is not an object"),
    "writer": (lambda: signed({**document("groups"), "lowcal": 3}), "lowcal is 3, but it must be text"),
    "model": (lambda: signed({**document("groups"), "model": []}), "model is a list of 0.*an object with a kind"),
    "kind": (
        lambda: signed({**document("groups"), "model": {"kind": "os.system"}}),
        "kind is 'os.system'.*one of predict",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_files_that_are_something_else(what: str, tmp_path: Path) -> None:
    make, message = OTHERS[what]
    path = tmp_path / "m.json"
    path.write_bytes(make())
    for reads in (persistence.load, persistence.read):
        with pytest.raises(InvalidInput, match=rf"m.json can't be loaded: [\s\S]*({message})"):
            reads(path)


def test_spaces_the_order_of_keys_and_a_byte_order_mark_do_not_count() -> None:
    changed = b"\xef\xbb\xbf" + json.dumps(dict(reversed(document("groups").items())), indent=3).encode("utf-8")
    assert persistence.to_bytes(load(changed), {"label": "y", "columns": ["p"]}) == bytes_of("groups")


def test_paths_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"There is no file '.*gone.json'"):
        persistence.load(tmp_path / "gone.json")
    with pytest.raises(InvalidInput, match=r"is a folder. Give the file that lowcal.save wrote"):
        persistence.load(tmp_path)
    (tmp_path / "m.json").write_bytes(bytes_of("groups"))
    with pytest.raises(InvalidInput, match="can't be read: Not a directory"):
        persistence.load(tmp_path / "m.json" / "x")
    for wrong in (None, 0, b"m.json", "", "\0"):
        with pytest.raises(InvalidInput, match="path of a file must be text"):
            persistence.load(wrong)
    monkeypatch.setattr(persistence.checked_json, "MOST_BYTES", 1 << 12)
    with pytest.raises(InvalidInput, match="more than 0 MiB, too much"):
        persistence.load(tmp_path / "m.json")


# What each part of a file must be.


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return the change that sets a value; the path is written as errors write it."""
    keys = [int(key) if key.isdigit() else key for key in re.findall(r"[^.\[\]]+", path)]

    def change(changed: dict[str, Any]) -> None:
        at(changed, tuple(keys[:-1]))[keys[-1]] = value

    return change


ONE = {"dtype": "float64", "shape": [1], "base64": base64.b64encode(np.array([0.5]).tobytes()).decode()}
LEVELS = {"column": "age", "categories": None, "cuts": []}
E = "model.encoder"
F = "model.families[0]"
T = "model.updates[0].terms[0]"
WRONG: list[tuple[str, str, Any, str]] = [
    ("linear", "model.layout.n_classes", 1, "whole number of at least 2|from 2 to"),
    ("linear", "model.layout.n_classes", 3, "layout.classes is a list of 2.*list of 3 classes"),
    ("linear", "model.layout.classes", ["a", "a"], "different values"),
    ("linear", "model.layout.classes", [1, True], "different values"),
    ("linear", "model.layout.classes", ["a", None], r"classes\[1\] is null.*text, a number or a boolean"),
    ("linear", "model.layout.classes", ["a", {"number": "nan"}], "one of inf, -inf"),
    ("linear", "model.updates[0].geometry", "flat", "one of euclidean, mirror"),
    ("linear", f"{T}.family", 99, "family is 99, but it must be a whole number from 0"),
    ("linear", f"{T}.family", -1, "from 0"),
    ("linear", f"{T}.family", True, "family is True"),
    ("linear", f"{T}.weights", [], "not empty"),
    ("linear", f"{T}.theta", [[[0.5]]], "shape"),
    ("linear", f"{T}.theta", [[[0.5], [1.0, 2.0]]], "all of one length"),
    ("linear", f"{T}.theta", [[[0.5], [1e101]]], "numbers from -1e\\+100 to 1e\\+100"),
    ("linear", f"{T}.theta", [[[0.5], ["nan"]]], "numbers from"),
    ("linear", f"{T}.theta", [[[0.5], ["x"]]], "array of numbers"),
    ("linear", f"{T}.theta", [[[0.5], [True]]], "array of numbers"),
    ("linear", f"{T}.theta", [[[0.5], [2**60]]], "array of numbers"),
    ("linear", f"{T}.theta", 0.5, "lists of numbers"),
    ("linear", f"{T}.theta", ONE, "shape .1, 2, 1."),
    ("linear", f"{T}.theta", {**ONE, "dtype": "object"}, "dtype is 'object'"),
    ("linear", f"{T}.theta", {**ONE, "dtype": "int64"}, "one of float64"),
    ("linear", f"{T}.theta", {**ONE, "shape": [1, 2, 1]}, "2 numbers of the type float64"),
    ("linear", f"{T}.theta", {**ONE, "shape": [0]}, "of at least 1|from 1"),
    ("linear", f"{T}.theta", {**ONE, "shape": [1] * 9}, "at most 4 lengths"),
    ("linear", f"{T}.theta", {**ONE, "base64": "?" * 12}, "base64"),
    ("linear", f"{T}.theta", {**ONE, "base64": "ä"}, "base64"),
    ("linear", f"{T}.theta", {**ONE, "base64": 5}, "text"),
    ("linear", f"{T}.weights[0].factors", [1], "factors.0. is 1, but it must be a whole number from 0 to 0"),
    ("linear", f"{T}.weights[0].factors", [0] * 1001, "at most 1000 factors"),
    ("linear", f"{T}.weights[0].kind", "lambda", "one of monomial, log_odds, log_rest, cell, knots, points"),
    ("linear", f"{T}.weights[0].kind", "cell", "keys kind, width, index"),
    ("thresholds", f"{T}.weights[0].width", 0.0, "width"),
    ("thresholds", f"{T}.weights[0].width", 1.5, "width"),
    ("thresholds", f"{T}.weights[0].index", [2], "from 0 to 1"),
    ("thresholds", f"{T}.weights[0].index", [0, 0], "list of 1 numbers"),
    ("smooth", f"{T}.weights[0].coordinate", 1, "coordinate"),
    ("smooth", f"{T}.weights[0].positions", [0.5, 0.5], "increasing"),
    ("smooth", f"{T}.weights[0].positions", [], "not empty"),
    ("smooth", f"{T}.weights[0].positions", [0.5, 2.0], "list of predictions"),
    ("smooth", f"{T}.weights[0].positions", [-0.1, 0.5], "list of predictions"),
    ("smooth", f"{T}.weights[0].heights", [0.5], "heights.*shape"),
    ("smooth", f"{T}.weights[0]", {"kind": "points", "centres": [[0.5, 0.5]], "heights": [0.5]}, "shape .any, 1."),
    ("smooth", f"{T}.weights[0]", {"kind": "points", "centres": [[0.5]], "heights": [0.5, 0.5]}, "shape .1."),
    ("smooth", f"{T}.weights[0]", {"kind": "points", "centres": [[7.0]], "heights": [0.5]}, "from"),
    ("smooth", f"{E}.levels[0].column", 3, "column is 3, but it must be text"),
    ("smooth", f"{E}.levels[0].cuts", [1.0, 1.0], "increasing"),
    ("smooth", f"{E}.levels[0].cuts", [1.0, "nan"], "numbers"),
    ("smooth", f"{E}.levels[1].cuts", [1.0], "empty beside categories"),
    ("smooth", f"{E}.levels[1].categories", ["a", "a"], "different values"),
    ("smooth", f"{E}.levels[1].categories", ["Rome"], "table of"),
    ("smooth", f"{E}.levels", [LEVELS, LEVELS], "different columns"),
    ("smooth", f"{E}.levels", [], "plan"),
    ("smooth", f"{E}.plan", [], "not empty"),
    ("smooth", f"{E}.plan", [[0, 0]], "increasing places"),
    ("smooth", f"{E}.plan", [[1, 0]], "increasing places"),
    ("smooth", f"{E}.plan", [[]], "increasing places"),
    ("smooth", f"{E}.plan", [[0, 6]], "from 0 to 5"),
    ("smooth", f"{E}.levels", [{**LEVELS, "column": str(k)} for k in range(20)], "table of"),
    ("smooth", f"{E}.kind", "numpy", "one of features, groups"),
    ("smooth", f"{F}.names", ["a", "b"], "list of 1 names"),
    ("smooth", f"{F}.names", [3], "text"),
    ("smooth", f"{F}.tables[0].column", 9, "column is 9"),
    ("smooth", f"{F}.tables[0].kind", "eval", "one of table, cumulative"),
    ("smooth", f"{F}.tables[0].shape", [1, 1], "a table of .* levels"),
    ("smooth", f"{F}.tables[0].shape", [1, 2**40], "from 1"),
    ("smooth", f"{F}.tables[0].shape", [1], "shape .2."),
    ("smooth", f"{F}.tables[0].entries", [[0], [0]], "levels, groups and values"),
    ("smooth", f"{F}.tables[0].entries", [[0], [1], None], "from 0 to 0"),
    ("smooth", f"{F}.tables[0].entries", [[10**6], [0], None], "from 0 to"),
    ("smooth", f"{F}.tables[0].entries", [[1, 0], [0, 0], None], "level by level, each once"),
    ("smooth", f"{F}.tables[0].entries", [[0, 0], [0, 0], None], "level by level, each once"),
    ("smooth", f"{F}.tables[0].entries", [[0, 1], [0, 0], [0.5]], "shape"),
    ("smooth", f"{F}.tables[0].entries", [[0], [0], [1.5]], "from -1 to 1"),
    ("smooth", f"{F}.tables[0].entries", [[0.5], [0], None], "array of numbers"),
    ("smooth", f"{F}.tables", [], "list of 0 names"),
    ("smooth", F, {"kind": "everyone"}, "rows of GroupEncoder"),
    ("smooth", F, {"kind": "members", "names": ["a"], "columns": [0]}, "rows of GroupEncoder"),
    ("smooth", F, {"kind": "part", "index": 0, "family": {}}, "rows of GroupEncoder"),
    ("smooth", F, {"kind": "tree", "names": ["a"], "tree": 0, "nodes": [1]}, "from 0 to -1"),
    ("thresholds", f"{E}.columns", [], "cut points for each of 0"),
    ("thresholds", f"{E}.columns", ["age"], "cut points for each of 1"),
    ("thresholds", f"{E}.cuts[0]", [0.0], "levels is|table of"),
    ("thresholds", f"{F}.tables[1].levels", 5, "levels is 5"),
    ("thresholds", f"{F}.tables[1].cuts[0]", 0, "from 1 to"),
    ("thresholds", f"{F}.tables[1].cuts[0]", 10**6, "from 1 to"),
    ("thresholds", f"{F}.tables[1].is_above[0]", 2, "from 0 to 1"),
    ("thresholds", f"{F}.tables[1].is_above", [0], "shape"),
    ("memberships", f"{E}.names", [], "names and different columns"),
    ("memberships", f"{E}.columns", ["a"], "names and different columns"),
    ("memberships", f"{E}.columns", ["a"] * 10, "names and different columns"),
    ("memberships", "model.families[1].columns[0]", 10, "from 0 to 9"),
    ("memberships", "model.families[1].columns", [], "list of 0 names"),
    ("memberships", f"{F}.more", 1, "keys kind"),
    ("memberships", F, {"kind": "sigmoids", "names": ["a"], "theta": [[0.5]]}, "rows of MembershipEncoder"),
    ("memberships", F, {"kind": "codes", "names": ["a"], "tables": []}, "rows of MembershipEncoder"),
    ("linear", f"{E}.features[0].deviation", 0.0, "deviation"),
    ("linear", f"{E}.features[0].deviation", -1.0, "deviation"),
    ("linear", f"{E}.features[0].mean", "inf", "mean"),
    ("linear", f"{E}.features[0].mean", "nan", "mean"),
    ("linear", f"{E}.features[0].kind", "pickle", "one of scale, indicators"),
    ("linear", f"{E}.features[1].wanted", [0], "from 1"),
    ("linear", f"{E}.features[1].wanted", [99], "from 1"),
    ("linear", f"{E}.features", [], "shape .1, 2."),
    ("linear", "model.families[1].theta[0]", [1e200, 0.0], "numbers from"),
    ("linear", "model.families[1].names", [], "list of 0 names"),
    ("boosted trees", "model.forests[0].depth", 25, "from 1 to 12"),
    ("boosted trees", "model.forests[0].depth", 3, "shape .any, 7."),
    ("boosted trees", "model.forests[0].feature", [], "at least one tree"),
    ("boosted trees", "model.forests[0].feature[0]", [0, 0, 6], "on 6 features"),
    ("boosted trees", "model.forests[0].feature[0]", [0, 0, -2], "from -1"),
    ("boosted trees", "model.forests[0].cut[0]", [99, 0, 0], "bins of its features"),
    ("boosted trees", "model.forests[0].cut[0]", [-1, 0, 0], "from 0"),
    ("boosted trees", "model.forests[0].cut", [[0, 0, 0]], "shape .3, 3."),
    ("boosted trees", "model.forests[0].value", [[[0.5, 0.5]] * 4] * 3, "one value in a leaf"),
    ("boosted trees", "model.forests[0].value", [[[0.5]] * 3] * 3, "shape .3, 4, any."),
    ("boosted trees", "model.forests[0].value", [[[]] * 4] * 3, "a value in each leaf"),
    ("smooth", f"{T}.weights[0]", {"kind": "points", "centres": [[], []], "heights": []}, "shape .any, 1."),
    ("boosted trees", "model.families[1].scale", 0.0, "scale"),
    ("boosted trees", "model.families[1].scale", -1.0, "scale"),
    ("boosted trees", "model.families[1].forest", 9, "forest is 9"),
    ("boosted trees", "model.families[1].names", ["a", "b"], "list of 1 names"),
    ("boosted trees", "model.families[1]", {"kind": "tree", "names": ["a"], "tree": 0, "nodes": [1]}, "a single tree"),
    ("boosted trees", f"{E}.levels", [], "on 0 features"),
    ("trees", "model.predictor.families[1].nodes[0]", 0, "from 1 to 6"),
    ("trees", "model.predictor.families[1].nodes[0]", 7, "from 1 to 6"),
    ("trees", "model.predictor.families[1].nodes", [], "list of 0 names"),
    ("mixed union", "model.families[0].index", 3, "from 0 to 2"),
    ("mixed union", "model.families[0].index", 1, "rows of BinEncoder"),
    ("mixed union", f"{E}.parts", [], "not empty"),
    ("groups", "model.status", "perfect", "one of reached, limit"),
    ("groups", "model.alpha", "low", "alpha is 'low', but it must be a number"),
    ("groups", "model.violation", None, "violation is null, but it must be a number"),
    ("groups", "model.per_person", "low", "per_person is 'low', but it must be a number"),
    ("groups", "model.start", {}, "keys n_updates, violation"),
    ("groups", "model.start", [], "keys n_updates, violation"),
    ("groups", "model.more", 1, "keys kind, status"),
    ("groups", "model.bound", -1, "at least 0"),
    ("groups", "model.is_exact", 1, "true or false"),
    ("groups", "model.history[0].brier", "low", "brier is 'low'"),
    ("groups", "model.history[0]", {}, "keys n_updates, violation"),
    ("groups", "model.notion", {"kind": "Groups"}, "one of Multiaccuracy"),
    ("groups", "model.notion", {"kind": "Full", "width": 7.0}, "is not a valid Full: The width"),
    ("groups", "model.notion", {"kind": "Full", "width": [1]}, "is not a valid Full: The width"),
    ("groups", "model.notion", {"kind": "Full", "width": 10**390}, "must be a Full"),
    ("groups", "model.notion", {"kind": "LowDegree", "degree": "2"}, "is not a valid LowDegree"),
    ("groups", "model.notion", {"kind": "Smooth", "more": 1}, "keys kind"),
    ("groups", "model.predictor.kind", "fit", "one of predictor"),
    ("model", "model.target.classes", ["a"], "list of 2 classes"),
    ("model", "model.target.classes", ["a", 1], "of the type str"),
    ("model", "model.target.dtype", "datetime64", "dtype"),
    ("model", "model.target.dtype", "int8", "of the type int8"),
    ("model", "model.n_features", 2.0, "n_features is 2.0"),
    ("model", "model.n_features", 2**31, "from 0 to 1.04858e"),
    ("model", "model.feature_names", ["a"], "list of 2 names"),
    ("model", "model.settings", True, "an object with the keys"),
    ("model", "model.settings.random_state", "x", "random_state"),
    ("model", "model.settings.subpopulations", {"kind": "Regressor"}, "one of Linear, Groups"),
    ("model", "model.settings.subpopulations.kind", "Union", "keys kind, parts"),
    ("model", "model.settings.alpha", {"kind": "Groups"}, "must be one of"),
    ("model", "model.base", 3, "base is 3, but it must be text"),
    ("model", "model.kind", "regressor", "bounds"),
    ("model", "model.fit.kind", "classifier", "one of fit"),
]


@pytest.mark.parametrize(("kind", "path", "value", "message"), WRONG, ids=lambda one: str(one)[:40])
def test_what_each_part_must_be(kind: str, path: str, value: Any, message: str) -> None:
    changed = as_lists(document(kind))
    load(signed(changed))
    put(path, value)(changed)
    with pytest.raises(DamagedFile, match=message):
        load(signed(changed))


def test_a_plan_of_too_many_joint_levels() -> None:
    changed = document("smooth")
    changed["model"]["encoder"]["levels"] = [{**LEVELS, "column": str(k)} for k in range(20)]
    changed["model"]["encoder"]["plan"] = [list(range(20))]
    with pytest.raises(DamagedFile, match="a plan of at most 67108864 joint levels"):
        load(signed(changed))


@pytest.mark.parametrize("depth", [50, 250, 300, 350, 400, 450, 480, 10_000])
def test_unions_in_unions_without_end(depth: int) -> None:
    """The text is put together by hand: such depths are more than Python's own writer takes."""
    changed = document("smooth")
    del changed["checksum"]
    inner = json.dumps(changed["model"]["encoder"], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    changed["model"]["encoder"] = "HERE"
    canonical = json.dumps(changed, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    nested = '{"kind":"union","parts":[' * depth + inner + "]}" * depth
    text = canonical.replace('"HERE"', nested)
    checksum = sha256(text.encode("utf-8")).hexdigest()
    with pytest.raises(DamagedFile, match=r"nested too deeply|rows of UnionEncoder"):
        load(f'{{"checksum":"sha256:{checksum}",{text[1:]}'.encode())


def test_the_bounds_of_a_regressor() -> None:
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = lowcal.MulticalibratedRegressor(max_updates=1, random_state=0).fit(X, X[:, 0])
    whole = json.loads(persistence.to_bytes(model))
    for path, value, message in (
        ("model.target", [1.0, 1.0], "the lower first"),
        ("model.target", [0.0, "inf"], "numbers from"),
        ("model.target", [0.0], "shape"),
        ("model.fit.predictor.layout", {"n_classes": 3, "classes": None}, "the fit of a bounded outcome"),
    ):
        changed = copy.deepcopy(whole)
        put(path, value)(changed)
        changed["model"]["fit"]["predictor"]["updates"] = []
        with pytest.raises(DamagedFile, match=message):
            load(signed(changed))


# What can't be saved.


class OwnWeight(Monomial):
    """A subclass says something else than its base: it must not be taken for it."""


class OwnFamily(CodeFamily):
    pass


class OwnClass(Subpopulations):
    """Groups, with a family of its own."""

    def bind(self, X: Any, sample_weight: Any) -> Any:
        learner = Groups(min_mass=1).bind(X, sample_weight)
        (family,) = learner.families
        learner.families[:] = [OwnFamily(family.names, family.columns, family.decode)]
        return learner


class OwnNotion(lowcal.LowDegree):
    pass


def save_error(model: object, tmp_path: Path, **options: Any) -> str:
    """Return what an attempt to save says; nothing is written."""
    with pytest.raises(InvalidInput) as caught:
        persistence.save(model, tmp_path / "m.json", **options)
    assert list(tmp_path.iterdir()) == []
    return str(caught.value)


def test_what_can_not_be_saved(tmp_path: Path) -> None:
    y, p, X = saved.people()
    numeric = {name: X[name] for name in ("kids",)}
    options = {"alpha": 0.01, "geometry": "euclidean"}
    fit = multicalibrate(y, p, numeric, subpopulations=Regressor(Ridge()), max_updates=2, **options)
    assert "Use Trees or Linear" in save_error(fit, tmp_path)
    fit = multicalibrate(y, p, numeric, subpopulations=OwnClass(), max_updates=2, **options)
    assert "OwnFamily, which is not lowcal's" in save_error(fit, tmp_path)
    fit = multicalibrate(y, p, numeric, subpopulations=Groups(min_mass=1), notion=OwnNotion(2), **options)
    assert "The notion of the fit is OwnNotion(degree=2)" in save_error(fit, tmp_path)
    persistence.to_bytes(fit.predictor)
    term = fit.predictor.updates[0].terms[0]
    own = lowcal.rows.updates.Term(term.family, tuple(OwnWeight(u.factors) for u in term.weights), term.theta)
    predictor = lowcal.Predictor(fit.predictor.encoder, (lowcal.Update((own,)),), fit.predictor.layout)
    assert "no plain form" in save_error(predictor, tmp_path)
    predictor = lowcal.Predictor(lambda table: (), (), fit.predictor.layout)
    assert "encoder of the type builtins.function" in save_error(predictor, tmp_path)
    assert "of the type dict can't be saved. Give the Fit" in save_error({}, tmp_path)
    assert "not fitted yet" in save_error(MulticalibratedClassifier(), tmp_path)
    assert "can't be saved. Give the Fit" in save_error(Ridge(), tmp_path)


def test_labels_that_can_not_be_saved(tmp_path: Path) -> None:
    _, p, X = saved.people()
    for labels in ([(1,), (2,)], [b"a", b"b"], [1 + 0j, 2 + 0j]):
        y = np.empty(len(p), dtype=object)
        y[:] = [labels[k % 2] for k in range(len(p))]
        fit = multicalibrate(y, p, X, alpha=0.1)
        assert "saved as text, numbers or booleans" in save_error(fit, tmp_path)
    y = np.arange(len(p)) % 2
    fit = multicalibrate(y, p, {"\ud800": X["kids"]}, alpha=0.1)
    assert "not valid Unicode" in save_error(fit, tmp_path)
    fit = multicalibrate(y, p, {"a": ["\ud800"] * 45 + ["b"] * (len(p) - 45)}, alpha=0.1)
    assert "not valid Unicode" in save_error(fit, tmp_path)
    X, y = np.zeros((90, 1)), (np.arange(90) % 2).astype(np.longdouble)
    if y.dtype != np.float64:
        model = MulticalibratedClassifier(max_updates=1).fit(X, y)
        assert "Convert y to text or numbers" in save_error(model, tmp_path)


def test_metadata_that_can_not_be_saved(tmp_path: Path) -> None:
    predictor = model_of("linear")
    loop: list[Any] = []
    loop.append(loop)
    for given, message in (
        ([1], "metadata must be a dict"),
        ({1: 2}, "metadata is {1: 2}, which can't be written as JSON"),
        ({"a": {"b": [0, float("nan")]}}, r"metadata['a']['b'][1] is nan"),
        ({"a": object}, "metadata['a'] is <class 'object'>"),
        ({"a": np.zeros(2)}, "metadata['a'] is array"),
        ({"a": 10**400}, "metadata['a'] is 1000"),
        ({"a": "\ud800"}, "not valid Unicode"),
        ({"\ud800": 1}, "not valid Unicode"),
        ({"a": loop}, "nested too deeply"),
    ):
        assert message in save_error(predictor, tmp_path, metadata=given)


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    predictor = model_of("linear")
    term = predictor.updates[0].terms[0]
    huge = lowcal.rows.updates.Term(term.family, term.weights, np.full(term.theta.shape, np.inf))
    broken = lowcal.Predictor(predictor.encoder, (lowcal.Update((huge,)),), predictor.layout)
    assert "could not be loaded again: model.updates[0].terms[0].theta" in save_error(broken, tmp_path)


def test_errors_are_of_one_family() -> None:
    assert issubclass(DamagedFile, InvalidInput)
    assert issubclass(InvalidInput, LowcalError)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_refused(b"{}")
