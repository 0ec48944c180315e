"""lowcal beside its peers on the same rows: seconds to fit and to predict, and held-out quality in the same line.

Run: python benchmarks/peers.py [--quick] [--limit SECONDS] [--repeats N]

Peers are optional: pip install mcgrad multicalibration tqdm. fortuna needs an older NumPy and so an environment of its
own: pip install aws-fortuna there, and name its interpreter in the variable FORTUNA_PYTHON. Every method has a process
of its own and they take turns; one that exceeds the limit in fit or in predict is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from common import (
    OURS,
    Array,
    Clock,
    Ours,
    Score,
    Task,
    adult,
    logit,
    made_up,
    ratios,
    score,
    small,
    table,
    three,
    timed,
)

sys.path.append(str(Path(__file__).parents[1]))
from experiments import peers

LIMIT = 120.0
REPEATS = 5
#: A method whose first turn takes longer runs once; for the others the first turn is a warm-up.
SLOW = 10.0
WARM_UP_ROWS = 1_000
REFERENCE = "lowcal degree-2"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


# --- the peers: prepare (not timed), fit, predict --------------------------------------------------------------


def isotonic(task: Task) -> peers.Isotonic:
    """Return isotonic regression on the start prediction; it is blind to groups."""
    return peers.Isotonic(task.train.y, task.train.p, task.test.p)


class Sigmoid:
    """Platt scaling: logistic regression on the logit of the start prediction; it is blind to groups."""

    def __init__(self, task: Task):
        self.y = task.train.y
        self.train, self.test = (logit(rows.p)[:, None] for rows in (task.train, task.test))

    def fit(self) -> None:
        from sklearn.linear_model import LogisticRegression

        self.model = LogisticRegression(C=1e6).fit(self.train, self.y)

    def predict(self) -> Array:
        return np.asarray(self.model.predict_proba(self.test)[:, 1])


def mcgrad(task: Task, **options: Any) -> peers.MCGrad:
    """Return MCGrad on the categorical columns."""
    train, test = task.train.frame(), task.test.frame()
    return peers.MCGrad(train, test, task.train.y, task.train.p, task.test.p, list(train), **options)


def listed(task: Task, **how: Any) -> peers.Listed:
    """Return HKRR or HJZ on lists of rows."""
    lists = [[np.flatnonzero(column) for column in part.T] for part in task.memberships()]
    return peers.Listed(task.train.y, task.train.p, task.test.p, *lists, **how)


class Fortuna:
    """fortuna's binary multicalibrator on 0/1 memberships."""

    def __init__(self, task: Task):
        self.task = task
        self.train, self.test = task.memberships()

    def fit(self) -> None:
        from fortuna.conformal.multivalid.iterative.classification import binary_multicalibrator as home

        self.model = home.BinaryClassificationMulticalibrator(seed=0)
        rows = {"targets": self.task.train.y, "groups": self.train, "probs": self.task.train.p}
        self.model.calibrate(**rows, n_buckets=10, eta=0.5)

    def predict(self) -> Array:
        found = self.model.apply_patches(groups=self.test, probs=self.task.test.p)
        return np.clip(np.asarray(found, dtype=float), 0, 1)


@dataclass(frozen=True)
class Method:
    """How to make a rival, what must be installed, whether it can use more than one thread, and where it runs."""

    make: Callable[[Task], Any]
    package: str
    install: str = ""
    has_threads: bool = False
    largest: int = 100_000
    is_only_at_goal: bool = False


