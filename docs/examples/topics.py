"""A scorer's confidences, grouped by topic.

An assistant answers customers' questions, and a scorer says how likely each answer is right. There are no columns
to group by, only text. Clusters of embeddings are groups, too.

Answers above 80% are sent without review. The scorer was trained on last year's questions; since then the product
has changed, and so have the topics. Embeddings find the topics, k-means the clusters, and lowcal the clusters in
which the confidence is wrong.

Data: **synthetic**. The questions are put together from word lists below, and it is drawn at random whether an
answer is right. TF-IDF with a singular value decomposition stands in for the embeddings of your language model.
"""

# %%
# ## Questions, answers and confidences
import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import lowcal

TOPICS = {
    "invoice": "invoice amount vat receipt billing address copy download month charged",
    "delivery": "parcel delivery courier tracking late address arrived missing depot week",
    "password": "password login reset account email locked code sign device phone",
    "returns": "return refund exchange label damaged wrong size money box days",
    "subscription": "subscription cancel renew plan upgrade trial annual price switch family",
    "scooter": "scooter battery helmet charging range firmware brake app unlock speed",
}
OPENERS = "how do i; why is my; can you help with; i need the; what about; urgent please; waiting for".split("; ")
#: The share of right answers, by topic: for the scooter, which is new, the assistant guesses.
RIGHT = {"invoice": 0.93, "delivery": 0.82, "password": 0.96, "returns": 0.76, "subscription": 0.88, "scooter": 0.48}
rng = np.random.default_rng(0)


def questions(n, topics):
    """Return n questions and whether each was answered rightly; a question of more words is harder."""
    topic = rng.choice(topics, n)
    length = rng.integers(3, 9, n)
    words = [rng.choice(TOPICS[name].split(), size) for name, size in zip(topic, length, strict=True)]
    texts = [f"{rng.choice(OPENERS)} {' '.join(some)}" for some in words]
    logit = np.log([RIGHT[name] / (1 - RIGHT[name]) for name in topic]) + 0.25 * (5.5 - length)
    return np.array(texts), (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(int)


old_topics = [name for name in TOPICS if name != "scooter"]
last_year, was_right = questions(6_000, old_topics)
text, right = questions(24_000, list(TOPICS))
scorer = make_pipeline(TfidfVectorizer(), LogisticRegression(C=10)).fit(last_year, was_right)
confidence = scorer.predict_proba(text)[:, 1]
print(f"mean confidence {confidence.mean():.1%}, right {right.mean():.1%}")
print(f"sent without review: {np.mean(confidence > 0.8):.0%}, of these right {right[confidence > 0.8].mean():.1%}")

# %%
# ## Clusters as groups
#
# Fit embedding and clusters on the calibration rows only, and name each cluster by its commonest words. The name is
# a column like any other.
calibrate, test = np.arange(12_000), np.arange(12_000, 24_000)
tfidf = TfidfVectorizer(stop_words=list({word for opener in OPENERS for word in opener.split()}))
embed = make_pipeline(tfidf, TruncatedSVD(20, random_state=0), Normalizer())
clusters = KMeans(8, n_init=4, random_state=0).fit(embed.fit_transform(text[calibrate]))
label = clusters.predict(embed.transform(text))

vocabulary, counts = tfidf.get_feature_names_out(), tfidf.transform(text[calibrate])
means = [np.asarray(counts[label[calibrate] == k].mean(axis=0)).ravel() for k in range(8)]
names = np.array([" ".join(vocabulary[np.argsort(-mean)[:3]]) for mean in means])


def table(rows):
    return {"topic": names[label[rows]]}


before = lowcal.audit(right[test], confidence[test], table(test), per_person=0.1, random_state=0)
print("\n".join(str(before).splitlines()[:2]))

# %%
# The audit finds the new product without knowing that it exists.
#
# ## Recalibrate
fit = lowcal.multicalibrate(right[calibrate], confidence[calibrate], table(calibrate))
calibrated = fit.predictor(confidence[test], table(test))
after = lowcal.audit(right[test], calibrated, table(test), per_person=0.1, random_state=0)
sent = calibrated > 0.8
print(str(after).splitlines()[0])
print(f"sent without review: {sent.mean():.0%}, of these right {right[test][sent].mean():.1%}")

# %%
# ## Decide
#
# Fewer answers go out without review, and nine of ten of them are right. The questions about the new product are
# now sent to people, because the confidence says what it is worth.
from matplotlib import pyplot as plt

# Figure: mean confidence and share of right answers by cluster of questions, before and after. Before, the clusters
# about the scooter lie far below the diagonal; after, all clusters lie on it.
plt.figure(figsize=(5.2, 4.8))
plt.plot([0.4, 1], [0.4, 1], color="0.5", linewidth=1)
for report, mark, colour, name in ((before, "s", "#d55e00", "before"), (after, "o", "#0072b2", "after")):
    gaps = {f.subpopulation: f.largest_gap for f in report.findings if f.mass < 1}
    plt.plot([g.predicted for g in gaps.values()], [g.actual for g in gaps.values()], mark, color=colour, label=name)
for finding in before.worst(1):
    gap = finding.largest_gap
    words = finding.subpopulation.removeprefix("topic=")
    plt.annotate(words, (gap.predicted, gap.actual), xytext=(-8, -4), textcoords="offset points", ha="right")
plt.xlabel("mean confidence of a cluster")
plt.ylabel("share of right answers")
plt.legend(loc="upper left")
plt.show()

worst = before.worst(1)[0].subpopulation.removeprefix("topic=")
choice = "send above 80% by the recalibrated confidence" if after.verdict == "satisfied" else "review every answer"
print(f"Decision: {choice}, and write answers for '{worst}'.")
