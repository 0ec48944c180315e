"""This checkout beside an older one: CPU seconds of fits and audits in memory, as ratios of turns taken in one run.

Run: python benchmarks/against.py --old FOLDER/src [--quick]

FOLDER is an older checkout, for example of `git worktree add --detach FOLDER 0635226`. Each side is a process of its
own that lives for the whole run and is given the same rows; the sides take turns, the first of each does not count. A
line shows the median milliseconds of both sides, and the median ratio with the least and the largest of single turns.
Fits have guard=False, where a checkout knows a guard; numba is used where it is installed, by both.

Each process frees one block of 31 MB before its first turn. glibc gives freed memory back to the system after every
call until the process has once freed a block larger than it, and takes it again page by page in the next call; which
checkout happens to free such a block first would otherwise decide the ratios of fits of some 10,000 rows (5.1 ms with
243 page faults, 4.5 ms without, in the same process).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from common import made_up, ratios, table

HERE = Path(__file__).resolve().parent
#: A turn repeats small work until it takes about this many CPU seconds.
LEAST_TURN = 0.1
TURNS = 25
#: Rows and groups of the fits, with every alpha and every notion; the last ones are left out by --quick.
FITS = [(1_000, 20), (10_000, 20), (10_000, 100), (100_000, 100), (1_000_000, 100)]
GOALS = [(0.01, "degree-2"), (0.01, "degree-3"), (0.001, "degree-2"), (0.001, "degree-3")]
AUDITS = [(100_000, 100), (1_000_000, 100)]
MOST_QUICK = 10_000

WORKER = """
import inspect, json, sys
from time import process_time

sys.path.insert(0, sys.argv[1])
from common import Task, MOST_LEVELS
import lowcal

groups = lowcal.Groups(n_bins=MOST_LEVELS)
bytearray(31 << 20)  # freed at once: from here on the allocator keeps what is freed, see the module's docstring
for line in sys.stdin:
    asked = json.loads(line)
    if "path" in asked:
        rows = Task.load(asked["path"]).train
        frame = rows.frame()
        print(json.dumps(lowcal.__file__), flush=True)
        continue
    function = getattr(lowcal, asked["function"])
    known = inspect.signature(function).parameters
    options = {name: value for name, value in asked["options"].items() if name in known}
    start = process_time()
    for _ in range(asked["times"]):
        found = function(rows.y, rows.p, frame, subpopulations=groups, random_state=0, **options)
    seconds = (process_time() - start) / asked["times"]
    print(json.dumps([seconds, getattr(found, "n_updates", 0)]), flush=True)
"""


class Side:
    """A process with one checkout's sources."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-c", WORKER, str(HERE)]
        self.source = source.resolve()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **question: Any) -> Any:
        """Return the answer to a question."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def read(self, path: Path) -> None:
        """Read the rows of the next turns."""
        imported = Path(self.ask(path=str(path)))
        if self.source not in imported.resolve().parents:
            sys.exit(
                f"lowcal was imported from {imported}, not from {self.source}: give the folder that holds lowcal/."
            )


@contextmanager
def sides(*sources: Path) -> Iterator[list[Side]]:
    """Start a process for each checkout; they end with the run."""
    started = [Side(source) for source in sources]
    try:
        yield started
    finally:
        for side in started:
            side.process.stdin.close()  # type: ignore[union-attr]
            side.process.wait()


def compare(both: list[Side], function: str, **options: Any) -> tuple[list[list[float]], list[int]]:
    """Return the seconds of every turn of each side, and the updates that each made."""
    question = {"function": function, "options": options}
    first = [side.ask(**question, times=1) for side in both]
    times = max(1, round(LEAST_TURN / min(side.ask(**question, times=1)[0] for side in both)))
    turns = TURNS if times > 1 else 5
    seconds: list[list[float]] = [[] for _ in both]
    for turn in range(turns):
        for k in (0, 1) if turn % 2 else (1, 0):
            seconds[k].append(both[k].ask(**question, times=times)[0])
    return seconds, [updates for _, updates in first]


def line(what: str, seconds: list[list[float]], updates: list[int]) -> list[str]:
    """Return a row of the table."""
    old, new = seconds
    middle, least, most = ratios(new, old)
    before, after = (f"{1e3 * median(each):.1f}" for each in (old, new))
    return [what, before, after, f"{middle:.2f} ({least:.2f} to {most:.2f})", f"{updates[0]}, {updates[1]}"]


def main() -> None:
    """Compare all cells, and print a table of fits and one of audits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="the folder src of the older checkout")
    parser.add_argument("--new", type=Path, default=HERE.parent / "src", help="the folder src of the newer one")
    parser.add_argument("--quick", action="store_true", help=f"at most {MOST_QUICK:,} rows, no audits")
    given = parser.parse_args()
    work = [("multicalibrate", size, GOALS) for size in FITS] + [
        ("audit", size, [(0.01, "degree-2")]) for size in AUDITS
    ]
    lines: dict[str, list[list[str]]] = {"multicalibrate": [], "audit": []}
    with TemporaryDirectory() as folder, sides(given.old, given.new) as both:
        for function, (n, n_groups), goals in work:
            if given.quick and n > MOST_QUICK:
                continue
            path = Path(folder) / "rows.npz"
            made_up(n, n_groups).save(path)
            for side in both:
                side.read(path)
            for alpha, notion in goals:
                options = {"alpha": alpha, "notion": notion} | (
                    {"guard": False} if function == "multicalibrate" else {}
                )
                found = line(f"{n:,} x {n_groups}, {notion}, alpha {alpha:g}", *compare(both, function, **options))
                print(*found, sep="  ", file=sys.stderr, flush=True)
                lines[function].append(found)
    for function, found in lines.items():
        if found:
            print(table([function, "old, ms", "new, ms", "new / old", "updates"], found), end="\n\n")


if __name__ == "__main__":
    main()