HKRR_TO_ITS_END = peers.HKRR | {"max_iter": 100}
#: The package has no defaults; these are the settings of the example in its documentation.
HKRR_DOCUMENTED = {"lambda": 0.01, "alpha": 0.1, "max_iter": 100, "randomized": True, "use_oracle": False}
HJZ = {"algorithm": "Hedge", "other_algorithm": "None", "lr": 0.99, "other_lr": 0.99, "n_bins": 10, "iterations": 50}
MILLION = 1_000_000
METHODS = {
    REFERENCE: Method(partial(Ours, **OURS[REFERENCE]), "lowcal", largest=MILLION),
    **{
        name: Method(partial(Ours, **OURS[name]), "lowcal", largest=MILLION)
        for name in ("lowcal degree-2, euclidean", "lowcal degree-3")
    },
    "lowcal Trees": Method(partial(Ours, **OURS["lowcal Trees"]), "lowcal"),
    "isotonic": Method(isotonic, "sklearn", largest=MILLION),
    "sigmoid": Method(Sigmoid, "sklearn", largest=MILLION),
    "MCGrad, 5 rounds": Method(
        partial(mcgrad, num_rounds=5, early_stopping=False), "mcgrad", "mcgrad", True, largest=MILLION
    ),
    "MCGrad": Method(mcgrad, "mcgrad", "mcgrad", True),
    "HKRR, 5 passes": Method(
        partial(listed, algorithm="HKRR", settings=peers.HKRR), "multicalibration", "multicalibration tqdm"
    ),
    "HKRR, to its end": Method(
        partial(listed, algorithm="HKRR", settings=HKRR_TO_ITS_END),
        "multicalibration",
        "multicalibration tqdm",
        is_only_at_goal=True,
    ),
    "HKRR, as documented": Method(
        partial(listed, algorithm="HKRR", settings=HKRR_DOCUMENTED),
        "multicalibration",
        "multicalibration tqdm",
        is_only_at_goal=True,
    ),
    "HJZ": Method(
        partial(listed, algorithm="HJZ", settings=HJZ), "multicalibration", "multicalibration tqdm", largest=10_000
    ),
    "fortuna": Method(Fortuna, "fortuna", "aws-fortuna", True, largest=10_000),  # memory: rows x groups x buckets
}


# --- a process for each method -----------------------------------------------------------------------------------


def serve(method: str) -> None:
    """Answer commands, one JSON object a line: load a task, fit, predict. What peers print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    rival: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if command["do"] == "load":
                rival = _load(method, Path(command["path"]))
            else:
                result, clock = timed(getattr(rival, command["do"]))
                answer = {"cpu": clock.cpu, "wall": clock.wall}
                if result is not None:
                    np.save(command["path"], result)
        except Exception as error:  # a peer may fail in any way; the table then says so
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _load(method: str, path: Path) -> Any:
    task = Task.load(path)
    warm = METHODS[method].make(task.head(WARM_UP_ROWS))
    warm.fit()
    warm.predict()
    return METHODS[method].make(task)


class Failed(Exception):
    """The method failed by itself."""


class Stopped(Failed):
    """The method was stopped at the limit, after these seconds."""

    def __init__(self, clock: Clock):
        super().__init__("stopped at the limit")
        self.clock = clock


def cpu_seconds(process: int) -> float | None:
    """Return the CPU seconds a process has used, where the system tells."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interpreter(package: str) -> str:
    """Return the Python that has the package."""
    return os.environ.get(f"{package.upper()}_PYTHON", sys.executable)


def is_installed(package: str) -> bool:
    """Whether the package is there, without importing it."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([interpreter(package), "-c", look], check=False, capture_output=True).returncode == 0


@dataclass
class Worker:
    """One method in its own process, with one thread or with all."""

    method: str
    threads: int
    process: subprocess.Popen[str] | None = None
    script: Sequence[str] = (__file__, "--serve")

    def ask(self, limit: float, **command: str) -> Clock:
        """Send a command and wait for the answer; stop the process at the limit."""
        process = self.process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        start, spent = perf_counter(), cpu_seconds(process.pid)
        print(json.dumps(command), file=process.stdin, flush=True)
        while not select.select([process.stdout], [], [], min(1.0, limit))[0]:
            wall, now = perf_counter() - start, cpu_seconds(process.pid)
            # on a busy machine wall seconds would accuse the method of what others did
            used = wall if spent is None or now is None else now - spent
            if used >= limit or wall >= 2 * limit:
                self.stop()
                raise Stopped(Clock(used, wall))
        line = process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            self.stop()
            raise Failed(answer["error"])
        return Clock(answer.get("cpu", 0.0), answer.get("wall", 0.0))

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _start(self) -> subprocess.Popen[str]:
        # threads that spin while they wait are many times slower when something else runs too
        environment = os.environ | {name: str(self.threads) for name in THREADS} | {"OMP_WAIT_POLICY": "PASSIVE"}
        if self.threads == 1:
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        python = interpreter(METHODS[self.method].package) if self.method in METHODS else sys.executable
        return subprocess.Popen(
            [python, *self.script, self.method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )


@dataclass
class Result:
    """What one worker did on one task."""

    worker: Worker
    fits: list[Clock] = field(default_factory=list)
    predicts: list[Clock] = field(default_factory=list)
    failure: str = ""
    stopped: Clock | None = None
    score: Score | None = None

    @property
    def is_slow(self) -> bool:
        """Whether one turn is enough."""
        return bool(self.failure) or self.fits[0].wall + self.predicts[0].wall > SLOW

    def is_beaten(self, others: Sequence[Result]) -> bool:
        """Whether the same method with another number of threads was clearly faster in everything: it can't count."""
        rivals = [o for o in others if o.worker.method == self.worker.method and o is not self and o.predicts]
        mine = self._first()
        return any(all(a > 1.2 * b for a, b in zip(mine, o._first(), strict=True)) for o in rivals)

    def _first(self) -> list[float]:
        return [seconds for clock in (self.fits[0], self.predicts[0]) for seconds in (clock.cpu, clock.wall)]

    def turn(self, task: Task, limit: float, out: Path) -> None:
        """Fit and predict once; the first predictions are judged."""
        try:
            self.fits.append(self.worker.ask(limit, do="fit"))
            self.predicts.append(self.worker.ask(limit, do="predict", path=str(out)))
        except Failed as failed:
            self.fail(failed)
            return
        if self.score is None:
            self.score = score(task.test, np.load(out))

    def fail(self, failed: Failed) -> None:
        """Remember why there is no more to come."""
        self.failure = str(failed)
        self.stopped = failed.clock if isinstance(failed, Stopped) else None

    def drop_warm_up(self) -> None:
        """Forget the first turn, if there are others."""
        if len(self.fits) > 1:
            self.fits, self.predicts = self.fits[1:], self.predicts[1:]


