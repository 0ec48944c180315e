"""Saved models: loading one, which columns it reads, and as what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lowcal.commands.lean import categories
from lowcal.errors import InvalidInput
from lowcal.files.columns import may_be_rounded, read_numbers
from lowcal.files.fields import MISSING, Field, Kind, NotANumber
from lowcal.files.opening import check_readable
from lowcal.frames import Column, numeric
from lowcal.persistence import read
from lowcal.runs import Fit
from lowcal.updates import Predictor


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


def read_column(field: Field, name: str, known: tuple[Any, ...] | None, before: int) -> Column:
    """Return a column of a batch as a model reads it: by the kind of its own categories, whatever the file looks like.

    So a batch that happens to hold only '1' and '2' of a text column stays text.
    """
    if known is None:
        return Column(name, None, None, read_numbers(field, name, before))
    if all(isinstance(value, bool) for value in known):
        return categories(name, *field.factorise(Kind.BOOLEAN))
    if any(isinstance(value, str) for value in known):
        distinct, places = field.factorise(Kind.TEXT)
        return categories(name, as_known(distinct, known), places)
    try:
        numbers = field.numbers()
        if may_be_rounded(numbers) and field.has_rounded():
            return numeric(name, *field.factorise(Kind.WHOLE))
        return Column(name, None, None, numbers)
    except NotANumber:
        distinct, places = field.factorise(Kind.TEXT)
        return categories(name, [_number(value) for value in distinct], places)


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


def _number(text: str | None) -> float | str | None:
    """Return the number that a text writes, or the text."""
    if text is None or text in MISSING:
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text
