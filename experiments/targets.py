"""What can be reproduced, by name, and how a run of it goes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import examples, figure_1, hierarchy, real, samples, table
from experiments.experiment import Settings, small_settings
from experiments.parts import Parts, write_text
from experiments.results import Result
from lowcal.data.errors import FitWarning, InvalidInput, suggest
from lowcal.data.inputs import check_whole

Target = Callable[[Parts, Settings], Result]

#: The quick ones first, so that a run of all shows something soon.
TARGETS: dict[str, Target] = {
    "counterexample": examples.run_counterexample,
    "seventy-thirty": examples.run_seventy_thirty,
    "robustness": examples.run_robustness,
    "figure-1": figure_1.run,
    "table": table.run,
    "hierarchy": hierarchy.run,
    "samples": samples.run,
    "real": real.run,
}
ALIASES = {"example-b1": "counterexample", "70-30": "seventy-thirty"}


def run(
    target: str = "all",
    out: str | Path = "results",
    seeds: int = 5,
    *,
    engine: str = "auto",
    data: str | Path | None = None,
    cache: str | Path | bool | None = None,
    small: bool = False,
    progress: bool = True,
) -> list[Result]:
    """Reproduce a target, or all of them; print the verdicts and write the results.

    Parameters
    ----------
    target : a name of `TARGETS` or `ALIASES`, or "all".
    out : folder for results; finished parts are kept in its folder `parts`, and a rerun goes on from them.
    seeds : how many random data sets, at least 1.
    engine : who trains the networks: "torch", "numpy" or "auto" (torch where it is installed).
    data : folder with the real data sets; None: the variable LOWCAL_DATA.
    cache : folder of trained models; None: the variable LOWCAL_CACHE or ~/.cache/lowcal; False: none.
    small : tiny sizes, to see that everything runs; what is measured then means little.
    progress : say on standard error which part is done.
    """
    names = list(TARGETS) if target == "all" else [_known(target)]
    check_whole("seeds", seeds, 1)
    given: dict[str, Any] = {"seeds": seeds, "data": data, "cache": cache}
    if small:
        settings = small_settings(**given, engine="numpy" if engine == "auto" else engine)
    else:
        settings = Settings(**given, engine=engine)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)  # what can't be written is found out before the work, not after it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the paper's algorithm makes zeros and ones
        results = [_one(name, Parts(folder, progress), settings, folder) for name in names]
    if target == "all":
        write_text(folder / "index.md", index(results))
    return results


def _known(target: str) -> str:
    name = ALIASES.get(target, target)
    if name not in TARGETS:
        valid = (*TARGETS, *ALIASES, "all")
        raise InvalidInput(f"Unknown target {target!r}; valid: {', '.join(valid)}.{suggest(str(target), valid)}")
    return name


def _one(name: str, parts: Parts, settings: Settings, folder: Path) -> Result:
    result = TARGETS[name](parts, settings)
    paths = result.write(folder)
    print(f"{name}\n")
    for claim in (*result.claims, *result.timed):
        print(claim)
    print(f"\nClaims that hold: {result.score}.")
    print(f"Written: {', '.join(str(path) for path in paths)}\n", flush=True)
    return result


def index(results: list[Result]) -> str:
    """Return the page that lists all targets with their claims that hold."""
    rows = "".join(f"| [{r.name}]({r.name}.md) | {r.score} |\n" for r in results)
    return f"""# The paper, reproduced

`python -m experiments all` wrote these pages. Each states the claims, what was measured, and whether they hold.

| page | claims that hold |
|---|---|
{rows}"""
