"""A predictor as an MLflow model: `log_model` writes it, `mlflow.pyfunc.load_model` reads and serves it (extra mlflow).

MLflow runs SERVED where the model is loaded ("models from code"), and that reads the saved JSON: nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lowcal.data import __version__
from lowcal.data.errors import InvalidInput
from lowcal.persistence import save
from lowcal.rows.updates import Predictor
from lowcal.solve.fitting import Fit

#: The code of the logged model.
SERVED = '''
import lowcal
import mlflow


class Calibrator(mlflow.pyfunc.PythonModel):
    """Calibrated probabilities of a table that holds the model's own and the columns of the groups."""

    def load_context(self, context):
        self.predictor = lowcal.load(context.artifacts["model"])

    def predict(self, context, model_input, params=None):
        return self.predictor(context.model_config["probability"], model_input)


mlflow.models.set_model(Calibrator())
'''


def log_model(model: Predictor | Fit, name: str, *, probability: str | Sequence[str] = "p", **options: Any) -> Any:
    """Log a predictor, or that of a fit, to the active MLflow run; return its `ModelInfo`.

    Parameters
    ----------
    model : a `Predictor` or a `Fit`.
    name : what MLflow calls the model.
    probability : the column that holds the probability to calibrate; a list of columns for several classes.
    options : passed on to `mlflow.pyfunc.log_model`, such as `input_example` and `registered_model_name`.
    """
    import mlflow

    predictor = model.predictor if isinstance(model, Fit) else model
    if not isinstance(predictor, Predictor):
        raise InvalidInput(f"log_model takes a Predictor or a Fit, such as model.predictor_, but {model!r} was given.")
    with TemporaryDirectory() as folder:
        code, saved = Path(folder, "calibrator.py"), Path(folder, "lowcal.json")
        code.write_text(SERVED)
        save(predictor, saved)
        given = probability if isinstance(probability, str) else list(probability)
        own = {"artifacts": {"model": str(saved)}, "model_config": {"probability": given}}
        needed = {"pip_requirements": [f"lowcal=={__version__}", "pandas"]}
        return mlflow.pyfunc.log_model(name, python_model=str(code), **own, **{**needed, **options})
