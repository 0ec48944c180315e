"""Survey weights: a statement about the population, not about the respondents.

A survey reaches some people more easily than others. With its weights, an audit is about everyone the survey stands
for.

Each row of the census survey carries a weight: the number of US residents it represents. Black people are 9.6% of
the respondents and 11.7% of the population. Without the weights, a verdict is about the respondents.

Data: UCI Adult (1994 US census, CC BY 4.0), which comes with lowcal; the weight is its column `fnlwgt`.
"""

# %%
# ## A model that ignores the weights
#
# Most models do. Its probabilities can still be audited and recalibrated for the population.
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lowcal

people = lowcal.datasets.load_adult()
weight = people.X["fnlwgt"].astype(float)
known = np.column_stack([people.X[k] for k in ("age", "education_num", "hours_per_week", "capital_gain")])
train, calibrate, test = np.split(np.random.default_rng(0).permutation(len(people.y)), [10_000, 29_000])
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(known[train], people.y[train])
p = model.predict_proba(known)[:, 1]

is_black = people.X["race"] == "Black"
print(f"Black: {is_black.mean():.1%} of the rows, {weight[is_black].sum() / weight.sum():.1%} of the people")
print(f"{len(test):,} rows are worth {weight[test].sum() ** 2 / np.sum(weight[test] ** 2):,.0f} of equal weight")

# %%
# ## Audit with and without weights
#
# Uneven weights cost precision, and the report says how much: its intervals are those of the effective number of
# rows.
who = lowcal.Groups(["sex", "race", "marital_status"], min_mass=200)


def part(rows):
    return people.y[rows], p[rows], {name: people.X[name][rows] for name in ("sex", "race", "marital_status")}


y, p_test, X = part(test)
rows = lowcal.audit(y, p_test, X, subpopulations=who, alpha=0.02, random_state=0)
population = lowcal.audit(y, p_test, X, subpopulations=who, alpha=0.02, sample_weight=weight[test], random_state=0)
for name, report in (("rows", rows), ("population", population)):
    found = report.finding("race=Black")
    print(f"{name:10} {report.verdict.value}; Black: share {found.mass:.1%}, error per person {found.conditional:+.4f}")

# %%
# Both audits find the model violated. The figures differ a little here; with a sample that was drawn more unevenly
# they could differ in the verdict.
#
# ## Recalibrate for the population
#
# The same weights go into the fit, so that the steps are right for the people and not for the rows.
fit = lowcal.multicalibrate(*part(calibrate), subpopulations=who, sample_weight=weight[calibrate])
calibrated = fit.predictor(p_test, X)
after = lowcal.audit(y, calibrated, X, subpopulations=who, alpha=0.02, sample_weight=weight[test], random_state=0)
print(str(after).splitlines()[0])

# %%
# ## Decide
from matplotlib import pyplot as plt

# Figure: violations of eight groups, weighted to the population. Before, married people and men get too little,
# women and the never married too much; after, all intervals are within the tolerated band.
after.plot(before=population, n=8)
plt.show()

choice = "publish the recalibrated estimates" if after.verdict == "satisfied" else "collect more rows first"
print(f"Decision: {choice}; for the US population of the survey the violation is at most {after.certified_alpha:.4f}.")
