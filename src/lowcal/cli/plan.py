"""`lowcal plan`: how many rows and updates a notion takes, before any data are collected."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lowcal.cli.terminal import DONE, WrongUsage
from lowcal.complexity import Setting, audit_rows, compare, iterations, sample_size, show_rows
from lowcal.notions import LowDegree, Multiaccuracy, Notion, parse_notion

_SETTINGS: tuple[tuple[Setting, str], ...] = (
    ("fresh", "new rows for every update"),
    ("reuse", "the same rows for all updates"),
    ("online", "one row at a time, a mixture of predictors"),
)


def run(options: argparse.Namespace) -> int:
    """Print updates and sample sizes."""
    if (options.vc is None) == (options.groups is None):
        raise WrongUsage("Give either --groups N (the number of subpopulations) or --vc N (their VC dimension).")
    try:
        text = _text(parse_notion(options.notion or "degree-2"), options)
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
        size = {"vc": options.vc, "n_subpopulations": options.groups}
        kind = {"n_classes": options.classes, "beta": options.beta}
        other = compare(options.alpha, degree=notion.degree, **size, **kind)
        parts.append(f"\nWhat other notions would cost for the same: {other}")
    return "\n".join(parts)


def _updates(notion: Notion, options: argparse.Namespace) -> str:
    """Describe how many updates Algorithm 1 can make (Lemma 5.3)."""
    kind = (notion, options.alpha, options.classes)
    lines = [
        ("from the uniform prediction", f"{iterations(*kind):,}"),
        ("from any predictor", f"{iterations(*kind, start='any'):,}"),
        ("with the constants of the paper", f"{iterations(*kind, constants='paper'):,}"),
    ]
    return table("Updates of Algorithm 1, at most", lines)


def _rows(notion: Notion, options: argparse.Namespace) -> str:
    """Describe how many rows are enough."""
    kind = {"n_classes": options.classes, "beta": options.beta}
    if options.vc is not None:
        size = sample_size(notion, options.alpha, vc=options.vc, **kind)
        lines = [("order of growth (the constant is not known)", show_rows(size.rows))]
        return table("\nRows", [*lines, (f"  {size.formula}; {size.reference}", "")])
    kind["n_subpopulations"] = options.groups
    lines = [
        (name, show_rows(sample_size(notion, options.alpha, setting=setting, **kind).rows))
        for setting, name in _SETTINGS
    ]
    return table("\nRows that are enough (proved)", lines)


def _audit(notion: Notion, options: argparse.Namespace) -> str:
    """Describe how many held-out rows an audit needs."""
    kind = {"n_classes": options.classes, "beta": options.beta, "rate": options.rate}
    given = (notion, options.alpha, options.groups)
    lines = [
        ("bootstrap (default)", show_rows(audit_rows(*given, **kind))),
        ("bernstein: for any n", show_rows(audit_rows(*given, method="bernstein", **kind))),
    ]
    head = f"\nHeld-out rows to certify alpha for a perfect model, base rate {options.rate:g}, 80% power"
    return table(head, lines)


def table(head: str, lines: Sequence[tuple[str, str]]) -> str:
    """Return a heading and two columns.

    >>> print(table("Rows", [("few", "10"), ("many", "1,000")]))
    Rows
      few      10
      many  1,000
    """
    wide, far = (max(len(line[k]) for line in lines) for k in (0, 1))
    return "\n".join([head, *(f"  {name:<{wide}}  {value:>{far}}".rstrip() for name, value in lines)])
