"""Runs the benchmarks and writes what they print, with the machine and the date, to docs/benchmarks.md.

Run: python benchmarks/run.py [names] [--quick]

Without names every benchmark of this folder runs, except harm and recalibrate, which take hours, crossfit, which
needs real data, against, which needs an older checkout, cluster, which starts one, and cost, which has a page of its
own; with names only those, and the other sections of the page stay.
After a single name come that benchmark's own options.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

from summary import draw, summary

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
NOT_BENCHMARKS = {"common", "run", "summary"}
#: These come first on the page, in this order; the others follow by name.
FIRST = ("peers", "baseline", "latency")
#: Benchmarks that know small sizes; with --quick the others are left out.
QUICK = ("peers", "baseline", "latency", "harm")
#: These take hours, or need real data, an older checkout, a cluster or a card, and run only where they are named.
LONG = ("against", "card", "cluster", "cost", "crossfit", "harm", "recalibrate")
LIBRARIES = ("lowcal", "numpy", "scipy", "scikit-learn", "narwhals", "numba", "pandas")
PEERS = ("MCGrad", "lightgbm", "multicalibration", "aws-fortuna")
SECTION = re.compile(r"^<!-- (\w+) -->\n(.*?)(?=^<!-- \w+ -->\n|\Z)", flags=re.DOTALL | re.MULTILINE)

TITLE = """\
# Benchmarks

Written by `python benchmarks/run.py`, which runs every file of `benchmarks/`; do not edit by hand. `pip install mcgrad
multicalibration tqdm` brings the peers; those that are absent are left out. Compare ratios, which were taken in one run
with rivals in turns; seconds depend on the machine and on what else it did.

"""


def names() -> list[str]:
    """Return the benchmarks of this folder, the comparisons first."""
    found = {path.stem for path in HERE.glob("*.py")} - NOT_BENCHMARKS
    return [name for name in FIRST if name in found] + sorted(found - set(FIRST))


def processor() -> str:
    """Return the name of the processor."""
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        described = ""
    found = re.search(r"^model name\s*:\s*(.+)$", described, flags=re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def memory() -> str:
    """Return the memory of the machine in words, where the system tells."""
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB of memory"
    except (AttributeError, OSError, ValueError):
        return "unknown memory"


def versions(packages: Sequence[str]) -> str:
    """Return the installed versions; fortuna's may be those of its own interpreter."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            elsewhere = os.environ.get("FORTUNA_PYTHON") if package == "aws-fortuna" else None
            found += [f"{package} {_version_elsewhere(elsewhere, package)}"] if elsewhere else []
    return ", ".join(found)


def _version_elsewhere(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def machine() -> str:
    """Describe where the figures come from: no path, no name of a host."""
    load = f", load average {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    return (
        f"{datetime.now(UTC):%d %B %Y}; {processor()}, {os.cpu_count()} cores, {memory()}{load}; "
        f"Python {platform.python_version()}, {versions(LIBRARIES)}; peers: {versions(PEERS) or 'none'}."
    )


def title(path: Path) -> str:
    """Return the first sentence of a benchmark's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.stem
    return docstring.split("\n", 1)[0].rstrip(".")


def section(name: str, arguments: Sequence[str], folder: Path = HERE) -> str:
    """Run one benchmark and return its part of the page; plain output is fenced, tables in Markdown are not."""
    described, start = machine(), perf_counter()
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(
        [sys.executable, str(folder / f"{name}.py"), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=environment,
    )
    shown = done.stdout.strip()
    body = shown if re.search(r"^\|", shown, flags=re.MULTILINE) else f"```text\n{shown}\n```"
    if done.returncode != 0:
        body += f"\n\nThe benchmark failed with exit status {done.returncode}; what it printed before is above."
    command = " ".join(["python", f"benchmarks/{name}.py", *arguments])
    heading = f"## {title(folder / f'{name}.py')}"
    return f"{heading}\n\n`{command}`, {perf_counter() - start:.0f} s. {described}\n\n{body}\n\n"


def write(page: Path, fresh: dict[str, str]) -> None:
    """Put fresh sections into the page; the others stay as they are, and the summary is that of all."""
    merged = sections(page) | fresh
    ordered = sorted(merged, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    body = "".join(f"<!-- {name} -->\n{merged[name]}" for name in ordered)
    page.write_text((TITLE + summary(merged) + body).rstrip() + "\n", "utf-8")


def sections(page: Path) -> dict[str, str]:
    """Return the sections of the page by name."""
    return dict(SECTION.findall(page.read_text(encoding="utf-8"))) if page.exists() else {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for; the page is written after each, so that nothing is lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names())}; none is all but {', '.join(LONG)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, printed and not written")
    parser.add_argument("--page", type=Path, default=PAGE, help=argparse.SUPPRESS)
    given, passed_on = parser.parse_known_args(arguments)
    if passed_on and len(given.names) != 1:
        parser.error(f"{' '.join(passed_on)} can be passed on to one benchmark only; name it first")
    unknown = set(given.names) - set(names())
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    for name in given.names or [name for name in names() if given.quick or name not in LONG]:
        if given.quick:
            if name in QUICK:
                print(section(name, ["--quick"]), flush=True)
            continue
        fresh = section(name, passed_on)
        print(fresh, flush=True)
        write(given.page, {name: fresh})
    if not given.quick and summary(sections(given.page)):
        draw(sections(given.page))


if __name__ == "__main__":
    main()
