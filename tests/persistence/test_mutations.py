"""Saved models with random changes and a checksum that fits: refused, or on the simplex and within 200 MB."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def check(seed: int, count: int) -> None:
    """Run the mutations in a process of its own, whose memory is limited."""
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "mutations.py"), str(seed), str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    *broken, last = done.stdout.splitlines()
    assert broken == []
    refused = int(last.removeprefix("refused ").removesuffix(f" of {count}"))
    assert 0.5 * count < refused < count


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_mutations_are_refused_or_harmless() -> None:
    check(seed=1, count=2_000)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_mutations_are_refused_or_harmless(seed: int) -> None:
    check(seed, count=10_000)
