"""The rows of a file as the library takes them: labels, probabilities, columns of the subpopulations, weights."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.commands.bar import Bar, is_wanted
from lowcal.commands.labels import places_of, read_labels, values_of
from lowcal.commands.lean import table_of
from lowcal.commands.talk import say
from lowcal.commands.usage import WrongUsage
from lowcal.errors import InvalidInput, sentence
from lowcal.files.columns import Gathered, Wanted, gather, lacks, place
from lowcal.files.delimited import count
from lowcal.files.fields import Kind
from lowcal.files.opening import STREAM, Source, find_column, open_table
from lowcal.files.stored import is_stored, open_stored
from lowcal.inputs import RANGE_TOLERANCE, SUM_TOLERANCE
from lowcal.simplex import FloatArray
from lowcal.subpopulations import Groups, Intersections, Linear, Subpopulations, Trees


@dataclass(frozen=True, eq=False)
class Rows:
    """What a file holds: `y` are positions in `classes`, `columns` make the subpopulations.

    `probability` has an array, and `names` the names, for each set of probability columns asked for. Of rows that do
    not fit into memory, `X` is a function that reads them, and `y`, `probability` and `weight` name its columns.
    """

    y: NDArray[Any] | str
    probability: tuple[Any, ...]
    X: object
    weight: FloatArray | str | None
    classes: tuple[Any, ...] | None
    columns: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    #: The number of rows that are used, and of those that there are.
    n: int
    n_in_file: int

    @property
    def sampled(self) -> dict[str, Any]:
        """What JSON outputs say of the sample; nothing if all rows are used."""
        return {"sampled": {"rows": self.n, "of": self.n_in_file}} if self.n < self.n_in_file else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What texts say of the sample; nothing if all rows are used."""
        note = f"only a random sample of {self.n:,} of the {self.n_in_file:,} rows was used (--sample)."
        return (note,) if self.sampled else ()


def read_near(options: argparse.Namespace, source: Source, roles: Roles) -> Rows:
    """Read the rows into memory."""
    rows = _rows(options, roles, gather_rows(options, source, roles))
    for note in rows.notes:
        say(f"lowcal: {note}")
    return rows


def gather_rows(options: argparse.Namespace, source: Source, roles: Roles, distinct: str | None = None) -> Gathered:
    """Read the columns that play a part, checked."""
    kept = {"most_rows": options.sample, "seed": options.seed or 0, "distinct": distinct}
    with Bar(f"reading {source.shown}", source.size, is_wanted(options)) as bar:
        return gather(source, roles.wanted, check=roles.check, tell=bar.tell, **kept)


def open_source(options: argparse.Namespace, path: str) -> Any:
    """Open a table as the options say."""
    if path == STREAM and sys.stdin is None:
        raise WrongUsage("Standard input is closed; give a file, or pass one on with '<'.")
    if options.input_format in (None, "parquet") and is_stored(path):
        return open_stored(path)
    return open_table(
        path,
        form=options.input_format,
        separator=options.separator,
        decimal=options.decimal,
        encoding=options.encoding,
    )


@dataclass(frozen=True)
class Roles:
    """Which column plays which part."""

    label: str
    probability: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    weight: str | None
    wanted: tuple[Wanted, ...]

    def check(self, numbers: Mapping[str, FloatArray], before: int) -> None:
        """Refuse labels, probabilities and weights that are none."""
        if self.label in numbers:
            _check_label(self.label, numbers[self.label], before)
        for names in self.probability:
            check_probabilities(names, [numbers[name] for name in names], before)
        if self.weight is not None:
            _check_weight(self.weight, numbers[self.weight], before)


def find_roles(options: argparse.Namespace, source: Source, *more: Sequence[str]) -> Roles:
    """Say which columns are read, and as what."""
    sets = tuple(tuple(split_names(given, source.names)) for given in (options.probability, *more))
    numbers = list(dict.fromkeys([*(name for names in sets for name in names), *filter(None, [options.weight])]))
    taken = [options.label, *numbers]
    columns = _subpopulation_columns(options, source, taken)
    twice = [name for name in taken if name in columns or taken.count(name) > 1]
    if twice:
        raise WrongUsage(f"Column {twice[0]!r} was given two parts to play; each column has one.")
    text = set(split_names(options.categorical, source.names))
    wanted = [Wanted(options.label, None, is_required=True)]
    wanted += [Wanted(name, Kind.NUMBER, is_required=True) for name in numbers]
    wanted += [Wanted(name, Kind.TEXT if name in text else None) for name in columns]
    for one in (*wanted, *(Wanted(name) for name in text)):
        find_column(source, one.name)
    return Roles(options.label, sets, tuple(columns), options.weight, tuple(wanted))


