"""Run the tests of a card's kernels, compiled for the processor, while a sanitizer watches: address or thread.

What it reports is printed, and makes this script fail. Of two threads, only what warps and blocks wait for puts one
before the other; so a race is found even if it did no harm this time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

LIBRARIES = {"address": ("asan", "ubsan", "stdc++"), "thread": ("tsan", "stdc++")}
TESTS = ("tests/kernels/test_card.py", "tests/rows/test_card.py", "tests/rows/test_card_reading.py")
TESTS += ("tests/rows/test_card_trees.py",)
#: Races are looked for among a few blocks of few threads: cases that name their own grid have too many for it.
CHOSEN = {"address": "processor", "thread": "processor and not how and not settings and not splits_coincide"}
FOUND = "ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error"


def library(name: str) -> str:
    """Return the path of a library of the compiler."""
    found = ["g++", f"-print-file-name=lib{name}.so"]
    return subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()


def main(sanitizer: str, *more: str) -> int:
    """Run the tests, and return what to exit with."""
    with TemporaryDirectory() as folder:
        options = f"detect_leaks=0:log_path={folder}/report"
        found = {"SANITIZER": sanitizer, "LD_PRELOAD": " ".join(map(library, LIBRARIES[sanitizer]))}
        found |= {"ASAN_OPTIONS": options, "TSAN_OPTIONS": options, "UBSAN_OPTIONS": f"log_path={folder}/report"}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-k", CHOSEN[sanitizer], *TESTS, *more]
        done = subprocess.run(command, env={**os.environ, **found}, check=False)
        logs = [path.read_text() for path in sorted(Path(folder).glob("report*"))]
        reports = [log for log in logs if re.search(FOUND, log)]  # a log may hold but a note on fibers
        print(*reports, f"{sanitizer}: {len(reports)} reports" if reports else f"{sanitizer}: nothing found", sep="\n")
        return done.returncode or bool(reports)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
