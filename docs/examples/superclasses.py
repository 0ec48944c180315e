"""100 classes of images, grouped by superclass.

A network recognises a hundred kinds of objects and says how sure it is. Is 90% sure right nine times out of ten for
people and reptiles as well as for trucks?

An app shows the network's best guess and skips it below 50% confidence. Confidences are modern networks' known
weakness; one temperature for all classes is the usual cure. Superclasses (people, trees, vehicles) show where it
falls short.

Data: predictions of a DenseNet for the 10,000 test images of CIFAR-100, from the examples of netcal (Apache-2.0).
"""

# %%
# ## Confidences by superclass
#
# Groups must be known when a prediction is served, so we group by the superclass of the *predicted* class. The
# outcome is whether the best guess is right.
import os
from pathlib import Path

import numpy as np

import lowcal

DATA = Path(os.environ.get("LOWCAL_DATA", "../shared/data"))
NAMES = (
    "aquatic mammals, fish, flowers, food containers, fruit and vegetables, household devices, furniture, insects, "
    "large carnivores, large man-made things, outdoor scenes, large herbivores, medium-sized mammals, invertebrates, "
    "people, reptiles, small mammals, trees, vehicles 1, vehicles 2"
).split(", ")

images = np.load(DATA / "cifar100_probs.npz")
y, superclass = images["label"].astype(int), images["fine_to_coarse"]
p = images["probs_densenet"].astype(float)
p /= p.sum(axis=1, keepdims=True)
calibrate, test = np.split(np.random.default_rng(0).permutation(len(y)), [5_000])


def groups(rows):
    return {"superclass": np.array(NAMES)[superclass[p[rows].argmax(axis=1)]]}


def audit_confidence(q):
    right = (q.argmax(axis=1) == y[test]).astype(int)
    return lowcal.audit(right, q.max(axis=1), groups(test), per_person=0.1, random_state=0)


before = audit_confidence(p[test])
print(f"{before.verdict.value}; mean confidence {p[test].max(axis=1).mean():.1%}")
for finding in before.worst(4):
    gap = finding.largest_gap
    print(f"  {finding.subpopulation:28} confident {gap.predicted:.1%}, right {gap.actual:.1%}")

# %%
# ## Recalibrate all hundred probabilities
#
# Not the confidence alone: all probabilities of a row, which still sum to one. Degree 2 is what a hundred classes
# can afford ([many classes](../how-to/many-classes.md)).
fit = lowcal.multicalibrate(y[calibrate], p[calibrate], groups(calibrate), classes=range(100))
calibrated = fit.predictor(p[test], groups(test))
print(fit.status.value, fit.cross_fitted.strip())
for name, q in (("before", p[test]), ("after", calibrated)):
    print(f"{name:6}: {np.mean(q.argmax(axis=1) == y[test]):.1%} right, mean confidence {q.max(axis=1).mean():.1%}")
after = audit_confidence(calibrated)
print("\n".join(str(after).splitlines()[:2]))

# %%
# ## Decide
#
# Accuracy did not change, and the log loss fell by more than a quarter. One superclass is left whose interval
# excludes zero. The verdict is undecided, because 250 test images of a superclass are too few to certify 0.1.
from matplotlib import pyplot as plt

# Figure: confidence minus accuracy by superclass, before and after. Before, the network is overconfident in every
# superclass, most of all for people and reptiles; after, the intervals contain zero, except for people.
found = sorted((f for f in before.findings if f.mass < 0.5), key=lambda f: f.largest_gap.gap)
names = [f.subpopulation.removeprefix("superclass=") for f in found]
plt.figure(figsize=(7.2, 5.6))
plt.axvline(0, color="0.5", linewidth=1)
for report, mark, colour, label in ((before, "s", "#d55e00", "before"), (after, "o", "#0072b2", "after")):
    gaps = [report.finding(f.subpopulation).largest_gap for f in found]
    plt.hlines(names, [-g.upper for g in gaps], [-g.lower for g in gaps], color=colour)
    plt.plot([-g.gap for g in gaps], names, mark, color=colour, label=label)
plt.gca().invert_yaxis()
plt.xlabel("mean confidence less share right, 95% interval")
plt.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
plt.show()

if before.verdict == "violated" and after.verdict != "violated":
    off = [f.subpopulation.removeprefix("superclass=") for f in after.findings if f.is_significant and f.mass < 0.5]
    kept = f", but none for {', '.join(off)}, where they are still off" if off else ""
    print(f"Decision: show the recalibrated confidences{kept}.")
else:
    print("Decision: show no confidences.")
