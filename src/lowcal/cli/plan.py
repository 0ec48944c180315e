"""`lowcal plan`: how many rows and updates a notion takes, before any data are collected."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lowcal.cli.terminal import DONE, WrongUsage
from lowcal.notions import LowDegree, Multiaccuracy, Notion, parse_notion
from lowcal.theory.complexity import SampleSize, Setting, audit_rows, compare, iterations, sample_size, show_rows

_SETTINGS: tuple[tuple[Setting, str], ...] = (
    ("fresh", "new rows for every update"),
    ("reuse", "the same rows for all updates"),
    ("online", "one row at a time, a mixture of predictors"),
)


def run(options: argparse.Namespace) -> int:
    """Print updates and sample sizes."""
    if (options.vc is None) == (options.groups is None):
        raise WrongUsage(
            "Give the size of the class of subpopulations: --groups N (their number) or --vc N (its VC dimension)."
        )
    try:
        text = _text(parse_notion(options.notion), options)
    except (ZeroDivisionError, OverflowError) as error:
        raise WrongUsage(
            f"--alpha {options.alpha:g} and --beta {options.beta:g} are too small: the number of rows overflows; "
            "give larger ones."
        ) from error
    print(text)
    return DONE


def _text(notion: Notion, options: argparse.Namespace) -> str:
    """Return updates and sample sizes, and what other notions take."""
    who = f"{options.groups:,} groups" if options.vc is None else f"subpopulations of VC dimension {options.vc:g}"
    head = f"{notion} at alpha={options.alpha:g}, {options.classes} classes, {who}, {1 - options.beta:.0%} confidence\n"
    parts = [head, _updates(notion, options), _rows(notion, options)]
    if options.groups is not None and isinstance(notion, LowDegree | Multiaccuracy):
        parts.append(_audit(notion, options))
    if isinstance(notion, LowDegree) and notion.degree >= 2:
        table = compare(
            options.alpha,
            degree=notion.degree,
            n_classes=options.classes,
            vc=options.vc,
            n_subpopulations=options.groups,
            beta=options.beta,
        )
        parts.append(f"\nWhat other notions would cost for the same: {table}")
    return "\n".join(parts)


def _updates(notion: Notion, options: argparse.Namespace) -> str:
    """Say how many updates Algorithm 1 can make (Lemma 5.3)."""
    given = (notion, options.alpha, options.classes)
    lines = [
        ("from the uniform prediction", iterations(*given)),
        ("from any predictor", iterations(*given, start="any")),
        ("with the constants of the paper", iterations(*given, constants="paper")),
    ]
    return table("Updates of Algorithm 1, at most", [(name, f"{n:,}") for name, n in lines])


def _rows(notion: Notion, options: argparse.Namespace) -> str:
    """Say how many rows are enough."""
    kind = {"n_classes": options.classes, "beta": options.beta}
    if options.vc is not None:
        size: SampleSize = sample_size(notion, options.alpha, vc=options.vc, **kind)
        lines = [("order of growth (the constant is not known)", show_rows(size.rows))]
        return table("\nRows", [*lines, (f"  {size.formula}; {size.reference}", "")])
    sizes = [
        (name, sample_size(notion, options.alpha, n_subpopulations=options.groups, setting=setting, **kind))
        for setting, name in _SETTINGS
    ]
    return table("\nRows that are enough (proved)", [(name, show_rows(size.rows)) for name, size in sizes])


def _audit(notion: Notion, options: argparse.Namespace) -> str:
    """Say how many held-out rows an audit needs."""
    given = {"n_classes": options.classes, "beta": options.beta, "rate": options.rate}
    lines = [
        ("bootstrap (default)", audit_rows(notion, options.alpha, options.groups, **given)),
        ("bernstein: for any n", audit_rows(notion, options.alpha, options.groups, method="bernstein", **given)),
    ]
    head = f"\nHeld-out rows to certify alpha for a perfect model, base rate {options.rate:g}, 80% power"
    return table(head, [(name, show_rows(rows)) for name, rows in lines])


def table(head: str, lines: Sequence[tuple[str, str]]) -> str:
    """Return a heading and two columns.

    >>> print(table("Rows", [("few", "10"), ("many", "1,000")]))
    Rows
      few      10
      many  1,000
    """
    wide, far = (max(len(line[k]) for line in lines) for k in (0, 1))
    return "\n".join([head, *(f"  {name:<{wide}}  {value:>{far}}".rstrip() for name, value in lines)])
