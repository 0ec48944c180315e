"""The rows of a file as the library takes them: options name the columns, and a first pass checks every row."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.cli.labels import FileLabels, choose_classes, encode_labels, places_of
from lowcal.cli.terminal import WrongUsage, say, showing
from lowcal.data.errors import InvalidInput, sentence
from lowcal.data.files.batches import Batches, for_frames
from lowcal.data.files.tables import STREAM, FileTable, open_table
from lowcal.data.files.text import MISSING, Kind, cast, count, factorise, numbers, place
from lowcal.data.inputs import RANGE_TOLERANCE, SUM_TOLERANCE
from lowcal.kernels.simplex import FloatArray
from lowcal.rows.reading import Sampling
from lowcal.solve.homes import is_far
from lowcal.subpopulations import Groups, Intersections, Linear, Subpopulations, Trees

#: The columns of labels, probabilities and weights that the library is given, by names that no column of a file has.
LABEL, PROBABILITY, WEIGHT, FREQUENCY = "--label", "--probability", "--weight", "--frequency-weight"
#: This many different labels are looked at.
MOST_LABELS = 1 << 16
#: More different texts than this are identifiers, not groups.
MOST_TEXTS = 1_000_000
#: Options that ask a fit for a notion, a class, a target or a solver; without any of them cross-validation chooses.
ASKED = (
    *("notion", "alpha", "per_person", "min_share", "depth", "n_bins", "cuts", "min_mass", "subpopulations"),
    *("solver", "geometry", "validation_fraction", "max_updates"),
)


def open_file(options: argparse.Namespace) -> Any:
    """Open FILE as the options say."""
    if options.file == STREAM and sys.stdin is None:
        raise WrongUsage("Standard input is closed; give a file, or redirect one with '<'.")
    form = {"form": options.input_format, "separator": options.separator}
    return open_table(options.file, **form, decimal=options.decimal, encoding=options.encoding)


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the options of these names that were given; the others keep the library's defaults."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def is_open(options: argparse.Namespace) -> bool:
    """Whether a fit is asked for the best predictions and no more: neither a notion nor a class nor a target."""
    return options.command == "fit" and not (given(options, *ASKED) or options.no_guard)


# --- columns ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """The columns that the options name; `categorical` are columns whose numbers are names."""

    label: str
    probability: tuple[tuple[str, ...], ...]
    weight: str | None
    columns: tuple[str, ...]
    categorical: frozenset[str]
    frequency: str | None = None

    @property
    def numbers(self) -> list[str]:
        """The columns that must hold numbers, each once."""
        weights = tuple(name for name in (self.weight, self.frequency) if name is not None)
        return list(dict.fromkeys([name for names in (*self.probability, weights) for name in names]))

    @property
    def unknown(self) -> list[str]:
        """The columns whose kind is to be found out."""
        return [self.label, *(name for name in self.columns if name not in self.categorical)]


def _choose_columns(options: argparse.Namespace, table: FileTable, sets: Sequence[Sequence[str]]) -> Chosen:
    """Return the columns that are read, and as what."""
    probability = tuple(tuple(split_names(names, table.names)) for names in sets)
    categorical = frozenset(split_names(options.categorical, table.names))
    frequency = _frequency(options)
    taken = [options.label, *Chosen(options.label, probability, options.weight, (), categorical, frequency).numbers]
    by = [] if getattr(options, "by", None) is None else [options.by]
    columns = (*_subpopulation_columns(options, table, [*taken, *by]), *by)
    twice = [name for name in [*taken, *by] if (*taken, *columns).count(name) > 1]
    if twice:
        raise WrongUsage(f"Column {twice[0]!r} is named by two options; each column can have one use only.")
    table.require(*taken, *columns, *categorical)
    return Chosen(options.label, probability, options.weight, columns, categorical, frequency)


def _frequency(options: argparse.Namespace) -> str | None:
    """Return the column of counts, if there is one; refuse what needs single rows."""
    frequency: str | None = options.frequency_weight
    if frequency is not None and options.sample is not None:
        raise WrongUsage("--sample draws rows, not what they stand for; leave it out, or give no --frequency-weight.")
    if frequency is not None and is_open(options):
        raise WrongUsage(
            "Cross-validation needs single rows; with --frequency-weight, ask for one fit by --groups with "
            "--alpha or --notion."
        )
    return frequency


def split_names(given: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """Split names at commas, unless a name with commas is a column; each once.

    >>> split_names(["sex,race", "Hello, world"], ["sex", "race", "Hello, world"])
    ['sex', 'race', 'Hello, world']
    """
    parts = [[one] if one in names else [part.strip() for part in one.split(",")] for one in given or ()]
    return list(dict.fromkeys(part for one in parts for part in one if part))


def split_classes(given: Sequence[str] | None, known: Iterable[str], n: int) -> list[str] | None:
    """Split the classes of n columns at commas, unless each is given separately or one of the names has commas.

    >>> split_classes(["a,b", "c"], [], 3), split_classes(["a,b", "c"], [], 2), split_classes(["a,b", "c"], ["a,b"], 3)
    (['a', 'b', 'c'], ['a,b', 'c'], ['a,b', 'c'])
    """
    if given is None:
        return None
    return list(given) if len(given) == n > 1 else split_names(given, list(known))


def _subpopulation_columns(options: argparse.Namespace, table: FileTable, taken: Sequence[str]) -> list[str]:
    """Return the columns that the subpopulations are functions of."""
    groups, features = (split_names(names, table.names) for names in (options.groups, options.features))
    rest = [name for name in table.names if name and name not in taken]
    if is_open(options):
        return list(dict.fromkeys([*groups, *features])) or rest
    if options.subpopulations in ("trees", "linear"):
        if groups:
            raise WrongUsage(f"--groups goes with --subpopulations groups; {options.subpopulations} use --features.")
        return features or rest
    if features:
        raise WrongUsage("--features goes with --subpopulations trees or linear; groups are named by --groups.")
    if not groups:
        raise WrongUsage(sentence(f"Name the columns that define the groups: --groups {','.join(rest) or 'A,B'}"))
    return groups


def subpopulations_of(options: argparse.Namespace, columns: Sequence[str]) -> Subpopulations:
    """Return the hypothesis class that the options describe."""
    names = list(columns)
    if options.subpopulations == "linear":
        return Linear(names)
    if options.subpopulations == "trees":
        return Trees(options.depth or 3, names, **given(options, "min_mass"))
    size, cuts = given(options, "n_bins", "min_mass"), dict(options.cuts or ())
    strange = next((name for name in cuts if name not in names), None)
    if strange is not None:
        raise WrongUsage(f"--cuts names {strange!r}, which is no column of --groups; add it there.")
    chosen: Any = {name: cuts.get(name) for name in names} if cuts else names
    return Intersections(chosen, depth=options.depth, **size) if (options.depth or 1) > 1 else Groups(chosen, **size)


# --- rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FileRows:
    """The rows of a file as the library takes them: a table or a source `X`, and the names of its columns.

    The label is a position in `classes`; `probability` has the columns of each set of probabilities asked for.
    """

    chosen: Chosen
    X: object
    classes: tuple[Any, ...] | None
    probability: tuple[str | list[str], ...]
    #: The number of rows that are used, and of those that there are.
    n: int
    n_in_file: int

    @property
    def weight(self) -> str | None:
        """The column of weights, if there is one."""
        return None if self.chosen.weight is None else WEIGHT

    @property
    def frequency(self) -> str | None:
        """The column of counts, if there is one."""
        return None if self.chosen.frequency is None else FREQUENCY

    @property
    def sampled(self) -> dict[str, Any]:
        """The sample as JSON outputs record it; nothing if all rows are used."""
        return {"sampled": {"rows": self.n, "of": self.n_in_file}} if self.n < self.n_in_file else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """The sample in words; nothing if all rows are used."""
        note = f"only a random sample of {self.n:,} of the {self.n_in_file:,} rows was used (--sample)."
        return (note,) if self.sampled else ()


def read_rows(options: argparse.Namespace, table: FileTable, *against: Sequence[str]) -> FileRows:
    """Check all rows, find their classes and what their columns hold, and return how the library reads them."""
    chosen = _choose_columns(options, table, (options.probability, *against))
    n, kinds, labels = _survey(options, table, chosen)
    classes, places = _classes_of(options, chosen, labels)
    rows = Batches(table.shown, lambda _: _convert(table, chosen, kinds, classes, places), lambda: (n, n * len(kinds)))
    X, n_used = (rows, n) if options.sample is None else _sample(rows, options)
    if X is rows and is_far(n, len(kinds), len(chosen.probability[0])):
        _check_far(options, table, chosen)
    names = [[f"{PROBABILITY} {s} {k}" for k in range(len(one))] for s, one in enumerate(places)]
    found = FileRows(chosen, X, classes, tuple(each if len(each) > 1 else each[0] for each in names), n_used, n)
    for note in found.notes:
        say(f"lowcal: {note}")
    return found


def _survey(
    options: argparse.Namespace, table: FileTable, chosen: Chosen
) -> tuple[int, dict[str, Kind | None], FileLabels]:
    """Check all rows; return their number, what each column holds, and the labels."""
    seen: dict[Any, int] = {}

    def look(arrays: Mapping[str, Any], before: int) -> None:
        _note_labels(seen, arrays[chosen.label], chosen.label, before)
        read = {name: numbers(arrays[name], table.decimal, name, before) for name in chosen.numbers}
        for names in chosen.probability:
            check_probabilities(names, [read[name] for name in names], before)
        if chosen.weight is not None:
            w = read[chosen.weight]
            _refuse(~((w >= 0.0) & (w < np.inf)), chosen.weight, w, before, "the weight {:g} is negative or infinite.")

    others = [*chosen.numbers, *(name for name in chosen.columns if name in chosen.categorical)]
    with showing(options, "reading", table) as bar:
        n, kinds = table.survey(chosen.unknown, others, look, bar.add, MOST_TEXTS)
    if n == 0:
        raise InvalidInput(f"{table.shown} has a header but no rows; give at least one row.")
    values = _label_values(seen, kinds[chosen.label], chosen.label, table.decimal)
    for name in others:
        kinds[name] = Kind.TEXT if name in chosen.columns else None if table.text is None else Kind.NUMBER
    return n, kinds, FileLabels(chosen.label, values)


def _convert(
    table: FileTable,
    chosen: Chosen,
    kinds: Mapping[str, Kind | None],
    classes: tuple[Any, ...] | None,
    places: Sequence[Sequence[int]],
) -> Iterator[dict[str, Any]]:
    """Yield the library's tables: labels as positions, probabilities in the order of the classes."""
    for batch in table.typed(kinds):
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        made = {LABEL: encode_labels(arrays[chosen.label], classes)}
        for s, names in enumerate(chosen.probability):
            p = arrange([numbers(arrays[name]) for name in names], places[s])
            made |= {f"{PROBABILITY} {s} {k}": p if p.ndim == 1 else p[:, k] for k in range(len(names))}
        if chosen.weight is not None:
            made[WEIGHT] = numbers(arrays[chosen.weight])
        if chosen.frequency is not None:
            made[FREQUENCY] = numbers(arrays[chosen.frequency])
        yield made | {name: arrays[name] for name in chosen.columns}


