"""The rows of a file as the library takes them: options name the columns, and a first pass checks every row.

It also finds the labels: which class each row has, and which class each probability refers to.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from os.path import commonprefix
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.cli.main import WrongUsage, say, showing
from lowcal.data.batches import Batches, for_frames
from lowcal.data.errors import InvalidInput, sentence, suggest
from lowcal.data.files import STREAM, FileTable, open_table
from lowcal.data.inputs import RANGE_TOLERANCE, SUM_TOLERANCE, code_labels, is_fraction, read_classes
from lowcal.data.text import MISSING, Kind, cast, count, factorise, numbers, place
from lowcal.kernels.simplex import FloatArray
from lowcal.rows.reading import Sampling
from lowcal.solve.homes import is_far
from lowcal.subpopulations import Groups, Intersections, Linear, Subpopulations, Trees

#: The columns of labels and probabilities that the library is given, by names that no column of a file has.
LABEL, PROBABILITY = "--label", "--probability"
#: Options that ask a fit for a target or a solver, as `multicalibrate` calls them.
TARGET = ("notion", "alpha", "per_person", "min_share", "solver", "geometry", "validation_fraction", "max_updates")

_ABSENT = "the value is missing. Fill it in or drop the row."


def open_file(options: argparse.Namespace) -> Any:
    """Open FILE as the options say."""
    if options.file == STREAM and sys.stdin is None:
        raise WrongUsage("Standard input is closed; give a file, or redirect one with '<'.")
    form = {"form": options.input_format, "separator": options.separator}
    return open_table(options.file, **form, decimal=options.decimal, encoding=options.encoding)


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the options of these names that were given; the others keep the library's defaults."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def is_automatic(options: argparse.Namespace) -> bool:
    """Whether cross-validation chooses the fit: no option asks for a notion, a class, a target or a solver."""
    subpopulations = ("depth", "n_bins", "cuts", "min_mass", "subpopulations")
    return options.command == "fit" and not (options.no_guard or given(options, *TARGET, *subpopulations))


# --- columns ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """The columns that the options name; `categorical` are columns whose numbers are names."""

    label: str
    probability: tuple[tuple[str, ...], ...]
    #: The library's keywords for weights, and the columns that hold them.
    weights: dict[str, str]
    #: The columns that must hold numbers, each once.
    numbers: list[str]
    columns: tuple[str, ...]
    categorical: frozenset[str]


def _choose_columns(options: argparse.Namespace, table: FileTable, sets: Sequence[Sequence[str]]) -> Chosen:
    """Return the columns that are read, and as what."""
    probability = tuple(tuple(split_names(names, table.names)) for names in sets)
    categorical = frozenset(split_names(options.categorical, table.names))
    if options.frequency_weight is not None and options.sample is not None:
        raise WrongUsage("--sample draws rows, not what they stand for; leave it out, or give no --frequency-weight.")
    if options.frequency_weight is not None and is_automatic(options):
        raise WrongUsage(
            "Cross-validation needs single rows; with --frequency-weight, ask for one fit by --groups with "
            "--alpha or --notion."
        )
    keywords = {"sample_weight": options.weight, "frequency_weight": options.frequency_weight}
    weights = {keyword: name for keyword, name in keywords.items() if name is not None}
    numbers = list(dict.fromkeys([name for names in (*probability, weights.values()) for name in names]))
    taken, by = [options.label, *numbers], [] if getattr(options, "by", None) is None else [options.by]
    columns = (*_subpopulation_columns(options, table, [*taken, *by]), *by)
    twice = [name for name in [*taken, *by] if (*taken, *columns).count(name) > 1]
    if twice:
        raise WrongUsage(f"Column {twice[0]!r} is named by two options; each column can have one use only.")
    table.require(*taken, *columns, *categorical)
    return Chosen(options.label, probability, weights, numbers, columns, categorical)


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
    if is_automatic(options):
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
    unknown = next((name for name in cuts if name not in names), None)
    if unknown is not None:
        raise WrongUsage(f"--cuts names {unknown!r}, which is no column of --groups; add it there.")
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
    #: The number of rows that are used.
    n: int
    #: The sample, for JSON outputs and as text; empty if all rows are used.
    sampled: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def weights(self) -> dict[str, str]:
        """The columns of weights, as keywords."""
        return {keyword: f"--{keyword}" for keyword in self.chosen.weights}


def read_rows(options: argparse.Namespace, table: FileTable, *against: Sequence[str]) -> FileRows:
    """Check all rows, find their classes and what their columns hold, and return how the library reads them."""
    chosen = _choose_columns(options, table, (options.probability, *against))
    n, kinds, labels = _survey(options, table, chosen)
    classes, places = _classes_of(options, chosen, labels)
    rows = Batches(table.shown, lambda _: _convert(table, chosen, kinds, classes, places), lambda: (n, n * len(kinds)))
    X: Any = rows
    used = n
    sampled: dict[str, dict[str, int]] = {}
    notes: tuple[str, ...] = ()
    if options.sample is not None:
        sample = Sampling(options.seed or 0, options.sample)
        for batch in rows.read(None):
            sample.add(batch, len(batch))
        X = {name: for_frames(column) for name, column in sample.rows().items()}
        used = len(X[LABEL])
    elif is_far(n, len(kinds), len(chosen.probability[0])):
        _check_far(options, table, chosen)
    if used < n:
        sampled = {"sampled": {"rows": used, "of": n}}
        notes = (f"only a random sample of {used:,} of the {n:,} rows was used (--sample).",)
        say(f"lowcal: {notes[0]}")
    names = [[f"{PROBABILITY} {s} {k}" for k in range(len(one))] for s, one in enumerate(places)]
    probability = tuple(each if len(each) > 1 else each[0] for each in names)
    return FileRows(chosen, X, classes, probability, used, sampled, notes)


def _survey(
    options: argparse.Namespace, table: FileTable, chosen: Chosen
) -> tuple[int, dict[str, Kind | None], FileLabels]:
    """Check all rows; return their number, what each column holds, and the labels."""
    seen: dict[Any, int] = {}

    def look(arrays: Mapping[str, Any], before: int) -> None:
        distinct, places = factorise(arrays[chosen.label], chosen.label)
        occurring, first = np.unique(places, return_index=True)
        for value, row in zip([[*distinct, None][k] for k in occurring.tolist()], first.tolist(), strict=True):
            # of many different numbers only some
            if value not in seen and (len(seen) < 1 << 16 or value in (None, *MISSING)):
                seen[value] = before + row
        read = {name: numbers(arrays[name], table.decimal, name, before) for name in chosen.numbers}
        for names in chosen.probability:
            check_probabilities(names, [read[name] for name in names], before)
        if (name := chosen.weights.get("sample_weight")) is not None:
            w = read[name]
            _refuse(~((w >= 0.0) & (w < np.inf)), name, w, before, "the weight {:g} is negative or infinite.")

    named = [name for name in chosen.columns if name in chosen.categorical]
    unknown = [chosen.label, *(name for name in chosen.columns if name not in chosen.categorical)]
    with showing(options, "reading", table) as bar:
        n, kinds = table.survey(unknown, [*chosen.numbers, *named], look, bar.add, most_texts=1_000_000)
    if n == 0:
        raise InvalidInput(f"{table.shown} has a header but no rows; give at least one row.")
    values = _label_values(seen, kinds[chosen.label], chosen.label, table.decimal)
    kinds |= dict.fromkeys(chosen.numbers, None if table.text is None else Kind.NUMBER)
    kinds |= dict.fromkeys(named, Kind.TEXT)
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
        made |= {f"--{keyword}": numbers(arrays[name]) for keyword, name in chosen.weights.items()}
        yield made | {name: arrays[name] for name in chosen.columns}


def _check_far(options: argparse.Namespace, table: FileTable, chosen: Chosen) -> None:
    """Refuse what needs all rows in memory."""
    in_memory = (
        (is_automatic(options), "cross-validation", "ask for one fit by --groups with --alpha or --notion"),
        (len(chosen.probability) > 1, "--against", "audit one probability after the other"),
        (options.subpopulations == "linear", "--subpopulations linear", "use groups or trees"),
        (getattr(options, "by", None) is not None, "--by", "give fewer windows"),
    )
    for is_wanted, what, instead in in_memory:
        if is_wanted:
            raise InvalidInput(
                f"{table.shown} does not fit into memory, which {what} needs; {instead}, or use a random sample of the "
                "rows with --sample."
            )


# --- probabilities ------------------------------------------------------------------------------------------------


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
        why = _ABSENT if np.isnan(values[row]) else why.format(values[row])
        raise InvalidInput(f"{place(name, before + row)}: {why}")


# --- labels -------------------------------------------------------------------------------------------------------


def _label_values(seen: Mapping[Any, int], kind: Kind | None, name: str, decimal: str | None) -> list[Any]:
    """Return the labels as values of their kind, or refuse the first that is missing or infinite."""
    import pyarrow as pa

    values = list(seen) if decimal is None else cast(pa.array(list(seen), pa.string()), kind, decimal).to_pylist()
    for value, row in zip(values, seen.values(), strict=True):
        if value is None or value != value:
            raise InvalidInput(f"{place(name, row)}: {_ABSENT}")
        if not isinstance(value, str | bool | int | float | Decimal):
            raise InvalidInput(f"{place(name, row)}: {value!r} is neither text nor a number; convert it.")
        if value in (np.inf, -np.inf):
            raise InvalidInput(f"{place(name, row)}: the label is infinite. Correct or drop the row.")
    return [float(value) if isinstance(value, Decimal) else value for value in values]


class FileLabels:
    """The different labels of a column, by their text and sorted; whole numbers are integers.

    >>> FileLabels("y", [2.0, 1.0]).found
    {'1': 1, '2': 2}
    """

    def __init__(self, name: str, values: Iterable[Any]) -> None:
        distinct = sorted(values)
        self.name = name
        self.are_floats = all(isinstance(value, float) for value in distinct)
        self.are_text = any(isinstance(value, str) for value in distinct)
        whole = [int(value) if isinstance(value, float) and value.is_integer() else value for value in distinct]
        self.found = {str(value): value for value in whole}
        #: The first few labels, for a message.
        self.some = ", ".join(repr(text) for text in list(self.found)[:5]) + (", ..." if len(self.found) > 5 else "")

    def known(self, text: str) -> Any:
        """Return the label that a text writes, numbers and truth values in any way; else the text itself."""
        for one, value in self.found.items() if text not in self.found and not self.are_text else ():
            try:
                if one.lower() == text.lower() or float(one) == float(text):
                    return value
            except ValueError:
                pass
        return self.found.get(text, text)

    def unclear(self) -> InvalidInput:
        """Return the error of labels that are not two classes, or of which the positive one is unclear."""
        n, some = len(self.found), self.some
        if n == 1:
            problem = (
                f"only the label {some}, but two are needed. If the other one can occur, name both, the positive one "
                "last, such as --classes 0,1."
            )
        elif n == 2:
            example = sentence(quote(list(self.found)[-1]))
            problem = f"{some}; say which of them is the positive class, such as --positive {example}"
        else:
            problem = (
                f"{n} different labels ({some}), but there is one probability column; give --probability a column for "
                "each class, or say with --positive which label it refers to."
            )
        return InvalidInput(f"Column {self.name!r} holds {problem}")


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


def choose_classes(
    labels: FileLabels, probability: Sequence[str], classes: Sequence[str] | None, positive: str | None
) -> tuple[Any, ...] | None:
    """Return the classes for one probability (of the last, the positive one) or for one of each class.

    It is None for outcomes in [0, 1].
    """
    if positive is not None:
        if len(probability) > 1:
            raise WrongUsage("--positive goes with one probability column; for several, name them with --classes.")
        if classes is not None:
            raise WrongUsage("Give either --positive or --classes, whose last class is the positive one.")
        return _against_others(labels, positive)
    if classes is not None:
        return _given(labels, probability, classes)
    if len(probability) > 1:
        named = _named(probability, labels.found)
        if not named:
            raise InvalidInput(
                f"Column {labels.name!r} holds the label {next(iter(labels.found))!r}, but no probability column is "
                "named after it; name the classes in the order of the columns with --classes."
            )
        return tuple(labels.found.get(text, text) for text in named)
    # the library's order; that of texts has no meaning, so which is positive is asked
    values = np.array(list(labels.found.values()), dtype=np.float64 if labels.are_floats else object)
    if not is_fraction(values) and (len(values) != 2 or labels.are_text):
        raise labels.unclear()
    found = read_classes(values, 2)
    return None if found is None else tuple(found)


def _against_others(labels: FileLabels, positive: str) -> tuple[Any, ...]:
    """Return the negative and the positive class; several other labels are one negative class."""
    found, one = labels.found, labels.known(positive)
    others = [value for value in found.values() if value != one]
    if len(others) == len(found):
        raise InvalidInput(
            f"--positive {positive!r} does not occur in column {labels.name!r}, which holds {labels.some}."
            f"{suggest(positive, found)}"
        )
    if not others:
        raise labels.unclear()
    return (others[0] if len(others) == 1 else f"not {positive}"), one


def _given(labels: FileLabels, probability: Sequence[str], classes: Sequence[str]) -> tuple[Any, ...]:
    """Return the classes that --classes names; not every one need occur."""
    known = tuple(labels.known(text) for text in classes)
    if len(probability) > 1:
        _check_each_once(probability, known)
    elif len(known) != 2 or len(set(known)) < 2:
        raise WrongUsage(
            f"--classes names {len(set(known))} classes, but a single probability column needs two: the positive one "
            "last, such as --classes 0,1."
        )
    unknown = [text for text, value in labels.found.items() if value not in known]
    if unknown:
        raise InvalidInput(f"Column {labels.name!r} holds the label {unknown[0]!r}, which --classes does not name.")
    return known


def _check_each_once(given: Sequence[str], named: Sequence[str]) -> None:
    if len(named) != len(given) or len(set(named)) < len(named):
        raise WrongUsage(
            f"--classes names {len(set(named))} classes, but there are {len(given)} probability columns; "
            "name each class once."
        )


def encode_labels(column: Any, classes: Sequence[Any] | None) -> NDArray[Any]:
    """Return the position of every row's class, or outcomes in [0, 1] where there are no classes.

    A label that is none of the classes belongs to the first: --positive puts it against all others.

    >>> import pyarrow as pa
    >>> encode_labels(pa.array([2.0, 1.0, 3.0]), (1, 2))
    array([1, 0, 0], dtype=uint8)
    """
    if classes is None:
        return np.asarray(column, dtype=np.float64)
    distinct, places = factorise(column)
    values = np.array([value if value in classes else classes[0] for value in distinct], dtype=object)
    return np.asarray(code_labels(values, classes).astype(np.min_scalar_type(len(classes)))[places])


def places_of(
    given: Sequence[str], classes: Sequence[Any], known: Mapping[str, int], named: Sequence[str] | None, option: str
) -> tuple[int, ...]:
    """Return which of the classes each probability column refers to.

    It is as `named` says (a class for each column), else as `known` from columns that were used before, else by the
    columns' names. One column of two classes that nothing is known of refers to the positive class, the last.

    >>> places_of(["p_b", "p_c", "p_a"], ["a", "b", "c"], {}, None, "--probability")
    (1, 2, 0)
    >>> places_of(["old"], [0, 1], {"p": 1}, None, "--against")
    (1,)
    """
    texts = [str(value) for value in classes]
    if named is not None:
        for name in named:
            if name not in texts:
                raise WrongUsage(
                    f"There is no class {name!r}; the classes are {', '.join(texts)}.{suggest(name, texts)}"
                )
        _check_each_once(given, named)
        return tuple(texts.index(name) for name in named)
    found = {name: known[name] for name in given if name in known}
    rest = [name for name in given if name not in found]
    left = [k for k in range(len(texts)) if k not in found.values()]
    if len(given) == len(texts) and len(rest) == len(left) <= 1:
        found |= dict(zip(rest, left, strict=True))
        return tuple(found[name] for name in given)
    # of two columns used before, neither is the positive one unless the classes say so
    if len(given) == 1 and (not rest or list(known.values()) in ([], [1]) or list(classes) == [0, 1]):
        return (found.get(given[0], 1),)
    names = [] if len(given) == 1 else _named(given, texts)
    if not names:
        by_name = option == "--probability" or len(given) > 1
        way = "name the classes in the order of the columns with --classes"
        raise WrongUsage(
            f"It is unclear which of the classes {', '.join(texts)} is meant by {option} {','.join(given)}; "
            f"{way if by_name else f'give {option} a column for each class'}."
        )
    return tuple(texts.index(name) for name in names)


def _named(names: Sequence[str], classes: Iterable[str]) -> list[str]:
    """Return the part of each column's name that is its class, if all classes are found so.

    A column is named by its class, or by its class between a beginning and an end that all columns share: the names are
    tried without these, longest parts first.

    >>> _named(["p_10", "p_11", "p_12"], ["10", "11"])
    ['10', '11', '12']
    """
    ends = (list(names), [name[::-1] for name in names])
    before, after = (len(commonprefix(texts)) for texts in ends)  # noqa: RUF071 (letters are meant)
    cuts = sorted(((i, j) for i in range(before + 1) for j in range(after + 1)), key=sum)
    cut = ([name[i : len(name) - j] for name in names] for i, j in cuts)
    return next((one for one in cut if len(set(one)) == len(names) and all(one) and set(classes) <= set(one)), [])
