"""`lowcal fit` recalibrates the probabilities of a file and saves the model; `lowcal predict` applies it to another.

Files are read and written batch by batch. And `lowcal export`: a saved model as an ONNX graph.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.cli import DONE
from lowcal.cli.main import WrongUsage, check_outputs, is_wanted, put, say, showing
from lowcal.cli.rows import (
    LABEL,
    TARGET,
    FileRows,
    arrange,
    check_number,
    check_probabilities,
    given,
    is_automatic,
    open_file,
    places_of,
    read_rows,
    split_classes,
    split_names,
    subpopulations_of,
)
from lowcal.data.batches import check_readable, for_frames
from lowcal.data.errors import InvalidInput, printable, sentence
from lowcal.data.files import STREAM, FileTable, form_of, text_of, write_table
from lowcal.data.frames import Column, Table, categorical
from lowcal.data.inputs import read_probabilities
from lowcal.data.progress import Passes
from lowcal.data.text import FALSE, MISSING, TRUE, factorise, is_text, numbers, parse_number
from lowcal.kernels.simplex import FloatArray
from lowcal.persistence import read, save, to_bytes
from lowcal.rows.explaining import MOST_CHANGED, Explanation, explain_rows, most_changed
from lowcal.rows.updates import Predictor
from lowcal.solve.fitting import Fit, Record, multicalibrate
from lowcal.solve.recalibration import recalibrate

#: The column of explanations.
WHY = "why"
_AUDIT = "Audit the calibrated predictions on rows that the fit has not seen."

# --- fit ----------------------------------------------------------------------------------------------------------


def run_fit(options: argparse.Namespace) -> int:
    """Fit on a file, report what was reached, save the model."""
    check_outputs(options.out, inputs=[options.file])
    with open_file(options) as table:
        rows = read_rows(options, table)
        fit, text = _fit(options, rows)
    predictor, metadata = fit.predictor, _metadata(options, rows, fit)
    if rows.classes is not None and predictor.layout.classes is not None:  # the fit knows classes by their positions
        predictor = replace(predictor, layout=replace(predictor.layout, classes=rows.classes))
    text += "".join(f"\nNote: {note}" for note in rows.notes)
    if options.out == STREAM:
        put(to_bytes(predictor, metadata), STREAM)
        if not options.quiet:
            say(text)
        return DONE
    save(predictor, options.out, metadata=metadata)
    if not options.quiet:
        print(f"{text}\n{sentence(f'Wrote {options.out}')} Recalibrate new rows with:")
        print(f"  lowcal predict {quote(options.out)} FILE --out calibrated.csv")
    return DONE


def _fit(options: argparse.Namespace, rows: FileRows) -> tuple[Fit, str]:
    """Let cross-validation choose, or fit the notion that was asked for; return the fit and its description."""
    how: dict[str, Any] = {"progress": is_wanted(options), "random_state": options.seed, **rows.weights}
    data = (LABEL, rows.probability[0], rows.X)
    if is_automatic(options):
        fit = recalibrate(*data, groups=split_names(options.groups, rows.chosen.columns) or None, **how)
        return fit, f"{fit}\n\n{_AUDIT}"
    records: list[Record] = []
    how |= {"guard": not options.no_guard, "callback": records.append, **given(options, *TARGET)}
    fit = multicalibrate(*data, subpopulations=subpopulations_of(options, rows.chosen.columns), **how)
    return fit, describe(fit, records[0].violation if records else fit.violation, rows.n)


def _metadata(options: argparse.Namespace, rows: FileRows, fit: Fit) -> dict[str, Any]:
    """Return what a later command must know of the file, and what was reached."""
    return {
        "label": options.label,
        "probability": list(rows.chosen.probability[0]),
        "columns": list(rows.chosen.columns),
        "classes": None if rows.classes is None else list(rows.classes),
        "notion": str(fit.notion),
        "alpha": fit.alpha,
        "per_person": fit.per_person,
        "status": fit.status.value,
        "violation": fit.violation,
        "n_rows": rows.n,
        **rows.sampled,
    }


def describe(fit: Fit, before: float, n: int) -> str:
    """Say what was reached on n rows."""
    kept = len(fit.predictor)
    held = f", of which the held-out rows keep {kept}" if kept < fit.n_updates else ""
    upper = f" (certified to be at most {fit.upper:.4g})" if fit.upper > fit.violation else ""
    status = fit.status.sentence.replace("guard=False", "--no-guard").replace("max_updates", "--max-updates")
    status = status[0].upper() + status[1:]
    learned = "" if fit.is_exact else " Subpopulations were found by a learner: others may exist."
    lines = [
        f"{fit.goal}: {fit.status.value}",
        "",
        f"  largest violation before  {before:.4g}",
        f"                    after   {fit.violation:.4g}{upper}, on the {n:,} rows of the fit",
        f"  updates                   {fit.n_updates}{held} (at most {fit.bound:,} were possible)",
        "",
        fill(f"{status}.{fit.cross_fitted}{learned} {_AUDIT}", 110, break_on_hyphens=False),
    ]
    return "\n".join(lines)


# --- predict ------------------------------------------------------------------------------------------------------


def run_predict(options: argparse.Namespace) -> int:
    """Write all columns of a file and the calibrated predictions, in the order of the rows."""
    check_outputs(options.out, inputs=[options.model, options.file])
    form = form_of(options.out, options.format)
    predictor, metadata = load(options.model)
    with open_file(options) as table:
        given = probability_of(options, table, predictor, metadata)
        recalibrator = Recalibrator(predictor, *given, table, explains=options.explain)
        names, texts = [name + options.suffix for name in given[0]], [WHY] if options.explain else []
        remedies = dict.fromkeys(texts, "rename it, or leave out --explain")
        remedies |= dict.fromkeys(names, "choose another suffix with --suffix")
        for name in [*names, *texts]:
            if name in table.names:
                raise InvalidInput(f"{table.shown} already has a column {name!r}; {remedies[name]}.")
        with showing(options, "recalibrating", table) as bar:
            write_table(options.out, form, table, names, recalibrator.batches(bar), texts)
    if not options.quiet:
        recalibrator.warn()
        if options.out != STREAM:
            new = ", ".join([*names, *texts])
            print(printable(sentence(f"Wrote {recalibrator.n_rows:,} rows to {options.out}, with {new}")))
            if recalibrator.first is not None:
                print(f"\nRow 1: {recalibrator.first}")
    return DONE


def load(path: str) -> tuple[Predictor, Mapping[str, Any]]:
    """Return the predictor of a saved model, and what was noted beside it."""
    check_readable(path)
    saved = read(path)
    predictor = saved.model.predictor if isinstance(saved.model, Fit) else saved.model
    if not isinstance(predictor, Predictor):
        raise InvalidInput(f"{path} holds a {type(saved.model).__name__}, which can't recalibrate the rows of a file.")
    return predictor, saved.metadata


def probability_of(
    options: argparse.Namespace, table: FileTable, predictor: Predictor, metadata: Mapping[str, Any]
) -> tuple[list[str], tuple[int, ...]]:
    """Return the probability columns, as asked for or those of the fit, and the class of each."""
    fitted = list(metadata.get("probability") or ())
    names = split_names(options.probability, table.names) or fitted
    if not names:
        raise WrongUsage("The model does not name its probability column; give --probability.")
    n = predictor.layout.n_classes
    check_number("--probability", names, n, "The model has")
    classes = (0, 1) if predictor.layout.classes is None else predictor.layout.classes
    named = split_classes(options.classes, [str(value) for value in classes], len(names))
    first = {n: 0, 1: 1}.get(len(fitted))
    known = {name: k for k, name in enumerate(fitted, first)} if first is not None else {}
    return names, places_of(names, classes, known, named, "--probability")


class Recalibrator:
    """Recalibrates batch after batch of a file."""

    def __init__(
        self,
        predictor: Predictor,
        probability: Sequence[str],
        places: Sequence[int],
        table: FileTable,
        *,
        explains: bool = False,
    ) -> None:
        self.predictor, self.probability, self.places, self.table = predictor, probability, places, table
        self.columns = categories_of(predictor)
        table.require(*probability, *self.columns)
        self.readers = {
            name: None if known is None else reader_of(known, table.decimal or ".")
            for name, known in self.columns.items()
        }
        #: Columns of which no value was known to the model so far, each with a value.
        self.unknown: dict[str, Any] = {name: None for name, known in self.columns.items() if known}
        self.n_rows = 0
        self.explains = explains
        #: The explanation of the first row.
        self.first: Explanation | None = None

    def batches(self, bar: Passes) -> Iterator[tuple[Sequence[Any], list[NDArray[Any]]]]:
        """Yield the columns of every batch, and those of its calibrated predictions."""
        for batch in self.table.batches(None, bar.add):
            p, X = self._read(batch)
            calibrated = self.predictor(p, X)
            if p.ndim == 1:
                new = [arrange([calibrated], self.places)]
            else:
                new = [np.ascontiguousarray(calibrated[:, place]) for place in self.places]
            if self.explains:
                why = []
                for one in explain_rows(self.predictor, read_probabilities(p, self.predictor.layout), X):
                    self.first = self.first or one
                    why.append(one.why())
                new.append(np.array(why, dtype=object))
            yield batch.columns, new
            self.n_rows += batch.num_rows
        if self.n_rows == 0:
            say(f"lowcal: {self.table.shown} has a header but no rows.")

    def most_changed(self) -> dict[int, Explanation]:
        """Return the explanations of the rows of the file that the model changes most, by their numbers from 1 on."""
        found: list[tuple[int, Explanation]] = []
        for batch in self.table.batches([*self.probability, *self.columns]):
            changed = most_changed(self.predictor, *self._read(batch))
            found += [(self.n_rows + row, one) for row, one in changed.items()]
            found = sorted(found, key=lambda one: -one[1].change)[:MOST_CHANGED]
            self.n_rows += batch.num_rows
        return dict(found)

    def _read(self, batch: Any) -> tuple[FloatArray, Table]:
        """Return probabilities and columns of a batch as the model reads them."""
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        decimal, before = self.table.decimal, self.n_rows
        given = [numbers(arrays[name], decimal, name, before) for name in self.probability]
        check_probabilities(self.probability, given, before)
        read = [read_column(arrays[name], decimal, name, reader, before) for name, reader in self.readers.items()]
        for column in read:
            if column.name in self.unknown:
                values = [value for value in column.distinct()[0] if value is not None]
                if not set(values).isdisjoint(self.columns[column.name] or ()):
                    del self.unknown[column.name]
                elif values and self.unknown[column.name] is None:
                    self.unknown[column.name] = values[0]
        return arrange(given, self.places), Table(tuple(self.columns), len(given[0]), read.__getitem__, is_named=True)

    def warn(self) -> None:
        """Name the columns of which the model knows no value at all."""
        for name, value in self.unknown.items():
            known = self.columns[name] or ()
            some = ", ".join(map(repr, known[:3])) + (", ..." if len(known) > 3 else "")
            if value is not None:
                say(
                    f"lowcal: the model knows none of the values of column {name!r}: the file holds {value!r}, the fit "
                    f"had {sentence(some)} Only the other columns are used."
                )


# --- columns as a model reads them --------------------------------------------------------------------------------


def categories_of(predictor: Predictor) -> dict[str, tuple[Any, ...] | None]:
    """Return the columns a predictor reads, each with its categories, or None if it holds numbers."""
    found: dict[str, tuple[Any, ...] | None] = dict.fromkeys(predictor.columns)
    for levels in _levels(predictor.encoder.to_dict()):
        if levels["categories"] is not None:
            found[levels["column"]] = tuple(levels["categories"])
    return found


def _levels(data: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all levels in an encoder's data: a column with its categories."""
    if isinstance(data, Mapping):
        if "column" in data and "categories" in data:
            yield data
        data = list(data.values())
    for value in data if isinstance(data, list) else ():
        yield from _levels(value)


