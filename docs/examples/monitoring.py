"""A model monitored month by month.

A bank's model ranks whom to call. It was trained in the summer of 2008. When did it stop being right, and for whom?

The audit of a release says nothing about next year. With `by="month"` every month is audited, and a group whose
error changes raises an alarm. Intervals hold for all months and groups at once, and without drift the chance of any
alarm is at most 5%, so an alarm is worth getting up for.

Data: UCI Bank Marketing (45,211 calls of a Portuguese bank, May 2008 to November 2010, CC BY 4.0). The rows are in
the order of time.
"""

# %%
# ## The model of 2008
#
# The year is not in the file, but the order of the rows gives it. October and December 2008 have hardly any calls
# and join the month after.
import os
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

import lowcal

DATA = Path(os.environ.get("LOWCAL_DATA", "../shared/data"))
calls = pd.read_parquet(DATA / "bank_marketing.parquet")
number = pd.to_datetime(calls["month"], format="%b").dt.month
month = (2008 + (number.diff() < 0).cumsum()).astype(str) + "-" + number.map("{:02d}".format)
month = month.replace({"2008-10": "2008-11", "2008-12": "2009-01"})
y = (calls["y"] == "yes").to_numpy(dtype=int)

kinds = ["job", "marital", "education", "housing", "loan", "poutcome", "contact"]
codes = [calls[name].astype("category").cat.codes for name in kinds]
features = np.column_stack([calls[["age", "balance", "campaign", "pdays", "previous"]], *codes])
past = (month <= "2008-07").to_numpy()
model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(features[past], y[past])
p = model.predict_proba(features)[:, 1]

# %%
# ## Watch it
watched = (month >= "2008-08").to_numpy() & (month <= "2009-08").to_numpy()
table = pd.DataFrame(
    {
        "month": month,
        "age": np.where(calls["age"] < 60, "under 60", "60 and over"),
        "marital": calls["marital"],
        "customer": np.where(calls["pdays"] < 0, "new", "called before"),
    }
)
report = lowcal.audit(y[watched], p[watched], table[watched], by="month", per_person=0.1, random_state=0)
print(report)

# %%
# ## Decide
#
# For the rest of 2008 the model is right on average. In January 2009 it promises too much, and from February on far
# too little: people of 60 and over take the deposit six times as often as predicted. From March on the other groups
# follow, while the bank makes a few hundred calls a month instead of thousands. The market may have changed, or the
# choice of whom to call; the model is wrong either way. May 2009 shows why one good month is no all-clear.
from matplotlib import pyplot as plt

# Figure: error of the model by month, for everyone and for people of 60 and over, with intervals. It is near zero
# in 2008; from February 2009 on outcomes exceed predictions by up to 40 points, with a break in May.
plt.axhline(0, color="0.5", linewidth=1)
for k, (name, colour) in enumerate({"everyone": "#0072b2", "age=60 and over": "#d55e00"}.items()):
    gaps = report.gaps(name)
    at = np.arange(len(gaps)) + 0.12 * k
    plt.vlines(at, [gap.lower for gap in gaps], [gap.upper for gap in gaps], color=colour, alpha=0.5)
    plt.plot(at, [gap.gap for gap in gaps], "os"[k] + "-", color=colour, label=name, linewidth=1)
plt.axvline(list(report.windows).index(report.alarms[0].window), color="0.5", linestyle=":", label="first alarm")
plt.xticks(range(len(report.windows)), report.windows, rotation=45)
plt.ylabel("actual less predicted")
plt.legend()
plt.show()

if report.alarms:
    print(f"Decision: retrain; alarms in {len(report.alarms)} groups since {report.alarms[0].window}.")
else:
    print("Decision: keep the model.")
