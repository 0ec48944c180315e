"""`lowcal plan`: how many rows and updates a notion takes, before any data are collected."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from lowcal.cli import DONE
from lowcal.cli.main import WrongUsage
from lowcal.complexity import Setting, audit_rows, compare, iterations, sample_size, show_rows
from lowcal.data.errors import aligned
from lowcal.notions import LowDegree, Multiaccuracy, Notion, parse_notion

_SETTINGS: tuple[tuple[Setting, str], ...] = (
    ("fresh", "new rows for every update"),
    ("reuse", "the same rows for all updates"),
    ("online", "one row at a time, a mixture of predictors"),
)


def run_plan(options: argparse.Namespace) -> int:
    """Print updates and sample sizes."""
    if (options.vc is None) == (options.groups is None):
        raise WrongUsage("Give either --groups N (the number of subpopulations) or --vc N (their VC dimension).")
    try:
        text = "\n".join(_lines(parse_notion(options.notion or "degree-2"), options))
    except (ZeroDivisionError, OverflowError) as error:
        raise WrongUsage(
            f"--alpha {options.alpha:g} and --beta {options.beta:g} are too small: the number of rows overflows; "
            "give larger ones."
        ) from error
    print(text)
    return DONE


def _lines(notion: Notion, options: argparse.Namespace) -> Iterator[str]:
    """Yield updates (Lemma 5.3) and sample sizes, and what other notions take."""
    alpha, kind = options.alpha, {"n_classes": options.classes, "beta": options.beta}
    who = f"{options.groups:,} groups" if options.vc is None else f"subpopulations of VC dimension {options.vc:g}"
    yield f"{notion} at alpha={alpha:g}, {options.classes} classes, {who}, {1 - options.beta:.0%} confidence\n"
    starts: dict[str, Any] = {
        "from the uniform prediction": {},
        "from any predictor": {"start": "any"},
        "with the constants of the paper": {"constants": "paper"},
    }
    yield "Updates of Algorithm 1, at most"
    updates = [(name, f"{iterations(notion, alpha, options.classes, **how):,}") for name, how in starts.items()]
    yield from aligned(updates, "lr")
    if options.vc is not None:
        size = sample_size(notion, alpha, vc=options.vc, **kind)
        yield "\nRows"
        growth = ("order of growth (the constant is not known)", show_rows(size.rows))
        yield from aligned([growth, (f"  {size.formula}; {size.reference}", "")], "lr")
    else:
        given: Any = {"n_subpopulations": options.groups, **kind}
        sizes = {name: sample_size(notion, alpha, setting=setting, **given) for setting, name in _SETTINGS}
        yield "\nRows that are enough (proved)"
        yield from aligned([(name, show_rows(size.rows)) for name, size in sizes.items()], "lr")
    if options.groups is not None and isinstance(notion, LowDegree | Multiaccuracy):
        yield f"\nHeld-out rows to certify alpha for a perfect model, base rate {options.rate:g}, 80% power"
        given = {"n_subpopulations": options.groups, "rate": options.rate, **kind}
        normal, exact = (show_rows(audit_rows(notion, alpha, **given, method=one)) for one in ("normal", "bernstein"))
        yield from aligned([("bootstrap (default)", normal), ("bernstein: for any n", exact)], "lr")
    if isinstance(notion, LowDegree) and notion.degree >= 2:
        other = compare(alpha, degree=notion.degree, vc=options.vc, n_subpopulations=options.groups, **kind)
        yield f"\nWhat other notions would cost for the same: {other}"
