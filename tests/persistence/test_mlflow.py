"""Logging to MLflow: what is refused, and several classes."""

from __future__ import annotations

import numpy as np
import pytest

import lowcal
from lowcal.data.errors import InvalidInput
from lowcal.datasets import make_miscalibrated

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")


@pytest.mark.filterwarnings("ignore")
def test_several_classes_are_named_by_their_columns(tmp_path, monkeypatch):
    pd = pytest.importorskip("pandas")
    from lowcal.persistence.mlflow import log_model

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    data = make_miscalibrated(2000, n_classes=3, random_state=0)
    fit = lowcal.multicalibrate(data.y, data.p, data.X, subpopulations=lowcal.Groups(["g0"]), alpha=0.02)
    names = ["a", "b", "c"]
    with mlflow.start_run():
        logged = log_model(fit.predictor, "calibrator", probability=names)
    table = pd.DataFrame({**data.X, **dict(zip(names, data.p.T, strict=True))})
    served = np.asarray(mlflow.pyfunc.load_model(logged.model_uri).predict(table))
    np.testing.assert_allclose(served, fit.predictor(data.p, data.X), atol=1e-15)


def test_what_is_no_predictor_is_refused():
    from lowcal.persistence.mlflow import log_model

    with pytest.raises(InvalidInput, match=r"takes a Predictor or a Fit, such as model.predictor_"):
        log_model(lowcal.MulticalibratedClassifier(), "calibrator")
