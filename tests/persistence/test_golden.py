"""Files that version 1 wrote stay readable: tests/golden holds some, with rows and the predictions that belong to them.

Never write these files anew: a later lowcal must read what an earlier one wrote. Predictions agree to 1e-12, not to the
last bit, because the exponential and logarithm of the mirror geometry and matrix products round differently on other
processors; on one machine a loaded model is exact (test_round_trip.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowcal
from lowcal import persistence

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS: dict[str, Any] = json.loads((GOLDEN / "rows-v1.json").read_text(encoding="utf-8"))
KINDS = {
    "groups": lowcal.Predictor,
    "trees": lowcal.Fit,
    "three": lowcal.Predictor,
    "memberships": lowcal.Predictor,
    "classifier": lowcal.MulticalibratedClassifier,
    "log_odds": lowcal.Predictor,
}


def test_every_golden_file_has_its_rows() -> None:
    names = {path.stem.removeprefix("model-v1-") for path in GOLDEN.glob("model-v1-*.json")}
    assert names == set(ROWS) == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_what_version_1_wrote(name: str) -> None:
    model, rows = persistence.load(GOLDEN / f"model-v1-{name}.json"), ROWS[name]
    assert type(model) is KINDS[name]
    if name == "classifier":
        assert model.classes_.tolist() == ["high", "low", "mid"]
        found = model.predict_proba(np.column_stack(list(rows["X"].values())))
    else:
        predictor = getattr(model, "predictor", model)
        assert len(predictor) > 0
        found = predictor(np.array(rows["p"]), rows["X"])
    np.testing.assert_allclose(found, np.array(rows["expected"]), rtol=0.0, atol=1e-12)


def test_every_kind_of_value_is_in_a_golden_file() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in GOLDEN.glob("model-v1-*.json"))
    kinds = "monomial log_odds cell knots points groups thresholds bins features memberships union scale indicators"
    for (
        kind
    ) in f"{kinds} codes table cumulative everyone members sigmoids tree forest part predictor fit classifier".split():
        assert f'"kind":"{kind}"' in text.replace('": "', '":"'), kind


def test_what_was_saved_beside_it() -> None:
    saved = persistence.read(GOLDEN / "model-v1-groups.json")
    assert saved.metadata == {"label": "y", "probability": ["p"], "classes": ["no", "yes"]}
    assert saved.lowcal_version == "0.1.0"