def read_column(
    values: Any, decimal: str | None, name: str, reader: Callable[[str], Any] | None, before: int
) -> Column:
    """Return a column of a batch by the kind of the model's categories, not by that of the values in the batch.

    A batch that happens to hold only '1' and '2' of a text column stays text.
    """
    if reader is None:
        is_typed = decimal is None and not is_text(values)  # dates too
        return Table.of({name: for_frames(values) if is_typed else numbers(values, decimal, name, before)}).column(name)
    distinct, places = factorise(values, name)
    texts = [text_of(value) for value in distinct]
    return categorical(name, [None if text is None else reader(text) for text in texts], places)


def reader_of(known: Sequence[Any], decimal: str) -> Callable[[str], Any]:
    """Return what reads a text as one of these categories, if it is one, and else leaves it as it is.

    Truth values and numbers may be written in any way, and so may names that are all whole numbers.

    >>> [reader_of(known, ".")("1.0") for known in ((True, False), (1, 2.5), ("1", "2"), ("1", "a"), ("1", "1.00"))]
    ['1.0', 1.0, '1', '1.0', '1.0']
    """
    if all(isinstance(value, bool) for value in known):
        truth = dict.fromkeys((*TRUE, "1"), True) | dict.fromkeys((*FALSE, "0"), False) | dict.fromkeys(MISSING)
        return lambda text: truth.get(text, text)
    if not any(isinstance(value, str) for value in known):
        return lambda text: _number_of(text, decimal)
    by_number = {_whole(str(name)): name for name in known}
    if None in by_number or len(by_number) < len(known):  # 1 and 1.0 are two names here
        return str
    return lambda text: by_number.get(_whole(text), text)


def _number_of(text: str, decimal: str) -> float | str | None:
    """Return the number that a text writes, whole ones with all digits; None for a missing one; another as it is."""
    if text in MISSING:
        return None
    if re.fullmatch(r"\s*[+-]?[0-9]{1,400}\s*", text):
        return int(text)
    number = parse_number(text, decimal)
    return text if number is None else number


def _whole(text: str) -> str | None:
    """Return the whole number that a text writes, without a fraction of zeros; None if it is none."""
    found = re.fullmatch(r"(-?(?:0|[1-9][0-9]*))(?:\.0*)?", text)
    return found[1] if found else None


# --- export -------------------------------------------------------------------------------------------------------


def run_export(options: argparse.Namespace) -> int:
    """Write the graph, whole or not at all."""
    from lowcal.persistence.export import to_onnx

    if not options.out.endswith(".onnx"):
        raise WrongUsage(f"The output is an ONNX graph: give a name that ends in .onnx, not {options.out!r}.")
    check_outputs(options.out, inputs=[options.model])
    to_onnx(load(options.model)[0], options.out)
    if not options.quiet:
        print(sentence(f"Wrote {options.out}"))
    return DONE
