"""Saved models: loading one, which columns it reads, and as what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput
from lowcal.data.files.batches import for_frames
from lowcal.data.files.columns import read_numbers
from lowcal.data.files.kinds import factorise, is_text, number_of, text_of, truth_of
from lowcal.data.files.paths import check_readable
from lowcal.data.frames import Column, Table
from lowcal.deploy.persistence import read
from lowcal.rows.updates import Predictor
from lowcal.solve.runs import Fit


def load(path: str) -> tuple[Predictor, Mapping[str, Any]]:
    """Return the predictor of a saved model, and what was noted beside it."""
    check_readable(path)
    saved = read(path)
    predictor = saved.model.predictor if isinstance(saved.model, Fit) else saved.model
    if not isinstance(predictor, Predictor):
        raise InvalidInput(f"{path} holds a {type(saved.model).__name__}, which can't recalibrate the rows of a file.")
    return predictor, saved.metadata


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
        for value in data.values():
            yield from _levels(value)
    elif isinstance(data, list):
        for value in data:
            yield from _levels(value)


def read_column(values: Any, decimal: str | None, name: str, known: tuple[Any, ...] | None, before: int) -> Column:
    """Return a column of a batch as a model reads it: by the kind of its own categories, whatever the file looks like.

    So a batch that happens to hold only '1' and '2' of a text column stays text.
    """
    if known is None and decimal is None and not is_text(values):
        return Table.of({name: for_frames(values)}).column(name)  # dates too
    if known is None:
        return Column(name, None, None, read_numbers(values, decimal, name, before))
    distinct, places = factorise(values, name)
    texts = [text_of(value) for value in distinct]
    if all(isinstance(value, bool) for value in known):
        return categories(name, [truth_of(text) for text in texts], places)
    if any(isinstance(value, str) for value in known):
        return categories(name, as_known(texts, known), places)
    return categories(name, [number_of(text, decimal) for text in texts], places)


def categories(name: str, distinct: Sequence[Any], places: NDArray[np.intp]) -> Column:
    """Return a column of any distinct values, None among them, as a predictor reads it; others are missing."""
    known = [value for value in dict.fromkeys(distinct) if value is not None]
    code = {None: -1} | {value: k for k, value in enumerate(known)}
    codes = np.array([*(code[value] for value in distinct), -1], dtype=np.int32)[places]
    return Column(name, tuple(known), codes, None)


def as_known(values: Sequence[str | None], known: Sequence[Any]) -> list[str | None]:
    """Return texts as a model knows them, where all that it knows are whole numbers: 105.0 and 105 are one name.

    >>> as_known(["105.0", "106", "x", None], ["105", "106"]), as_known(["105"], ["105.0"])
    (['105', '106', 'x', None], ['105.0'])
    >>> as_known(["1.0"], ["1", "a"]), as_known(["1.00"], ["1", "1.0"])
    (['1.0'], ['1.00'])
    """
    names = frozenset(known)
    are_all_known = names.issuperset(value for value in values if value is not None)
    if are_all_known or any(_whole(str(name)) is None for name in known):
        return list(values)
    by_number = {_whole(str(name)): name for name in known}
    if len(by_number) < len(known):
        return list(values)  # 1 and 1.0 are two names here
    return [value if value is None or value in names else by_number.get(_whole(value), value) for value in values]


def _whole(text: str) -> str | None:
    """Return the whole number that a text writes, without a fraction of zeros; None if it is none."""
    found = re.fullmatch(r"(-?(?:0|[1-9][0-9]*))(?:\.0*)?", text)
    return found[1] if found else None


def values_of(column: Column) -> list[Any]:
    """Return the distinct values of a column, none of them missing."""
    return [value for value in column.distinct()[0] if value is not None]