def split_names(given: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """Split names at commas, unless a name with commas is a column; each once.

    >>> split_names(["sex,race", "Hello, world"], ["sex", "race", "Hello, world"])
    ['sex', 'race', 'Hello, world']
    """
    parts = [[one] if one in names else [part.strip() for part in one.split(",")] for one in given or ()]
    return list(dict.fromkeys(part for one in parts for part in one if part))


def split_classes(given: Sequence[str] | None, known: Iterable[str], n: int) -> list[str] | None:
    """Split the classes of n columns at commas, unless each is given by itself or the name of one has commas.

    >>> split_classes(["a,b", "c"], [], 3), split_classes(["a,b", "c"], [], 2), split_classes(["a,b", "c"], ["a,b"], 3)
    (['a', 'b', 'c'], ['a,b', 'c'], ['a,b', 'c'])
    """
    if given is None:
        return None
    return list(given) if len(given) == n > 1 else split_names(given, list(known))


def _subpopulation_columns(options: argparse.Namespace, source: Source, taken: Sequence[str]) -> list[str]:
    """Return the columns that the subpopulations are functions of."""
    groups, features = (split_names(given, source.names) for given in (options.groups, options.features))
    if is_open(options):
        return list(dict.fromkeys([*groups, *features])) or [n for n in source.names if n and n not in taken]
    if options.subpopulations == "groups":
        if features:
            raise WrongUsage("--features goes with --subpopulations trees or linear; groups are named by --groups.")
        if not groups:
            rest = ",".join(name for name in source.names if name and name not in taken)
            raise WrongUsage(
                sentence(f"Say which columns make the groups: --groups with some of {rest or 'the columns'}")
            )
        return groups
    if groups:
        raise WrongUsage(f"--groups goes with --subpopulations groups; {options.subpopulations} use --features.")
    return features or [name for name in source.names if name and name not in taken]


def _rows(options: argparse.Namespace, roles: Roles, gathered: Gathered) -> Rows:
    columns = gathered.columns
    first, *more = roles.probability
    named = split_classes(options.classes, values_of(columns[roles.label]), len(first))
    labels = read_labels(columns[roles.label], first, named, options.positive)
    places = [tuple(range(len(first))) if len(first) > 1 else (1,)]
    of_columns = named if len(first) > 1 else None  # the classes of one column are those of its label
    places += [_places(one, first, labels.classes, of_columns) for one in more]
    probability = tuple(
        arrange([columns[name].values for name in names], order)
        for names, order in zip(roles.probability, places, strict=True)
    )
    weight = None if roles.weight is None else columns[roles.weight].values.astype(np.float64)
    X = table_of([columns[name] for name in roles.columns], gathered.n_rows)
    n = gathered.n_rows, gathered.n_in_file
    return Rows(labels.y, probability, X, weight, labels.classes, roles.columns, roles.probability, *n)


def _places(
    given: Sequence[str], first: Sequence[str], classes: Sequence[Any] | None, named: Sequence[str] | None
) -> tuple[int, ...]:
    """Return the class of each column of --against."""
    classes = (0, 1) if classes is None else classes
    check_number("--against", given, len(classes), "The file has")
    known = {name: k for k, name in enumerate(first, 1 if len(first) == 1 else 0)}
    return places_of(given, classes, known, named if len(given) == len(first) else None, "--against")


def check_number(option: str, given: Sequence[str], n_classes: int, who: str) -> None:
    """Refuse probability columns that are neither one of each class nor, for two classes, a single one."""
    if len(given) != n_classes and (len(given), n_classes) != (1, 2):
        columns = count(len(given), "probability column")
        raise WrongUsage(f"{who} {n_classes} classes, but {columns} were given with {option}.")


def arrange(columns: Sequence[NDArray[Any]], places: Sequence[int]) -> FloatArray:
    """Return probabilities in the order of the classes; one column alone as that of the second class.

    >>> arrange([np.array([0.25]), np.array([0.75])], (1, 0)).tolist(), arrange([np.array([0.25])], (0,)).tolist()
    ([[0.75, 0.25]], [0.75])
    """
    if len(columns) == 1:
        alone = columns[0].astype(np.float64, copy=False)
        return alone if places[0] == 1 else 1.0 - alone
    return np.column_stack([columns[k] for k in np.argsort(places)]).astype(np.float64)


def check_probabilities(names: Sequence[str], columns: Sequence[FloatArray], before: int) -> None:
    """Refuse what is not a probability, or rows of several that do not sum to one."""
    for name, p in zip(names, columns, strict=True):
        bad = ~((p >= -RANGE_TOLERANCE) & (p <= 1.0 + RANGE_TOLERANCE))
        if bad.any():
            row = int(bad.argmax())
            if np.isnan(p[row]):
                raise lacks(name, before + row)
            raise InvalidInput(
                f"{place(name, before + row)}: {p[row]:.8g} is not a probability. Give numbers in [0, 1], not scores, "
                "logits or percentages."
            )
    if len(names) > 1:
        sums = np.sum(columns, axis=0)
        off = np.abs(sums - 1.0) > SUM_TOLERANCE
        if off.any():
            row = int(off.argmax())
            raise InvalidInput(
                f"Row {before + row + 1}: the probabilities {', '.join(names)} sum to {sums[row]:.6g}, not to 1. Give "
                "the columns of all classes."
            )


def _check_label(name: str, label: FloatArray, before: int) -> None:
    bad = np.isinf(label)
    if bad.any():
        raise InvalidInput(
            f"{place(name, before + int(bad.argmax()))}: the label is infinite. Correct or drop the row."
        )


def _check_weight(name: str, weight: FloatArray, before: int) -> None:
    bad = ~((weight >= 0.0) & (weight < np.inf))
    if bad.any():
        row = int(bad.argmax())
        raise InvalidInput(f"{place(name, before + row)}: the weight {weight[row]:g} is negative or infinite.")


def is_open(options: argparse.Namespace) -> bool:
    """Whether a fit is asked for the best predictions and no more: neither a notion nor a class nor a target."""
    unasked = getattr(options, "unasked", None)
    return unasked is not None and all(getattr(options, name) == value for name, value in unasked.items())


def subpopulations_of(options: argparse.Namespace, columns: Sequence[str]) -> Subpopulations:
    """Return the hypothesis class that the options describe."""
    names = list(columns)
    if options.subpopulations == "trees":
        return Trees(options.depth or 3, names, min_mass=options.min_mass)
    if options.subpopulations == "linear":
        return Linear(names)
    if (options.depth or 1) == 1:
        return Groups(names, n_bins=options.bins, min_mass=options.min_mass)
    return Intersections(names, depth=options.depth, n_bins=options.bins, min_mass=options.min_mass)
