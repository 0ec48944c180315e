"""The parts of docs/how-to/deploy.md that need libraries which lowcal does not: MLflow and skl2onnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pages

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"

pytest.importorskip("onnx", reason="the page exports to ONNX")
pytest.importorskip("onnxruntime", reason="the page runs an ONNX graph")


def block(library: str) -> str:
    """Return the one block of the page that is not run with the others and imports a library."""
    (found,) = [
        body for kind, body in pages.FENCE.findall(PAGE.read_text(encoding="utf-8")) if kind == "py" and library in body
    ]
    return found


@pytest.fixture(scope="module")
def names():
    """What a reader of the page has by then."""
    found, _ = pages.run(PAGE)
    return found


@pytest.mark.filterwarnings("ignore")
def test_mlflow_serves_the_predictor(request):
    pytest.importorskip("mlflow", reason="the example of the page is about MLflow, which lowcal does not need")
    names = request.getfixturevalue("names")  # only where the library is there
    after = dict(names)
    pages.execute(block("mlflow"), PAGE.name, after)
    expected = names["fit"].predictor(names["data"].p, names["X"])
    np.testing.assert_array_equal(after["served"], expected)


@pytest.mark.filterwarnings("ignore")
def test_two_graphs_are_joined(request):
    pytest.importorskip("skl2onnx", reason="the example of the page joins a graph of skl2onnx")
    names = request.getfixturevalue("names")  # only where the library is there
    after = dict(names)
    pages.execute(block("skl2onnx"), PAGE.name, after)
    expected = after["calibrated"].predict_proba(after["numbers"])
    np.testing.assert_allclose(
        after["out"], expected, rtol=0, atol=1e-5
    )  # the base model's graph is in single precision
