"""How many updates each solver needs to the same tolerance: 20,000 rows, 28 overlapping groups (README's table).

The guard is off: the question is how many updates it takes to reach alpha on these rows, whatever that does to others.

Run: python benchmarks/rounds.py
"""

import warnings

import numpy as np

import lowcal
from lowcal.data.errors import FitWarning


def overlapping(n: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, an overconfident start, and 28 overlapping 0/1 groups."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    truth = 1 / (1 + np.exp(-(0.9 * X[:, 0] - 0.7 * X[:, 1] * X[:, 2] + 0.8 * (X[:, 3] > 0.5))))
    start = 1 / (1 + np.exp(-2.2 * 0.9 * X[:, 0]))
    halves = [X > 0, X <= 0]
    corners = [((X[:, [i]] > 0) & (X[:, [j]] > 0)) for i in range(6) for j in range(i)]
    groups = np.concatenate([np.ones((n, 1), dtype=bool), *halves, *corners], axis=1)
    return (rng.random(n) < truth).astype(int), start, groups.astype(float)


def main() -> None:
    y, p, C = overlapping()
    warnings.simplefilter("ignore", FitWarning)  # Euclidean steps clip to 0 and 1
    print(f"{'notion':<15}{'alpha':>7}  {'geometry':<10}{'first':>7}{'worst':>7}{'block':>7}")
    for notion in ("multiaccuracy", "degree-2", "degree-3"):
        for alpha in (0.01, 0.003):
            for geometry in ("euclidean", "mirror"):
                counts = []
                for solver in ("first", "worst", "block"):
                    if solver == "first" and geometry == "mirror":
                        counts.append("-")
                        continue
                    fit = lowcal.multicalibrate(
                        y,
                        p,
                        C,
                        subpopulations=lowcal.Memberships(),
                        notion=notion,
                        alpha=alpha,
                        solver=solver,
                        geometry=geometry,
                        guard=False,
                    )
                    assert fit.status == "reached"
                    counts.append(fit.n_updates)
                print(f"{notion:<15}{alpha:>7g}  {geometry:<10}" + "".join(f"{c:>7}" for c in counts))


if __name__ == "__main__":
    main()
