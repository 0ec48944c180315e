"""How long importing lowcal takes, next to scikit-learn's calibration module, in one run.

python benchmarks/import_time.py
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

REPEATS = 7
STATEMENTS = {
    "import sklearn.calibration": "import sklearn.calibration",
    "import lowcal": "import lowcal",
    "lowcal and its estimators": "from lowcal import MulticalibratedClassifier, MulticalibratedRegressor",
}
TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def seconds(statement: str) -> float:
    code = TIMED.format(statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    for statement in STATEMENTS.values():  # warm the file cache
        seconds(statement)
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(REPEATS):  # in turns, so that a busy machine slows all of them
        for name, statement in STATEMENTS.items():
            times[name].append(seconds(statement))
    base = median(times["import sklearn.calibration"])
    for name, taken in times.items():
        print(f"{name:28s} {1000 * median(taken):7.0f} ms   {median(taken) / base:5.2f}x")


if __name__ == "__main__":
    main()
