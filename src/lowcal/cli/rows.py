"""The rows of a file as the library takes them: labels, probabilities, columns of the subpopulations, weights."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from lowcal.cli.labels import Labels, choose_classes, encode_labels, places_of
from lowcal.cli.talk import say, showing
from lowcal.cli.usage import WrongUsage
from lowcal.data.errors import InvalidInput, sentence
from lowcal.data.files.batches import Batch as Columns
from lowcal.data.files.batches import Batches, for_frames
from lowcal.data.files.columns import MOST_TEXTS, Recalled, Survey, lacks, place, read_numbers, survey, typed
from lowcal.data.files.delimited import count
from lowcal.data.files.kinds import MISSING, Kind, factorise, numbers
from lowcal.data.files.opening import Source, find_column, open_table
from lowcal.data.files.paths import STREAM
from lowcal.data.inputs import RANGE_TOLERANCE, SUM_TOLERANCE
from lowcal.data.progress import Passes
from lowcal.kernels.simplex import FloatArray
from lowcal.rows.reading import Sampling
from lowcal.solve.homes import is_far
from lowcal.subpopulations import Groups, Intersections, Linear, Subpopulations, Trees

#: The columns of labels, probabilities and weights that the library is given, by names that no column of a file has.
LABEL, PROBABILITY, WEIGHT = "--label", "--probability", "--weight"
#: This many different labels are looked at.
MOST_LABELS = 1 << 16


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a file as the library takes them: a table or a source `X`, and the names of its columns.

    The label is a position in `classes`; `probability` has the columns of each set of probabilities asked for.
    """

    roles: Roles
    X: object
    classes: tuple[Any, ...] | None
    probability: tuple[str | list[str], ...]
    #: The number of rows that are used, and of those that there are.
    n: int
    n_in_file: int

    @property
    def weight(self) -> str | None:
        """The column of weights, if there is one."""
        return None if self.roles.weight is None else WEIGHT

    @property
    def sampled(self) -> dict[str, Any]:
        """What JSON outputs say of the sample; nothing if all rows are used."""
        return {"sampled": {"rows": self.n, "of": self.n_in_file}} if self.n < self.n_in_file else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What texts say of the sample; nothing if all rows are used."""
        note = f"only a random sample of {self.n:,} of the {self.n_in_file:,} rows was used (--sample)."
        return (note,) if self.sampled else ()


def read_rows(options: argparse.Namespace, source: Source, roles: Roles) -> Rows:
    """Check all rows, find their classes and what their columns are, and return how the library reads them."""
    checks, recalled = Checks(source, roles), Recalled(source, roles.places)
    with showing(options, "reading", source) as bar:
        found = survey(recalled, roles.unknown, partial(checks, bar), MOST_TEXTS)
    if found.n == 0:
        raise InvalidInput(f"{source.shown} has a header but no rows; give at least one row.")
    given = _convert(options, roles, Labels(roles.label, checks.values(found.kinds.get(roles.label))))
    rows = Batches(
        source.shown, partial(_tables, recalled, found, given), lambda: (found.n, found.n * len(roles.places))
    )
    X, n = (rows, found.n) if options.sample is None else _sample(rows, options)
    if X is rows and is_far(found.n, len(roles.places), len(roles.probability[0])):
        _check_far(options, source, roles)
    read = Rows(roles, X, given.classes, given.probability, n, found.n)
    for note in read.notes:
        say(f"lowcal: {note}")
    return read


def _sample(rows: Batches, options: argparse.Namespace) -> tuple[Columns, int]:
    """Return a random sample of the rows in memory."""
    sample = Sampling(options.seed or 0, options.sample)
    for batch in rows.read(None):
        sample.add(batch, len(batch))
    kept = sample.rows()
    return {name: for_frames(column) for name, column in kept.items()}, len(kept[LABEL])


class Checks:
    """Checks probabilities and weights of all rows, and notes the first row of each label."""

    def __init__(self, source: Source, roles: Roles) -> None:
        self.source, self.roles = source, roles
        self.labels: dict[Any, int] = {}

    def __call__(self, bar: Passes, arrays: Mapping[str, Any], before: int, n_read: int) -> None:
        """Look at a batch."""
        self._note(arrays[self.roles.label], before)
        for names in self.roles.probability:
            columns = [read_numbers(arrays[name], self.source.decimal, name, before) for name in names]
            check_probabilities(names, columns, before)
        name = self.roles.weight
        if name is not None:
            _check_weight(name, read_numbers(arrays[name], self.source.decimal, name, before), before)
        bar.add(n_read)

    def _note(self, labels: Any, before: int) -> None:
        """Note labels that are new; of many different numbers only some."""
        distinct, places = factorise(labels, self.roles.label)
        occurring, first = np.unique(places, return_index=True)
        for value, row in zip([[*distinct, None][k] for k in occurring.tolist()], first.tolist(), strict=True):
            if value not in self.labels and (len(self.labels) < MOST_LABELS or value in (None, *MISSING)):
                self.labels[value] = before + row

    def values(self, kind: Kind | None) -> list[Any]:
        """Return the labels as values of their kind, or refuse the first that is missing or infinite."""
        values = list(self.labels)
        if self.source.decimal is not None:
            import pyarrow as pa

            values = typed(pa.array(values, pa.string()), kind, self.source.decimal).to_pylist()
        for value, row in zip(values, self.labels.values(), strict=True):
            if value is None or value != value:
                raise lacks(self.roles.label, row)
            if not isinstance(value, str | bool | int | float | Decimal):
                raise InvalidInput(
                    f"{place(self.roles.label, row)}: {value!r} is neither text nor a number; convert it."
                )
            if value in (np.inf, -np.inf):
                raise InvalidInput(f"{place(self.roles.label, row)}: the label is infinite. Correct or drop the row.")
        return [float(value) if isinstance(value, Decimal) else value for value in values]


@dataclass(frozen=True, eq=False)
class Conversion:
    """Makes the library's table of gathered columns: labels as positions, probabilities in the order of the classes."""

    roles: Roles
    classes: tuple[Any, ...] | None
    #: Which class each column of each set of probabilities refers to.
    places: tuple[tuple[int, ...], ...]

    @property
    def probability(self) -> tuple[str | list[str], ...]:
        """The names of the columns of each set of probabilities."""
        names = [[f"{PROBABILITY} {s} {k}" for k in range(len(places))] for s, places in enumerate(self.places)]
        return tuple(each if len(each) > 1 else each[0] for each in names)

    def table(self, arrays: Mapping[str, Any], kinds: Mapping[str, Kind | None], decimal: str | None) -> Columns:
        """Return the table of a batch of the file."""
        roles = self.roles
        label = typed(arrays[roles.label], kinds.get(roles.label), decimal)
        table = {LABEL: encode_labels(label, self.classes)}
        for s, (names, places) in enumerate(zip(roles.probability, self.places, strict=True)):
            p = arrange([numbers(arrays[name], decimal) for name in names], places)
            table |= {f"{PROBABILITY} {s} {k}": p if p.ndim == 1 else p[:, k] for k in range(len(names))}
        if roles.weight is not None:
            table[WEIGHT] = numbers(arrays[roles.weight], decimal)
        for name in roles.columns:
            kind = Kind.TEXT if name in roles.categorical else kinds.get(name)
            table[name] = typed(arrays[name], kind, decimal)
        return table