@contextmanager
def staff(methods: Sequence[str]) -> Iterator[list[Worker]]:
    """Hold a worker for every method and number of threads, and end them all."""
    every = max(2, os.cpu_count() or 2)
    workers = [Worker(m, t) for m in methods for t in ([1, every] if METHODS[m].has_threads else [1])]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def compare(task: Task, workers: Sequence[Worker], limit: float, repeats: int) -> list[Result]:
    """Let the workers take turns on a task."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "task.npz", Path(folder) / "out.npy"
        task.save(path)
        results = [Result(worker) for worker in workers]
        for result in results:
            try:
                result.worker.ask(limit, do="load", path=str(path))
            except Failed as failed:
                result.fail(failed)
        for turn in range(repeats + 1):
            for result in (r for r in results if not r.failure):
                if turn == 0 or not (result.is_slow or result.is_beaten(results)):
                    result.turn(task, limit, out)
        for result in results:
            result.drop_warm_up()
    return results


# --- tables and sentences -----------------------------------------------------------------------------------------


def better(results: Sequence[Result], clocks: str, kind: str) -> tuple[list[float], Result]:
    """Return the seconds of the number of threads that is better in this measure, and whose they are."""
    done = [r for r in results if getattr(r, clocks)]
    best = min(done, key=lambda r: median(getattr(c, kind) for c in getattr(r, clocks)))
    return [getattr(c, kind) for c in getattr(best, clocks)], best


def timing(results: Sequence[Result], ours: Sequence[Result], clocks: str, kind: str) -> str:
    """Return seconds and how many times ours they are, with the spread; bounds for what was stopped."""
    base, _ = better(ours, clocks, kind)
    if not any(getattr(r, clocks) for r in results):
        least = bound(results, kind)
        return results[0].failure if least is None else f"> {three(least)}, > {three(least / median(base))}x"
    seconds, _ = better(results, clocks, kind)
    if results is ours:
        return f"{three(median(seconds))} ({three(min(seconds))} to {three(max(seconds))})"
    middle, least, most = ratios(seconds, base)
    return f"{three(median(seconds))}, {three(middle)}x ({three(least)} to {three(most)})"


def bound(results: Sequence[Result], kind: str) -> float | None:
    """Return the seconds after which a method was stopped, the fewest of its numbers of threads."""
    return min((getattr(r.stopped, kind) for r in results if r.stopped), default=None)


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Put one thread and all threads of a method together."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.worker.method, []).append(result)
    return found


HEAD = (
    *("method", "runs", "fit, CPU s", "fit, wall s", "predict, CPU s", "predict, wall s"),
    *("degree 1", "degree 2", "full 0.1", "Brier", "log loss"),
)


def quality(found: Score | None) -> list[str]:
    """Return the cells of the held-out scores."""
    if found is None:
        return ["-"] * 5
    return [*(small(v) for v in found.violations.values()), small(found.brier), small(found.log_loss)]


def show(task: Task, results: Sequence[Result]) -> str:
    """Return the table of one task."""
    methods = by_method(results)
    ours = methods[REFERENCE]
    lines = [["start", "", "", "", "", "", *quality(score(task.test, task.test.p))]]
    for name, group in methods.items():
        cells = [timing(group, ours, c, k) for c in ("fits", "predicts") for k in ("cpu", "wall")]
        judged = next((r.score for r in group if r.score), None)
        lines.append([name, str(max(len(r.fits) for r in group)), *cells, *quality(judged)])
    if task.test.f_star is not None:
        lines.append(["the truth f*", "", "", "", "", "", *quality(score(task.test, task.test.f_star))])
    return table(HEAD, lines)


def sentences(task: Task, results: Sequence[Result]) -> list[str]:
    """Say in words how much slower the multicalibration peers are, and in what others are better than the reference."""
    methods = by_method(results)
    ours = methods[REFERENCE]
    base = ours[0].score
    said = [_speed(name, methods[name], ours) for name in PEERS if name in methods]
    if base is None:
        return said
    idle = [
        n for n, g in methods.items() if any(r.score and is_same(r.score, score(task.test, task.test.p)) for r in g)
    ]
    said += [f"{name} changed nothing: its scores are those of the start." for name in idle]
    judged = {n: next((r.score for r in g if r.score), None) for n, g in methods.items() if n != REFERENCE}
    for loss, title in (("brier", "Brier score"), ("log_loss", "log loss")):
        gaps = {n: s.gap(base, loss) for n, s in judged.items() if s}
        lower = [f"{n} ({g:+.4f}, standard error {e:.4f})" for n, (g, e) in gaps.items() if g < -2 * e]
        said.append(
            f"A lower {title} than {REFERENCE}, by more than two standard errors: {', '.join(lower) or 'none'}."
        )
    for kind, value in base.violations.items():
        rivals = {n: s.violations[kind] for n, s in judged.items() if s}
        lower = [f"{n} ({small(v)} against {small(value)})" for n, v in rivals.items() if v < 0.9 * value]
        said.append(f"A {kind} violation lower by more than a tenth: {', '.join(lower) or 'none'}.")
    return said


def is_same(one: Score, other: Score) -> bool:
    """Whether two sets of predictions lose the same on every row."""
    return bool(np.allclose(one.brier_rows, other.brier_rows, atol=1e-6))


PEERS = ("MCGrad", "MCGrad, 5 rounds", "HKRR, 5 passes", "HKRR, to its end", "HKRR, as documented", "HJZ", "fortuna")


def _speed(name: str, theirs: Sequence[Result], ours: Sequence[Result]) -> str:
    parts = [f"{_times(theirs, ours, clocks)} the CPU seconds {verb}" for clocks, verb in VERBS.items()]
    return f"{name} takes {' and '.join(parts)}."


VERBS = {"fits": "to fit", "predicts": "to predict"}


def _times(theirs: Sequence[Result], ours: Sequence[Result], clocks: str) -> str:
    base = median(better(ours, clocks, "cpu")[0])
    if any(getattr(r, clocks) for r in theirs):
        return f"{three(median(better(theirs, clocks, 'cpu')[0]) / base)} times"
    least = bound(theirs, "cpu")
    return "an unknown share of" if least is None else f"more than {three(least / base)} times"


GOAL_SIZE = (100_000, 100)
#: At this size: how many times faster the reference is to be.
GOALS = (
    ("MCGrad", "fits", 100),
    ("HKRR, as documented", "fits", 500),
    ("HKRR, to its end", "fits", 500),
    ("HKRR, 5 passes", "fits", 500),
    ("MCGrad", "predicts", 100),
    ("HKRR, 5 passes", "predicts", 100),
)


def gates(results: Sequence[Result]) -> list[str]:
    """Judge the goals."""
    methods, said = by_method(results), []
    for name, clocks, wanted in (goal for goal in GOALS if goal[0] in methods):
        base = median(better(methods[REFERENCE], clocks, "cpu")[0])
        ran = any(getattr(r, clocks) for r in methods[name])
        seconds = median(better(methods[name], clocks, "cpu")[0]) if ran else bound(methods[name], "cpu") or 0.0
        verdict = "met" if seconds >= wanted * base else "not met" if ran else "not decided within the limit"
        times = _times(methods[name], methods[REFERENCE], clocks)
        said.append(f"{VERBS[clocks]} at least {wanted} times faster than {name}: {times}, {verdict}.")
    return said


# --- all of it ----------------------------------------------------------------------------------------------------


def present(methods: Sequence[str]) -> list[str]:
    """Return the methods that can run here; a sentence for each package that is absent."""
    packages = {METHODS[m].package: METHODS[m].install for m in methods}
    absent = {package for package in packages if not is_installed(package)}
    for package in sorted(absent):
        print(f"{package} is not installed and left out (pip install {packages[package]}).\n")
    return [m for m in methods if METHODS[m].package not in absent]


def too_large(worker: Worker, size: tuple[int, int], stopped: dict[tuple[str, int], tuple[int, int]]) -> str:
    """Say why a worker need not try this size: it is beyond its range, or a smaller one already met the limit."""
    method = METHODS[worker.method]
    if size[0] > method.largest or (method.is_only_at_goal and size != GOAL_SIZE):
        return "not run"
    before = stopped.get((worker.method, worker.threads))
    if before and before[0] <= size[0] and before[1] <= size[1]:
        return f"not run, as {before[0]:,} rows and {before[1]} groups met the limit"
    return ""


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only, to see that everything runs")
    parser.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds for one fit or one predict")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--rows", type=int, nargs="*", help="sizes of the made-up tasks")
    parser.add_argument("--groups", type=int, nargs="*", default=list(SHAPES_OF_RUN))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), help="names as in the table")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rows is None:
        given.rows = [1_000] if given.quick else [10_000, 100_000, MILLION]
    return given


SHAPES_OF_RUN = (100,)


def sizes(rows: Sequence[int], groups: Sequence[int]) -> list[tuple[int, int]]:
    """Return the sizes of the made-up tasks; a million rows only with the most groups."""
    return [(n, g) for n in rows for g in groups if n < MILLION or g == max(groups)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare on every task, print the tables and what they show."""
    given = read(arguments)
    if given.serve:
        return serve(given.serve)
    methods = present(given.methods)
    print(INTRODUCTION.format(reference=REFERENCE, limit=given.limit, repeats=given.repeats, slow=SLOW))
    tables: dict[tuple[int, int], list[Result]] = {}
    stopped: dict[tuple[str, int], tuple[int, int]] = {}
    with staff(methods) as workers:
        for n, g in sizes(given.rows, given.groups):
            tables[n, g] = run_task(made_up(n, g), (n, g), workers, stopped, given)
        real = adult(1_000 if given.quick else None)
        run_task(real, (len(real.train), real.n_groups), workers, stopped, given)
    if GOAL_SIZE in tables:
        said = [f"* {line}\n" for line in gates(tables[GOAL_SIZE])]
        print("### Goals at 100,000 rows and 100 groups, CPU seconds\n\n" + "".join(said))
    return None


