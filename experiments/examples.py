"""The paper's three worked examples, executed: the counterexample, the 70/30 population, and robustness.

Each is an exact finite world, so that everything measured is a rational number up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from experiments.experiment import Settings
from experiments.parts import Parts
from experiments.results import Claim, Result, markdown_table, verdict_lines
from lowcal import guarantees
from lowcal.auditing.audits import measure
from lowcal.datasets import Dataset, parity_square, two_halves
from lowcal.hierarchy import robustness
from lowcal.kernels.simplex import FloatArray
from lowcal.solve.fitting import multicalibrate
from lowcal.subpopulations import Groups

#: However few the rows are: they are the whole population.
GROUPS = Groups(min_mass=0)
EXACT = 1e-9
NUDGES = (0.0, 0.001, 0.01, 0.05)

Found = dict[str, Any]


def run_counterexample(parts: Parts, _: Settings) -> Result:
    """Appendix B: a multiaccurate predictor that is negatively correlated with the label on a subpopulation."""
    return _run("counterexample", parts, counterexample, judge_counterexample, page_counterexample)


def run_seventy_thirty(parts: Parts, _: Settings) -> Result:
    """Section 4.1: right on average and overconfident, a predictor may have better rates than the truth itself."""
    return _run("seventy-thirty", parts, seventy_thirty, judge_seventy_thirty, page_seventy_thirty)


def run_robustness(parts: Parts, _: Settings) -> Result:
    """Section 3.3: a nudge of the predictions breaks full calibration, and hardly moves the lower notions."""
    return _run("robustness", parts, nudged, judge_robustness, page_robustness)


def _run(
    name: str,
    parts: Parts,
    compute: Callable[[], Found],
    judge: Callable[[Found], tuple[Claim, ...]],
    page: Callable[[Found, Sequence[Claim]], str],
) -> Result:
    found = parts.get(name, {"target": name}, compute)
    claims = judge(found)
    return Result(name, found, claims, page(found, claims))


def _recalibrated(world: Dataset) -> FloatArray:
    """Return the predictions after degree-2 multicalibration on the whole population."""
    assert world.p is not None
    kind: dict[str, Any] = {"subpopulations": GROUPS, "sample_weight": world.sample_weight}
    fit = multicalibrate(world.y, world.p, world.X, notion="degree-2", alpha=1e-9, guard=False, **kind)
    return fit.predictor(world.p, world.X)


def _error(world: Dataset, p: FloatArray, notion: str) -> float:
    """Return the largest violation of a notion on the whole population."""
    kind: dict[str, Any] = {"subpopulations": GROUPS, "sample_weight": world.sample_weight}
    return measure(world.y, p, world.X, notion=notion, **kind).largest


# ------------------------------------------------------------------------------------------------------- counterexample
def counterexample() -> Found:
    """Return the covariance and the violations before and after training for degree 2, under both readings."""
    return {labels: _parity(labels) for labels in ("xnor", "xor")}


def _parity(labels: Any) -> Found:
    world = parity_square(labels)
    assert world.p is not None
    stages = {"multiaccurate": world.p, "degree 2": _recalibrated(world)}
    found: Found = {}
    for name, p in stages.items():
        here = guarantees.covariance(world.y, p, world.X["x1"] == 1, sample_weight=world.sample_weight)
        errors = {f"{notion} error": _error(world, p, notion) for notion in ("multiaccuracy", "degree-2")}
        found[name] = {"covariance on x1 = 1": float(here.estimate), **errors, "predictions": np.asarray(p).tolist()}
    return found


def judge_counterexample(found: Found) -> tuple[Claim, ...]:
    """Return the verdicts: -1/12 under both readings, and degree 2 corrects it."""
    claims = []
    for labels, stages in found.items():
        first, then = stages["multiaccurate"], stages["degree 2"]
        cov, error = first["covariance on x1 = 1"], first["multiaccuracy error"]
        claims.append(
            Claim(
                f"With {labels.upper()} labels, a multiaccurate predictor has covariance -1/12 with them on x1 = 1",
                "Appendix B",
                f"multiaccuracy error {error:.1e}, covariance {_fraction(cov)}",
                abs(cov + 1 / 12) < EXACT and error < EXACT,
            )
        )
        after = then["covariance on x1 = 1"]
        claims.append(
            Claim(
                f"Degree-2 multicalibration makes it positive ({labels.upper()})",
                "Theorem 4.12",
                f"degree-2 error {then['degree-2 error']:.1e}, covariance {after:+.4f}",
                after >= -EXACT and then["degree-2 error"] < 1e-6,
            )
        )
    return tuple(claims)


def _fraction(value: float) -> str:
    """Write a number as the simple fraction it is.

    >>> _fraction(-1 / 12)
    '-1/12'
    """
    near = Fraction(value).limit_denominator(1000)
    return str(near) if abs(float(near) - value) < EXACT else f"{value:.6f}"


def page_counterexample(found: Found, claims: Sequence[Claim]) -> str:
    """Return the page."""
    rows = [
        {
            "labels": labels.upper(),
            "predictor": name,
            "f at (0,0), (0,1), (1,0), (1,1)": ", ".join(f"{v:.4f}" for v in stage["predictions"]),
            "covariance on x1 = 1": _fraction(stage["covariance on x1 = 1"]),
            "multiaccuracy error": f"{stage['multiaccuracy error']:.4f}",
            "degree-2 error": f"{stage['degree-2 error']:.4f}",
        }
        for labels, stages in found.items()
        for name, stage in stages.items()
    ]
    return f"""# Multiaccuracy does not imply positive correlation