def _convert(options: argparse.Namespace, roles: Roles, labels: Labels) -> Conversion:
    """Find the classes, and which of them each probability refers to."""
    first, *more = roles.probability
    named = split_classes(options.classes, labels.found, len(first))
    classes = choose_classes(labels, first, named, options.positive)
    of_columns = named if len(first) > 1 else None  # the classes of one column are those of its label
    own = tuple(range(len(first))) if len(first) > 1 else (1,)
    return Conversion(roles, classes, (own, *(_places(one, first, classes, of_columns) for one in more)))


def _tables(rows: Recalled, found: Survey, given: Conversion, _: Sequence[str] | None) -> Iterator[Columns]:
    """Yield the rows of a file as the library takes them."""
    for batch in rows:
        yield given.table(dict(zip(rows.names, batch.columns, strict=True)), found.kinds, rows.source.decimal)


def _check_far(options: argparse.Namespace, source: Source, roles: Roles) -> None:
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
    if options.subpopulations not in ("groups", "trees"):
        raise InvalidInput(
            f"{source.shown} does not fit into memory, and --subpopulations {options.subpopulations} looks at all rows "
            "at once; use groups or trees, or a random sample of the rows with --sample."
        )


def open_source(options: argparse.Namespace, path: str) -> Any:
    """Open a table as the options say."""
    if path == STREAM and sys.stdin is None:
        raise WrongUsage("Standard input is closed; give a file, or pass one on with '<'.")
    form = {"form": options.input_format, "separator": options.separator}
    return open_table(path, **form, decimal=options.decimal, encoding=options.encoding)


@dataclass(frozen=True)
class Roles:
    """Which column plays which part; `categorical` are columns whose numbers are names."""

    label: str
    probability: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    weight: str | None
    categorical: frozenset[str]
    #: Where each column that plays a part is in the file.
    places: Mapping[str, int]

    @property
    def unknown(self) -> list[str]:
        """The columns whose kind is to be found out."""
        return [self.label, *(name for name in self.columns if name not in self.categorical)]


def find_roles(options: argparse.Namespace, source: Source, *more: Sequence[str]) -> Roles:
    """Say which columns are read, and as what."""
    sets = tuple(tuple(split_names(given, source.names)) for given in (options.probability, *more))
    numbers = list(dict.fromkeys([*(name for names in sets for name in names), *filter(None, [options.weight])]))
    taken = [options.label, *numbers]
    columns = _subpopulation_columns(options, source, taken)
    twice = [name for name in taken if name in columns or taken.count(name) > 1]
    if twice:
        raise WrongUsage(f"Column {twice[0]!r} was given two parts to play; each column has one.")
    text = split_names(options.categorical, source.names)
    places = {name: find_column(source, name) for name in (*taken, *columns, *text)}
    wanted = {name: places[name] for name in (*taken, *columns)}
    return Roles(options.label, sets, tuple(columns), options.weight, frozenset(text), wanted)


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


def arrange(columns: Sequence[FloatArray], places: Sequence[int]) -> FloatArray:
    """Return probabilities in the order of the classes; one column alone as that of the second class.

    >>> arrange([np.array([0.25]), np.array([0.75])], (1, 0)).tolist(), arrange([np.array([0.25])], (0,)).tolist()
    ([[0.75, 0.25]], [0.75])
    """
    if len(columns) == 1:
        return columns[0] if places[0] == 1 else 1.0 - columns[0]
    return np.column_stack([columns[k] for k in np.argsort(places)])


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


def _check_weight(name: str, weight: FloatArray, before: int) -> None:
    bad = ~((weight >= 0.0) & (weight < np.inf))
    if bad.any():
        row = int(bad.argmax())
        if np.isnan(weight[row]):
            raise lacks(name, before + row)
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
