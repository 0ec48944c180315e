"""Three classes: hospital readmission.

Will a patient be back within 30 days, later, or not at all? A model of the emergency department is about to be used
for every admission.

The model was trained on emergency admissions only. Before other wards use its three probabilities, the hospital
wants to know for whom they are wrong, by admission type, age, race, sex and medication.

Data: UCI Diabetes 130-US Hospitals (1999 to 2008, CC BY 4.0), the first stay of each of 71,518 patients.
"""

# %%
# ## The model
import os
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

import lowcal

DATA = Path(os.environ.get("LOWCAL_DATA", "../shared/data"))
stays = pd.read_parquet(DATA / "diabetes130.parquet").drop_duplicates("patient_nbr")
names = {"<30": "within 30 days", ">30": "later", "NO": "not readmitted"}
y = stays["readmitted"].map(names).to_numpy(dtype=object)
ages = stays["age"].str.extract(r"(\d+)")[0].astype(int)
groups = pd.DataFrame(
    {
        "admission": stays["admission_type_id"].map({1: "emergency", 2: "urgent", 3: "elective"}).fillna("unknown"),
        "age": np.array(["under 40", "40 to 59", "60 to 79", "80 and over"])[np.digitize(ages, [40, 60, 80])],
        "race": stays["race"].fillna("unknown"),
        "sex": stays["gender"],
        "insulin": stays["insulin"],
    }
)
counts = ["time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications", "number_outpatient"]
features = stays[[*counts, "number_emergency", "number_inpatient", "number_diagnoses"]].to_numpy()

order = np.random.default_rng(0).permutation(len(stays))
emergency = (groups["admission"] == "emergency").to_numpy()[order]
train, others = order[emergency][:12_000], np.r_[order[emergency][12_000:], order[~emergency]]
calibrate, test = np.split(np.random.default_rng(1).permutation(others), [27_000])
model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(features[train], y[train])
p = model.predict_proba(features)
print({str(name): f"{share:.1%}" for name, share in zip(model.classes_, p[test].mean(axis=0), strict=True)})

# %%
# ## The audit
#
# `p` has a column for each class. A finding names the class whose mean is farthest off.
options = {"alpha": 0.005, "random_state": 0, "classes": model.classes_}
before = lowcal.audit(y[test], p[test], groups.iloc[test], **options)
print(f"{before.verdict.value}, between {before.certified_lower:.4f} and {before.certified_alpha:.4f}")
for finding in before.worst(3):
    gap = finding.largest_gap
    print(f"  {finding.subpopulation:24} {gap.label}: predicted {gap.predicted:.1%}, actual {gap.actual:.1%}")

# %%
# Elective patients come back less often than the model says, and so do those between 40 and 59. The readmission
# desk would call too many of them.
#
# ## Recalibrate
#
# All three probabilities of a patient move together, and still sum to one.
fit = lowcal.multicalibrate(y[calibrate], p[calibrate], groups.iloc[calibrate], classes=model.classes_)
calibrated = fit.predictor(p[test], groups.iloc[test])
after = lowcal.audit(y[test], calibrated, groups.iloc[test], **options)
print(fit.status.value, fit.cross_fitted.strip())
print(f"{after.verdict.value}, between {after.certified_lower:.4f} and {after.certified_alpha:.4f}")
print(f"smallest violation detectable with 80% power: {after.detectable:.4f}")

# %%
# ## Decide
#
# Undecided is an answer, too: nothing is proved against the recalibrated probabilities, but the test rows are too
# few to certify an alpha as small as 0.005. Report what they do certify.
from matplotlib import pyplot as plt

# Figure: mean prediction and mean outcome of elective admissions, for each of the three classes. The original model
# predicts too few patients who do not come back; recalibrated predictions match the outcomes.
elective = [report.finding("admission=elective").gaps for report in (before, after)]
labels = [gap.label for gap in elective[0]]
at = np.arange(len(labels))
plt.bar(at - 0.27, [gap.predicted for gap in elective[0]], 0.25, color="#d55e00", label="predicted, before")
plt.bar(at, [gap.predicted for gap in elective[1]], 0.25, color="#0072b2", label="predicted, after")
plt.bar(at + 0.27, [gap.actual for gap in elective[1]], 0.25, color="#66747c", label="actual")
plt.xticks(at, labels)
plt.ylabel("share of elective admissions")
plt.legend()
plt.show()

if before.verdict == "violated" and after.verdict != "violated":
    print(f"Decision: use the recalibrated model on all wards; its certified alpha is {after.certified_alpha:.3f}.")
else:
    print("Decision: keep the model in the emergency department.")
