"""How often monitoring raises a false alarm, and how soon it finds a drift: 24 months, 20 groups, a known truth.

Run: python benchmarks/monitoring.py [--runs 400] [--first 0] [case ...]
"""

import argparse
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from lowcal.auditing.monitoring import Drift, read_windows, window_sums
from lowcal.data.progress import Passes
from lowcal.solve.homes import open_home

MONTHS, GROUPS = 24, 20
#: The first month with drift, counted from 1, and its size in standard errors of a month's error without it.
BEGIN, SIZE = 12, 3.0
LEVEL = 0.05
#: What the page says before the table.
LEAD = """\
Labels are drawn from a known truth, in {months} months and {groups} groups. "False alarm" is the share of {runs} runs
without drift in which any group, or everyone, raises an alarm in any month: at most 0.050 is stated, and 0.050 would
vary by {noise:.3f}. Then the error of one group changes, up or down, by {size:g} standard errors of its error in a
month, from month {begin} on, and stays there: the share of runs in which this group has raised an alarm by the end of
the first month with drift, the second, and so on. Rows are those of each group and month. How many windows are compared
with those before, and at which levels, was chosen with this drift in sight, by simulations of normal errors.
Where the errors of all groups are near 0, most of the level goes to the direction that a group's mean error over all
months points to; where groups are off (the fourth line), rises and falls share it evenly.
"""


@dataclass(frozen=True)
class Case:
    """The predictions in a group, of equally many rows each; its rows in a month; how far groups are always off."""

    predictions: tuple[float, ...]
    rows: int
    offset: float = 0.0


COMMON, RARE = (0.15, 0.25, 0.3, 0.4, 0.55), (0.005, 0.01, 0.02, 0.03, 0.05)
CASES = {
    "perfect model, 1,000 rows": Case(COMMON, 1000),
    "perfect model, 150 rows": Case(COMMON, 150),
    "perfect model, 25 rows": Case(COMMON, 25),
    "groups off by up to .1, 1,000 rows": Case(COMMON, 1000, 0.1),
    "rare outcomes (2.3%), 1,000 rows": Case(RARE, 1000),
    "rare outcomes (2.3%), 150 rows": Case(RARE, 150),
}


def alarms(case: Case, drift: float, rng: np.random.Generator, begin: int = BEGIN) -> np.ndarray:
    """Return in which months which groups raise an alarm, (months, groups); the last group is everyone.

    The first group drifts, up or down, from month `begin` on, by `drift` standard errors of its mean error in a month.
    """
    shape = (MONTHS, GROUPS, len(case.predictions))
    p = np.broadcast_to(case.predictions, shape)
    truth = p + rng.uniform(-case.offset, case.offset, GROUPS)[:, None]
    shift = drift * np.sqrt((p * (1.0 - p)).mean() / case.rows)
    truth[begin - 1 :, 0] += shift * rng.choice([-1.0, 1.0])
    n = case.rows // len(case.predictions)
    events = rng.binomial(n, truth.clip(0.0, 1.0))
    return p_values(p, np.stack([events, n - events])) <= LEVEL


def p_values(p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the p-values of `audit(..., by="month")`, without the audits of the windows, which take longer.

    Rows are cells of a month, a group, a prediction and an outcome, with the number of people in them.
    """
    month, group, _ = (np.tile(one.ravel(), 2) for one in np.indices(p.shape))
    y, f, X = np.repeat([1, 0], p.size), np.tile(p.ravel(), 2), {"group": group.astype(str), "month": month}
    windows = read_windows(y, f, X, None, "month", None)
    copies = counts.ravel()
    given = y, f, windows.rest, None, [0, 1], None, 0, None, Passes(False)
    home = open_home(*given, is_fit=False, frequency_weight=copies)
    _, panels, shares = windows.panels(home)
    order = [panels[0].names.index(name) for name in [*(f"group={k}" for k in range(GROUPS)), "everyone"]]
    return Drift(window_sums(panels, shares)).p_value[:, order, 0]


def measure(case: Case, runs: range, begin: int) -> list[float]:
    """Return the share of runs with a false alarm, and those in which drift is found within some months of it."""
    false = np.mean([alarms(case, 0.0, np.random.default_rng([0, k])).any() for k in runs])
    drifting = [alarms(case, SIZE, np.random.default_rng([1, k]), begin)[begin - 1 :, 0] for k in runs]
    return [float(false), *(float(np.mean([one[:n].any() for one in drifting])) for n in (1, 2, 3, 4, 6))]


def main(arguments: list[str] | None = None) -> None:
    """Print a table with a line for every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="the first run's number, which seeds it")
    parser.add_argument("--begin", type=int, default=BEGIN, help="the first month with drift, counted from 1")
    parser.add_argument("cases", nargs="*", help="cases whose names contain one of these; default: all")
    options = parser.parse_args(arguments)
    runs = range(options.first, options.first + options.runs)
    noise, begin = np.sqrt(LEVEL * (1.0 - LEVEL) / options.runs), options.begin
    print(LEAD.format(months=MONTHS, groups=GROUPS, runs=options.runs, noise=noise, size=SIZE, begin=begin))
    print("| case | false alarm | found in 1 month | 2 months | 3 months | 4 months | 6 months | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, case in CASES.items():
        if options.cases and not any(one in name for one in options.cases):
            continue
        start = perf_counter()
        shown = " | ".join(f"{one:.3f}" for one in measure(case, runs, begin))
        print(f"| {name} | {shown} | {perf_counter() - start:.0f} |", flush=True)


if __name__ == "__main__":
    main()