def _sample(rows: Batches, options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Return a random sample of the rows in memory."""
    sample = Sampling(options.seed or 0, options.sample)
    for batch in rows.read(None):
        sample.add(batch, len(batch))
    kept = sample.rows()
    return {name: for_frames(column) for name, column in kept.items()}, len(kept[LABEL])


def _check_far(options: argparse.Namespace, table: FileTable, chosen: Chosen) -> None:
    """Refuse what needs all rows in memory."""
    if is_open(options):
        what, instead = "cross-validation", "ask for one fit by --groups with --alpha or --notion"
    elif len(chosen.probability) > 1:
        what, instead = "--against", "audit one probability after the other"
    elif options.subpopulations == "linear":
        what, instead = "--subpopulations linear", "use groups or trees"
    elif getattr(options, "by", None) is not None:
        what, instead = "--by", "give fewer windows"
    else:
        return
    raise InvalidInput(
        f"{table.shown} does not fit into memory, which {what} needs; {instead}, or use a random sample of the rows "
        "with --sample."
    )


# --- labels and probabilities -------------------------------------------------------------------------------------


def _note_labels(seen: dict[Any, int], labels: Any, name: str, before: int) -> None:
    """Note the first row of labels that are new; of many different numbers only some."""
    distinct, places = factorise(labels, name)
    occurring, first = np.unique(places, return_index=True)
    for value, row in zip([[*distinct, None][k] for k in occurring.tolist()], first.tolist(), strict=True):
        if value not in seen and (len(seen) < MOST_LABELS or value in (None, *MISSING)):
            seen[value] = before + row


def _label_values(seen: Mapping[Any, int], kind: Kind | None, name: str, decimal: str | None) -> list[Any]:
    """Return the labels as values of their kind, or refuse the first that is missing or infinite."""
    import pyarrow as pa

    values = list(seen) if decimal is None else cast(pa.array(list(seen), pa.string()), kind, decimal).to_pylist()
    for value, row in zip(values, seen.values(), strict=True):
        if value is None or value != value:
            raise _missing(name, row)
        if not isinstance(value, str | bool | int | float | Decimal):
            raise InvalidInput(f"{place(name, row)}: {value!r} is neither text nor a number; convert it.")
        if value in (np.inf, -np.inf):
            raise InvalidInput(f"{place(name, row)}: the label is infinite. Correct or drop the row.")
    return [float(value) if isinstance(value, Decimal) else value for value in values]


def _classes_of(
    options: argparse.Namespace, chosen: Chosen, labels: FileLabels
) -> tuple[tuple[Any, ...] | None, list[tuple[int, ...]]]:
    """Return the classes, and which of them each column of each set of probabilities refers to."""
    first, *more = chosen.probability
    named = split_classes(options.classes, labels.found, len(first))
    classes = choose_classes(labels, first, named, options.positive)
    start = 1 if len(first) == 1 else 0
    places = [tuple(range(start, start + len(first)))]
    for names in more:
        known = (0, 1) if classes is None else classes
        check_number("--against", names, len(known), "The file has")
        # the classes of one column are those of its label
        of_columns = named if len(names) == len(first) > 1 else None
        before = {name: k for k, name in enumerate(first, start)}
        places.append(places_of(names, known, before, of_columns, "--against"))
    return classes, places


def check_number(option: str, names: Sequence[str], n_classes: int, who: str) -> None:
    """Refuse probability columns that are neither one of each class nor, for two classes, a single one."""
    if len(names) != n_classes and (len(names), n_classes) != (1, 2):
        raise WrongUsage(f"{who} {n_classes} classes, but {option} names {count(len(names), 'probability column')}.")


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
    why = "{:.8g} is not a probability. Give numbers in [0, 1], not scores, logits or percentages."
    for name, p in zip(names, columns, strict=True):
        _refuse(~((p >= -RANGE_TOLERANCE) & (p <= 1.0 + RANGE_TOLERANCE)), name, p, before, why)
    sums = np.sum(columns, axis=0)
    off = np.abs(sums - 1.0) > SUM_TOLERANCE
    if len(names) > 1 and off.any():
        row = int(off.argmax())
        raise InvalidInput(
            f"Row {before + row + 1}: the probabilities {', '.join(names)} sum to {sums[row]:.6g}, not to 1. Give the "
            "columns of all classes."
        )


def _refuse(bad: NDArray[np.bool_], name: str, values: FloatArray, before: int, why: str) -> None:
    """Refuse the first row that is bad, if there is one; a missing value as such."""
    if bad.any():
        row = int(bad.argmax())
        if np.isnan(values[row]):
            raise _missing(name, before + row)
        raise InvalidInput(f"{place(name, before + row)}: {why.format(values[row])}")


def _missing(name: str, row: int) -> InvalidInput:
    return InvalidInput(f"{place(name, row)}: the value is missing. Fill it in or drop the row.")