def run_task(
    task: Task,
    size: tuple[int, int],
    workers: Sequence[Worker],
    stopped: dict[tuple[str, int], tuple[int, int]],
    given: argparse.Namespace,
) -> list[Result]:
    """Compare on one task and print what came out; remember who met the limit."""
    able = [w for w in workers if not too_large(w, size, stopped)]
    results = compare(task, able, given.limit, given.repeats)
    for result in results:
        if result.stopped:
            stopped[result.worker.method, result.worker.threads] = size
    print(f"### {task.name}\n\n{show(task, results)}\n")
    tried = {r.worker.method for r in results}
    left_out = {w.method: too_large(w, size, stopped) for w in workers if w.method not in tried}
    for line in [*sentences(task, results), *(f"{m}: {why}." for m, why in left_out.items())]:
        print(f"* {line}")
    print(flush=True)
    return results


INTRODUCTION = """\
Every method gets the same rows, and what it reads them from (frames, lists, 0/1 matrices) is made before the clock
starts. lowcal and MCGrad read the same frame of categorical columns. A cell is the median in seconds, then how many
times that of {reference}, with the least and the largest ratio of single turns. Methods take turns {repeats} times
after a warm-up; one that takes over {slow:.0f} s runs once, and one that exceeds {limit:.0f} CPU seconds (or twice as
much on the wall) in fit or in predict is stopped. lowcal uses one thread; peers that can use more ran with one and with
all, and the better counts, for CPU and wall seconds separately. Violations and losses are of rows nobody was fitted on;
in made-up tasks there are as many of them as were fitted on, and they are taken against the true f*. lowcal degree-2
and degree-3 know only the groups and can't see interactions of columns, which these tasks have; Trees and MCGrad can.

The settings of HKRR, HJZ and fortuna were chosen among a few by their held-out Brier score and violations at 10,000
rows and 20 groups, so in their favour: HKRR has 10 bins and 5 passes. "To its end" it makes passes until one changes
nothing. Its package has no defaults; "as documented" has the settings of the example there, 100 bins and at most 100
passes. MCGrad has its defaults, or 5 rounds without early stopping.
"""


if __name__ == "__main__":
    main()