`python -m experiments counterexample` wrote this page and [counterexample.json](counterexample.json).

Four points, weights 1/3, 1/3, 1/6, 1/6, and the subpopulations x1 = 0, x1 = 1, x2 = 0, x2 = 1
(`datasets.parity_square`). Least squares on them is multiaccurate and on x1 = 1 wrong in sign. The paper's figure shows
XNOR labels, its text XOR ones ([specification](../specification.md), 9.a); both readings give the same covariance.

{markdown_table(rows)}
{verdict_lines(claims)}"""


# -------------------------------------------------------------------------------------------------------------- 70 / 30
def seventy_thirty() -> Found:
    """Return the generalised rates of the overconfident predictor, of the truth, and of the recalibrated one."""
    world = two_halves()
    assert world.p is not None
    assert world.f_star is not None
    stages = {"g, overconfident": world.p, "f*": world.f_star, "g, recalibrated for degree 2": _recalibrated(world)}
    rates: Found = {}
    for name, p in stages.items():
        weight: dict[str, Any] = {"sample_weight": world.sample_weight}
        rates[name] = {
            "true positive rate": float(guarantees.true_positive_rate(world.y, p, **weight).estimate),
            "false positive rate": float(guarantees.false_positive_rate(world.y, p, **weight).estimate),
            "error on everyone": _everyone(world, p),
            "degree-2 error": _error(world, p, "degree-2"),
        }
    return rates


def _everyone(world: Dataset, p: FloatArray) -> float:
    return abs(float(np.average(world.y - p, weights=world.sample_weight)))


def judge_seventy_thirty(found: Found) -> tuple[Claim, ...]:
    """Return the verdicts, with the paper's slip corrected."""
    g, truth, after = found["g, overconfident"], found["f*"], found["g, recalibrated for degree 2"]
    rates = ("true positive rate", "false positive rate")
    false, best = g["false positive rate"], truth["false positive rate"]
    return (
        Claim(
            "A predictor that is right on average can have a lower false positive rate than f*: 0.30 against 0.42",
            "Section 4.1",
            f"{false:.2f} against {best:.2f}, error on everyone {g['error on everyone']:.1e}",
            abs(false - 0.30) < EXACT and abs(best - 0.42) < EXACT and g["error on everyone"] < EXACT,
        ),
        Claim(
            "The false positive rate of f* is 0.58",
            "Section 4.1, as printed",
            f"{best:.2f}; its true positive rate is {truth['true positive rate']:.2f}",
            abs(best - 0.58) < EXACT,
            "0.58 is the true positive rate of f* (specification, 9.r); the example's conclusion stands.",
        ),
        Claim(
            "Degree-2 multicalibration brings the rates to those of f*",
            "Lemma 4.5",
            ", ".join(f"{k} {after[k]:.4f}" for k in rates),
            max(abs(after[k] - truth[k]) for k in rates) < 1e-6,
        ),
    )


