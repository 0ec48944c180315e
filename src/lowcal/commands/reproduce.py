"""`lowcal reproduce`: the paper's figures and examples, computed anew and written as data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from lowcal.auditing import measure
from lowcal.commands.output import put
from lowcal.commands.usage import DONE, NotYet
from lowcal.datasets import parity_square
from lowcal.errors import InvalidInput
from lowcal.subpopulations import Groups

TARGETS = ("figure-1", "example-b1", "hierarchy", "all")
NOTIONS = ("multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.1")


def run(options: argparse.Namespace) -> int:
    """Compute a target and write it to the folder."""
    if options.target != "example-b1":
        raise NotYet(f"{options.target} can't be reproduced by this version yet; example-b1 can.")
    found = example_b1()
    print(_show(found))
    if options.out is not None:
        try:
            Path(options.out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"The folder {options.out} can't be made: {error.strerror}.") from error
        path = str(Path(options.out) / "example-b1.json")
        put(json.dumps(found, indent=1) + "\n", path)
        print(f"\nWrote {path}.")
    return DONE


def example_b1() -> dict[str, Any]:
    """Return the violations and the covariances of the parity square (paper, Appendix B).

    >>> found = example_b1()
    >>> round(found["covariance"]["x1=1"], 12) == round(-1 / 12, 12), found["violation"]["multiaccuracy"] < 1e-12
    (True, True)
    """
    world = parity_square()
    assert world.p is not None
    assert world.sample_weight is not None
    groups = Groups(min_mass=0)
    violation = {
        notion: measure(
            world.y, world.p, world.X, subpopulations=groups, notion=notion, sample_weight=world.sample_weight
        ).largest
        for notion in NOTIONS
    }
    covariance = {}
    for name in ("x1", "x2"):
        for value in (0, 1):
            weight = world.sample_weight * (world.X[name] == value)
            weight = weight / weight.sum()
            covariance[f"{name}={value}"] = float(
                weight @ (world.p * world.y) - (weight @ world.p) * (weight @ world.y)
            )
    return {"violation": violation, "covariance": covariance}


def _show(found: dict[str, Any]) -> str:
    lines = ["Example B.1: multiaccurate on x1=0, x1=1, x2=0, x2=1, and yet", ""]
    lines += [f"  Cov(prediction, label | {name}) = {value:+.4f}" for name, value in found["covariance"].items()]
    lines += ["", "  largest violation of each notion"]
    lines += [f"  {name:<15}{max(value, 0.0):.4f}" for name, value in found["violation"].items()]
    return "\n".join(lines)
