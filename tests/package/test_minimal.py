"""The minimal install: numpy, scipy, scikit-learn and narwhals are enough for everything but pictures and frames."""

BLOCKED = ("pandas", "polars", "pyarrow", "matplotlib", "tqdm", "numba", "torch", "duckdb", "jinja2", "markupsafe")

SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
import lowcal
from sklearn.linear_model import LogisticRegression

data = lowcal.datasets.make_miscalibrated(1000, random_state=0)
for notion in ("multiaccuracy", "degree-2", "smooth", "full-0.1"):
    fit = lowcal.multicalibrate(data.y, data.p, data.X, notion=notion, alpha=0.02, progress=True, guard=False)
    assert fit.status == "reached", fit
adult = lowcal.datasets.load_adult()
groups = lowcal.Groups(["sex", "age"])
assert lowcal.measure(adult.y, np.full(len(adult.y), 0.24), adult.X, subpopulations=groups).largest > 0.02
X = np.column_stack([data.X["x0"], data.X["x1"]])
lowcal.MulticalibratedClassifier(LogisticRegression(), random_state=0).fit(X, data.y).predict_proba(X)
lowcal.MulticalibratedRegressor(random_state=0).fit(X, data.p).predict(X)
report = lowcal.audit(data.y, data.p, data.X, null_draws=19)
assert "Calibration audit" in report.to_markdown() and report._repr_html_() is None
try:
    report.to_html()
except lowcal.MissingExtra as error:
    print("asked for:", error)
from lowcal.cli.main import main

assert main(["audit", "t.csv", "--label", "y", "--probability", "p", "--groups", "g"]) == 65
"""


def test_works_without_any_extra(run_python):
    done = run_python("-c", SCRIPT.format(blocked=BLOCKED))
    assert "pip install 'lowcal[report]'" in done.stdout
    assert done.stderr.splitlines()[-1] == "lowcal: Reading t.csv needs pyarrow: pip install 'lowcal[cli]'."