def page_seventy_thirty(found: Found, claims: Sequence[Claim]) -> str:
    """Return the page."""
    rows = [{"predictor": name, **{k: f"{v:.4f}" for k, v in row.items()}} for name, row in found.items()]
    return f"""# The 70/30 example

`python -m experiments seventy-thirty` wrote this page and [seventy-thirty.json](seventy-thirty.json).

Half of the people have the outcome with chance 70%, the other half with 30% (`datasets.two_halves`). The predictor g
says 1 and 0: right on average, overconfident, and with better looking rates than the truth has.

{markdown_table(rows)}
{verdict_lines(claims)}"""


# ----------------------------------------------------------------------------------------------------------- robustness
def nudged() -> Found:
    """Return the violations of f = 1/2, moved by eps towards the labels of two equal halves."""
    y = np.array([0, 1])
    found: Found = {}
    for eps in NUDGES:
        p = np.array([0.5 - eps, 0.5 + eps])
        found[str(eps)] = {
            notion: measure(y, p, notion=notion).largest
            for notion in ("multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.1")
        }
        found[str(eps)] |= {
            f"{notion} may be": robustness(notion, found["0.0"][notion], eps)
            for notion in ("degree-2", "degree-3", "smooth")
        }
    return found


def judge_robustness(found: Found) -> tuple[Claim, ...]:
    """Return the verdicts."""
    least = str(NUDGES[1])
    broken = found[least]["full-0.1"]
    robust = [
        (eps, notion)
        for eps in found
        for notion in ("degree-2", "degree-3", "smooth")
        if found[eps][notion] > found[eps][f"{notion} may be"] + EXACT
    ]
    largest = found[str(NUDGES[-1])]
    return (
        Claim(
            "f = 1/2 is fully calibrated, and moved by next to nothing it is far from it",
            "Section 3.3",
            f"full-0.1 violation {found['0.0']['full-0.1']:.1e} at 1/2, {broken:.4f} after a move of {least}",
            found["0.0"]["full-0.1"] < EXACT and broken > 0.2,
        ),
        Claim(
            "Degree-k and smooth violations grow by at most k and 2 times the move",
            "Theorem 3.15, sharp constants",
            f"{len(robust)} of {3 * len(found)} bounds broken; after a move of {NUDGES[-1]:g}: degree-2 "
            f"{largest['degree-2']:.4f} (may be {largest['degree-2 may be']:.4f}), smooth {largest['smooth']:.4f} "
            f"(may be {largest['smooth may be']:.4f})",
            not robust,
        ),
    )


def page_robustness(found: Found, claims: Sequence[Claim]) -> str:
    """Return the page."""
    rows = [{"moved by": eps, **{k: f"{v:.4f}" for k, v in row.items()}} for eps, row in found.items()]
    return f"""# Robustness to small moves of the predictions

`python -m experiments robustness` wrote this page and [robustness.json](robustness.json).

Two halves, one always with label 0 and one with label 1. The predictor 1/2 is calibrated. Moved by eps towards the
labels it crosses the edge of a cell at 1/2, so that full calibration breaks at once; the lower notions hardly notice.
The example needs 1/2 to be the edge of a cell ([specification](../specification.md), 9.s): width 0.1 does it, width 0.2
would not.

{markdown_table(rows)}
{verdict_lines(claims)}"""
