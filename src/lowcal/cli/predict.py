"""`lowcal predict`: recalibrate the probabilities of a file with a saved model, batch in, batch out."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowcal.cli.labels import places_of
from lowcal.cli.models import categories_of, load, read_column, values_of
from lowcal.cli.output import check_outputs
from lowcal.cli.rows import arrange, check_number, check_probabilities, open_source, split_classes, split_names
from lowcal.cli.talk import say, showing
from lowcal.cli.usage import DONE, WrongUsage
from lowcal.data.errors import InvalidInput, printable, sentence
from lowcal.data.files.columns import read_numbers
from lowcal.data.files.opening import Source, find_column
from lowcal.data.files.paths import STREAM
from lowcal.data.files.writing import form_of, write_table
from lowcal.data.frames import Column, Table
from lowcal.data.progress import Passes
from lowcal.kernels.simplex import FloatArray
from lowcal.rows.updates import Predictor


def run(options: argparse.Namespace) -> int:
    """Write all columns of a file and the calibrated predictions, in the order of the rows."""
    check_outputs(options.out, inputs=[options.model, options.file])
    form = form_of(options.out, options.format)
    predictor, metadata = load(options.model)
    with open_source(options, options.file) as source:
        recalibrator = Recalibrator.of(predictor, *_probability(options, source, predictor, metadata), source)
        names = [name + options.suffix for name in recalibrator.probability]
        _check_new(names, source, options.suffix)
        with showing(options, "recalibrating", source) as bar:
            write_table(options.out, form, source, names, recalibrator(source, bar))
    if not options.quiet:
        recalibrator.tell_strange()
    if not options.quiet and options.out != STREAM:
        print(printable(sentence(f"Wrote {recalibrator.n_rows:,} rows to {options.out}, with {', '.join(names)}")))
    return DONE


def _probability(
    options: argparse.Namespace, source: Source, predictor: Predictor, metadata: Mapping[str, Any]
) -> tuple[list[str], tuple[int, ...]]:
    """Return the probability columns, as asked for or those of the fit, and the class of each."""
    fitted = list(metadata.get("probability") or ())
    names = split_names(options.probability, source.names) or fitted
    if not names:
        raise WrongUsage("The model does not tell which column holds the probability; give --probability.")
    n = predictor.layout.n_classes
    check_number("--probability", names, n, "The model recalibrates")
    classes = (0, 1) if predictor.layout.classes is None else predictor.layout.classes
    named = split_classes(options.classes, [str(value) for value in classes], len(names))
    first = {n: 0, 1: 1}.get(len(fitted))
    known = {} if first is None else {name: k for k, name in enumerate(fitted, first)}
    return names, places_of(names, classes, known, named, "--probability")


def _check_new(names: Sequence[str], source: Source, suffix: str) -> None:
    there = [name for name in names if name in source.names]
    if there:
        raise InvalidInput(
            f"{source.shown} has a column {there[0]!r} already; give another ending of the new names than "
            f"{suffix!r} with --suffix."
        )


@dataclass(eq=False)
class Recalibrator:
    """Recalibrates batch after batch of a file."""

    predictor: Predictor
    probability: tuple[str, ...]
    places: tuple[int, ...]
    columns: dict[str, tuple[Any, ...] | None]
    #: Columns of which no value was known to the model so far, each with a value.
    strange: dict[str, Any] = field(default_factory=dict)
    n_rows: int = 0

    @classmethod
    def of(
        cls, predictor: Predictor, probability: Sequence[str], places: Sequence[int], source: Source
    ) -> Recalibrator:
        """Find the columns that the predictor reads."""
        columns = categories_of(predictor)
        for name in (*probability, *columns):
            find_column(source, name)
        strange = {name: None for name, known in columns.items() if known}
        return cls(predictor, tuple(probability), tuple(places), columns, strange)

    def __call__(self, source: Source, bar: Passes) -> Iterator[tuple[Sequence[Any], list[FloatArray]]]:
        """Yield the columns of every batch, and those of its calibrated predictions."""
        for batch in source.batches(range(len(source.names))):
            by_name = dict(zip(source.names, batch.columns, strict=True))
            yield batch.columns, self._recalibrate(by_name, source.decimal, batch.n_rows)
            self.n_rows += batch.n_rows
            bar.add(batch.n_read)
        if self.n_rows == 0:
            say(f"lowcal: {source.shown} has a header but no rows.")

    def _look(self, column: Column) -> None:
        """Note whether some value of a column is known to the model."""
        if column.name not in self.strange:
            return
        values, known = values_of(column), self.columns[column.name] or ()
        if not set(values).isdisjoint(known):
            del self.strange[column.name]
        elif values and self.strange[column.name] is None:
            self.strange[column.name] = values[0]

    def tell_strange(self) -> None:
        """Say of which columns the model knows no value at all."""
        for name, value in self.strange.items():
            known = self.columns[name] or ()
            some = ", ".join(map(repr, known[:3])) + (", ..." if len(known) > 3 else "")
            if value is not None:
                say(
                    f"lowcal: the model knows no value of column {name!r}: the file holds {value!r}, the fit had "
                    f"{sentence(some)} It recalibrates by the other columns."
                )

    def _recalibrate(self, columns: Mapping[str, Any], decimal: str | None, n: int) -> list[FloatArray]:
        given = [read_numbers(columns[name], decimal, name, self.n_rows) for name in self.probability]
        check_probabilities(self.probability, given, self.n_rows)
        read = [read_column(columns[name], decimal, name, known, self.n_rows) for name, known in self.columns.items()]
        for column in read:
            self._look(column)
        X = Table(list(self.columns), n, lambda position: read[position], is_named=True)
        calibrated = self.predictor(arrange(given, self.places), X)
        if len(given) == 1:
            return [arrange([calibrated], self.places)]
        return [np.ascontiguousarray(calibrated[:, place]) for place in self.places]
