"""A user's own class is saved, exported and served like lowcal's own: by methods, and once it is registered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import lowcal
from lowcal import Groups, InvalidInput, MulticalibratedClassifier, Predictor, Update, persistence
from lowcal.data.checked_json import Kinds, Plain, PlainFields
from lowcal.data.errors import DamagedFile
from lowcal.data.onnx_graph import GraphColumns, GraphMatrix
from lowcal.kernels.reference import Matrix
from lowcal.notions.weights import WEIGHTS
from lowcal.rows.updates import Term
from lowcal.subpopulations import CLASSES, ENCODERS, FAMILIES, Everyone, Subpopulations, WeakLearner
from lowcal.subpopulations.single_row import number
from worlds import multicalibrate


@dataclass(frozen=True)
class Numbers(PlainFields):
    """Numeric columns as they are."""

    names: tuple[str, ...]
    kind: ClassVar[str] = "test numbers"

    def __call__(self, X: Any) -> np.ndarray:
        return X.numeric(self.names)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names

    def row_reader(self) -> Any:
        return lambda row: [number(row(name), name) for name in self.names]

    @classmethod
    def from_dict(cls, at: Plain) -> Numbers:
        _, names = at.fields("kind", "names")
        return cls(names.texts())


@dataclass(frozen=True, eq=False)
class Above(PlainFields):
    """1 / (1 + exp(-(x - t))) for each column x and its t."""

    names: tuple[str, ...]
    starts: np.ndarray
    kind: ClassVar[str] = "test above"

    def design(self, rows: np.ndarray) -> Matrix:
        return Matrix(1.0 / (1.0 + np.exp(self.starts - rows)))

    def take(self, members: np.ndarray) -> Above:
        raise NotImplementedError

    def reads(self, facts: Any) -> Any:
        return facts.members(self, len(self.names), lambda row: 1.0 / (1.0 + np.exp(self.starts - np.array(row))))

    def onnx(self, columns: GraphColumns, encoder: Numbers, numbers: int) -> list[GraphMatrix]:
        g = columns.graph
        x = g.side_by_side([g.column(columns.number(name)) for name in encoder.names])
        return [GraphMatrix(np.arange(len(self.names)), g.sigmoid(g.add("Sub", x, self.starts[None])))]

    @classmethod
    def from_dict(cls, at: Plain, context: Any) -> Above:
        _, names, starts = at.fields("kind", "names", "starts")
        count = len(context.rows_of(at, Numbers).names)
        return cls(names.names(count), starts.floats((count,)))


@dataclass(frozen=True)
class Halves(Subpopulations):
    """People above the mean of each column, softly."""

    columns: list[str]

    def bind(self, X: Any, sample_weight: np.ndarray) -> WeakLearner:
        encoder = Numbers(tuple(self.columns))
        rows = encoder(X)
        family = Above(tuple(f"high {name}" for name in self.columns), rows.mean(axis=0))
        return WeakLearner(encoder, rows, sample_weight, [Everyone(), family])


@dataclass(frozen=True)
class Square(PlainFields):
    """u(z) = z_0^2."""

    kind: ClassVar[str] = "test square"

    def __call__(self, p: np.ndarray) -> np.ndarray:
        return np.square(p[:, 0])

    def onnx(self, graph: Any, p: str, d: int) -> str:
        first = graph.add("Gather", p, [0], axis=1)
        return graph.add("Mul", first, first)

    @classmethod
    def from_dict(cls, at: Plain, d: int) -> Square:
        at.fields("kind")
        return cls()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kinds, cls in ((ENCODERS, Numbers), (FAMILIES, Above), (CLASSES, Halves), (WEIGHTS, Square)):
        monkeypatch.setattr(kinds, "known", dict(kinds.known))
        kinds.register(cls)


@pytest.fixture(scope="module")
def data() -> Any:
    rng = np.random.default_rng(0)
    X = {"a": rng.normal(size=500), "b": rng.normal(size=500), "g": rng.choice(["x", "y"], 500)}
    p = rng.random(500)
    y = (rng.random(500) < np.clip(p + 0.2 * (X["a"] > 0) - 0.2 * (X["g"] == "x"), 0, 1)).astype(int)
    return y, p, X


def predictor_of(data: Any, subpopulations: Subpopulations) -> Predictor:
    y, p, X = data
    found = multicalibrate(y, p, X, subpopulations=subpopulations, alpha=0.001, guard=False, max_updates=4).predictor
    assert any("high" in name for update in found.updates for term in update.terms for name in term.family.names)
    return found


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("union", [False, True])
def test_it_is_saved_served_and_exported(data: Any, union: bool) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    _, p, X = data
    predictor = predictor_of(data, Groups(["g"]) + Halves(["a", "b"]) if union else Halves(["a", "b"]))
    expected = predictor(p, X)
    loaded = persistence.from_bytes(persistence.to_bytes(predictor)).model
    assert loaded(p, X).tobytes() == expected.tobytes()
    assert loaded.to_dict() == predictor.to_dict()
    assert predictor.columns == (("g", "a", "b") if union else ("a", "b"))
    assert predictor._by_row is not None, "no table is made for a row"
    rows = [{name: values[i] for name, values in X.items()} for i in range(20)]
    np.testing.assert_allclose([predictor.one(p[i], rows[i]) for i in range(20)], expected[:20], rtol=0, atol=1e-14)
    session = onnxruntime.InferenceSession(lowcal.to_onnx(predictor).SerializeToString())
    given = {port.name: p if port.name == "p" else X[port.name] for port in session.get_inputs()}
    given = {name: values.astype(object) if values.dtype.kind == "U" else values for name, values in given.items()}
    np.testing.assert_allclose(session.run(None, given)[0], expected, rtol=0, atol=1e-12)


class FarHalves(Halves):
    """The same, whose members do not depend on outcomes: their rows may be anywhere."""

    is_listed = needs_no_matrix = True


def test_its_rows_may_be_on_disk(data: Any) -> None:
    y, p, X = data
    rows = {"y": y, "p": p, "a": X["a"], "b": X["b"]}
    options = {"subpopulations": FarHalves(["a", "b"]), "alpha": 0.001, "guard": False, "max_updates": 4}
    near = multicalibrate("y", "p", rows, **options)
    parts = [{name: column[half] for name, column in rows.items()} for half in (slice(200), slice(200, None))]
    far = multicalibrate("y", "p", lambda: iter(parts), memory=1, **options)
    assert len(far.predictor) > 0
    assert far.predictor.to_dict() == near.predictor.to_dict()
    with pytest.raises(InvalidInput, match="memory"):
        multicalibrate("y", "p", lambda: iter(parts), memory=1, **{**options, "subpopulations": Halves(["a", "b"])})


@pytest.mark.usefixtures("registered")
def test_a_weight_is_saved_and_exported(data: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    _, p, X = data
    start = predictor_of(data, Halves(["a"]))
    family = next(t.family for u in start.updates for t in u.terms if "high a" in t.family.names)
    update = Update((Term(family, (Square(),), np.full((1, 1, 1), 0.1)),))
    predictor = Predictor(start.encoder, (update,), start.layout)
    loaded = persistence.from_bytes(persistence.to_bytes(predictor)).model
    assert loaded(p, X).tobytes() == predictor(p, X).tobytes()
    session = onnxruntime.InferenceSession(lowcal.to_onnx(predictor).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"p": p, "a": X["a"]})[0], predictor(p, X), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("registered")
def test_an_estimator_keeps_it_as_a_setting(data: Any) -> None:
    y, _, X = data
    table = np.column_stack([X["a"], X["b"]])
    halves = Halves(["x0", "x1"])
    model = MulticalibratedClassifier(subpopulations=halves, max_updates=2, random_state=0).fit(table, y)
    loaded = persistence.from_bytes(persistence.to_bytes(model)).model
    assert loaded.subpopulations == halves
    assert loaded.predict_proba(table).tobytes() == model.predict_proba(table).tobytes()


def test_what_is_not_registered_is_neither_saved_nor_loaded(data: Any) -> None:
    predictor = predictor_of(data, Groups(["g"]) + Halves(["a"]))
    with pytest.raises(InvalidInput, match=r"holds an encoder of the type .*Numbers, which is not lowcal's.*register"):
        persistence.to_bytes(predictor)
    with pytest.MonkeyPatch.context() as patch:
        for kinds, cls in ((ENCODERS, Numbers), (FAMILIES, Above)):
            patch.setattr(kinds, "known", {**kinds.known, cls.kind: cls})
        saved = persistence.to_bytes(predictor)
        patch.setattr(FAMILIES, "known", {k: v for k, v in FAMILIES.known.items() if v is not Above})
        with pytest.raises(DamagedFile, match=r"kind is 'test above'.*one of everyone.*registered before loading"):
            persistence.from_bytes(saved)
    with pytest.raises(DamagedFile, match=r"encoder.parts\[1\].kind is 'test numbers'"):
        persistence.from_bytes(saved)


def test_a_kind_stands_for_one_class() -> None:
    kinds = Kinds("a thing", "Use another")
    kinds.register(Square)
    assert kinds.register(Square) is Square, "a notebook's cell may run twice"
    other = type("Other", (Square,), {"kind": "test square"})
    with pytest.raises(InvalidInput, match=r"kind 'test square' is that of .*Square. Give Other another one"):
        kinds.register(other)
    with pytest.raises(InvalidInput, match=r"The model holds a thing of the type .*Other"):
        kinds.require(other())


def test_an_exported_column_must_be_among_those_of_the_encoder(data: Any) -> None:
    class Silent(Numbers):
        columns = ()

    predictor = predictor_of(data, Halves(["a"]))
    silent = Predictor(Silent(("a",)), predictor.updates, predictor.layout)
    pytest.importorskip("onnx")
    with pytest.raises(InvalidInput, match="Column 'a' is exported, but is not among the `columns` of its encoder"):
        lowcal.to_onnx(silent)
