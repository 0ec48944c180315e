"""Rows of a file that does not fit into memory: checked in one pass, then read again by the fit, batch by batch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from lowcal.commands.labels import encode_labels, read_labels, values_of
from lowcal.commands.lean import array_of
from lowcal.commands.rows import Roles, Rows, gather_rows, is_open, split_classes
from lowcal.errors import InvalidInput
from lowcal.files.columns import Wanted, columns_of
from lowcal.files.delimited import Delimited
from lowcal.files.opening import Source, find_column
from lowcal.homes import is_far

#: The columns of labels, probabilities and weights, by names that no column of a file has.
LABEL, PROBABILITY, WEIGHT = "--label", "--probability", "--weight"


def is_too_large(options: argparse.Namespace, source: Source, roles: Roles) -> bool:
    """Whether the rows of a fit do not fit into memory; their number is estimated from the first batch."""
    if options.sample is not None:
        return False
    # Arrow reads ahead: how far the file was read says nothing of the rows
    plain = replace(source, engine="python") if isinstance(source, Delimited) else source
    first = next(iter(plain.batches(range(len(source.names)))), None)
    if first is None:
        return False
    n_rows = source.size * first.n_rows // max(1, first.position)
    return is_far(n_rows, len(roles.wanted), len(roles.probability[0]))


def read_far(options: argparse.Namespace, source: Source, roles: Roles) -> Rows:
    """Check all rows and find their classes; return how they are read."""
    _check_asked(options, source, roles)
    gathered = gather_rows(options, source, roles, distinct=roles.label)
    found = gathered.columns
    named = split_classes(options.classes, values_of(found[roles.label]), len(roles.probability[0]))
    classes = read_labels(found[roles.label], roles.probability[0], named, options.positive).classes
    wanted = tuple(replace(one, kind=found[one.name].kind) for one in roles.wanted)
    p = [f"{PROBABILITY} {k}" for k in range(len(roles.probability[0]))]
    return Rows(
        LABEL,
        (p[0] if len(p) == 1 else p,),
        partial(_tables, source, roles, wanted, classes),
        None if roles.weight is None else WEIGHT,
        classes,
        roles.columns,
        roles.probability,
        gathered.n_in_file,
        gathered.n_in_file,
    )


def _check_asked(options: argparse.Namespace, source: Source, roles: Roles) -> None:
    """Refuse what needs all rows in memory."""
    if is_open(options):
        raise InvalidInput(
            f"{source.shown} does not fit into memory, which cross-validation needs to choose; ask for one fit by "
            "--groups with --alpha or --notion, or use a random sample of the rows with --sample."
        )
    if len(roles.probability) > 1:
        raise InvalidInput(
            f"{source.shown} does not fit into memory, which --against needs; audit one probability after the "
            "other, or use a random sample of the rows with --sample."
        )
    known = ("groups", "trees") if hasattr(options, "unasked") else ("groups",)  # a fit, or an audit
    if options.subpopulations not in known:
        raise InvalidInput(
            f"{source.shown} does not fit into memory, and --subpopulations {options.subpopulations} looks at all rows "
            f"at once; use {' or '.join(known)}, or a random sample of the rows with --sample."
        )


def _tables(
    source: Source, roles: Roles, wanted: tuple[Wanted, ...], classes: tuple[Any, ...] | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows, labels as positions in the classes."""
    for batch in source.batches([find_column(source, one.name) for one in wanted]):
        columns = columns_of(batch, wanted)
        table = {LABEL: encode_labels(columns[roles.label], classes)}
        table |= {f"{PROBABILITY} {k}": array_of(columns[name]) for k, name in enumerate(roles.probability[0])}
        if roles.weight is not None:
            table[WEIGHT] = array_of(columns[roles.weight])
        yield table | {name: array_of(columns[name]) for name in roles.columns}
