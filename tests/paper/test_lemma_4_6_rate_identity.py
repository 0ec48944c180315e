"""Lemma 4.6: E_c[f | y = 1] = E_c[f f*] / E_c[f*], in worlds whose every (x, y) is a row with its exact probability."""

from fractions import Fraction

import numpy as np
import pytest

from lowcal.guarantees import true_positive_rate


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_is_a_ratio_of_moments(seed):
    rng = np.random.default_rng(seed)
    points = 6
    weight, f, star, c = ([Fraction(int(k), 8) for k in rng.integers(1, 8, points)] for _ in range(4))
    pairs = [(i, y) for i in range(points) for y in (0, 1)]
    chance = [weight[i] * (star[i] if y else 1 - star[i]) for i, y in pairs]
    found = true_positive_rate(
        [y for _, y in pairs],
        [float(f[i]) for i, _ in pairs],
        [float(c[i]) for i, _ in pairs],
        sample_weight=[float(v) for v in chance],
    )
    mass = [w * part for w, part in zip(weight, c, strict=True)]
    above = sum(m * p * s for m, p, s in zip(mass, f, star, strict=True))
    below = sum(m * s for m, s in zip(mass, star, strict=True))
    assert found.estimate == pytest.approx(float(above / below), abs=1e-12)
