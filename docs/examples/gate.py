"""A gate in CI: no release without an audit.

A pipeline needs a yes or a no. `lowcal audit` gives it by its exit code: 0 satisfied, 1 violated, 2 undecided.

A team releases a model every week. The rule: on held-out rows no group of sex, race or marital status may have a
violation above 0.02. The rule is one command, which any CI system can run.

Data: UCI Adult (1994 US census, CC BY 4.0), which comes with lowcal.
"""

# %%
# ## Two candidates, and one that nobody has tested enough
#
# The candidates are last week's model and the same model recalibrated. Each is a file of held-out rows with the
# outcome, the probability and the groups. The third file has only 400 rows of the recalibrated one.
import csv
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lowcal

people = lowcal.datasets.load_adult()
known = np.column_stack([people.X[k] for k in ("age", "education_num", "hours_per_week", "capital_gain")])
train, calibrate, test = np.split(np.random.default_rng(0).permutation(len(people.y)), [10_000, 30_000])
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(known[train], people.y[train])
p = model.predict_proba(known)[:, 1]
groups = {name: people.X[name] for name in ("sex", "race", "marital_status")}


def some(rows):
    return {name: column[rows] for name, column in groups.items()}


fit = lowcal.multicalibrate(people.y[calibrate], p[calibrate], some(calibrate))
calibrated = fit.predictor(p[test], some(test))

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
candidates = {"original": p[test], "recalibrated": calibrated, "hurried": calibrated[:400]}
for name, q in candidates.items():
    with open(folder / f"{name}.csv", "w", newline="") as file:
        rows = zip(people.y[test], q, *some(test).values(), strict=False)  # as many rows as there are probabilities
        csv.writer(file).writerows([["outcome", "score", *groups], *rows])

# %%
# ## The gate
#
# This is the command of the pipeline. `--json` keeps the figures as an artefact of the build.
COMMAND = (
    "lowcal audit {0}.csv --label outcome --probability score --groups sex,race,marital_status --alpha 0.02 --seed 0"
)
codes = {}
for name in candidates:
    command = f"{COMMAND.format(name)} --json {name}.json".split()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    codes[name] = done.returncode
    print(f"{name}: exit code {done.returncode}")
    print("  " + " ".join(done.stdout.splitlines()[:2]))

# %%
# In a workflow file it is one step, and any code but 0 stops the build:
#
# ```yaml
# - run: >
#     lowcal audit holdout.csv --label outcome --probability score
#     --groups sex,race,marital_status --alpha 0.02 --seed 0
# ```
#
# ## Decide
import json

from matplotlib import pyplot as plt

# Figure: the interval of the largest violation of each candidate against the limit of 0.02. The original's lies
# above, the recalibrated one's below, and that of 400 rows on both sides of it.
plt.figure(figsize=(7.2, 2.6))
plt.axvspan(0, 0.02, color="#e9eef1", label="tolerated")
for name, colour in zip(candidates, ("#d55e00", "#0072b2", "#66747c"), strict=True):
    found = json.loads((folder / f"{name}.json").read_text())
    plt.hlines(name, found["certified_lower"], found["certified_alpha"], color=colour, linewidth=5)
    plt.text(found["certified_alpha"], name, f"  {found['verdict']}, exit code {codes[name]}", va="center")
plt.ylim(2.6, -0.6)
plt.xlim(0, 0.16)
plt.xlabel("largest violation in the population, 95% confidence")
plt.show()

temporary.cleanup()
released = [name for name, code in codes.items() if code == 0]
blocked = [name for name, code in codes.items() if code != 0]
print(f"Decision: release {', '.join(released) or 'nothing'}; block {', '.join(blocked) or 'nothing'}.")
