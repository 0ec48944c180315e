"""Labels of a file: which class each row has, and which class each probability refers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.cli.terminal import WrongUsage
from lowcal.data.errors import InvalidInput, sentence, suggest
from lowcal.data.files.text import factorise
from lowcal.data.inputs import code_labels, is_fraction, read_classes


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

    def known(self, text: str) -> Any:
        """Return the label that a text writes; one that does not occur is the text itself."""
        if text in self.found:
            return self.found[text]
        same = (value for one, value in self.found.items() if not self.are_text and _is_same(one, text))
        return next(same, text)

    @property
    def some(self) -> str:
        """The first few labels, for a message."""
        return ", ".join(repr(text) for text in list(self.found)[:5]) + (", ..." if len(self.found) > 5 else "")


def _is_same(text: str, given: str) -> bool:
    """Whether two texts write the same number or truth value."""
    try:
        return text.lower() == given.lower() or float(text) == float(given)
    except ValueError:
        return False


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
        return match_classes(labels.found, labels.name, probability)
    # the library's order; that of texts has no meaning, so which is positive is asked
    values = np.array(list(labels.found.values()), dtype=np.float64 if labels.are_floats else object)
    if not is_fraction(values) and (len(values) != 2 or labels.are_text):
        raise _unclear(labels)
    found = read_classes(values, 2)
    return None if found is None else tuple(found)


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


def _unclear(labels: FileLabels) -> InvalidInput:
    """Return the error of labels that are not two classes, or of which the positive one is unclear."""
    n, some = len(labels.found), labels.some
    if n == 1:
        problem = (
            f"only the label {some}, but two are needed. If the other one can occur, name both, the positive one "
            "last, such as --classes 0,1."
        )
    elif n == 2:
        example = sentence(quote(list(labels.found)[-1]))
        problem = f"{some}; say which of them is the positive class, such as --positive {example}"
    else:
        problem = (
            f"{n} different labels ({some}), but there is one probability column; give --probability a column for each "
            "class, or say with --positive which label it refers to."
        )
    return InvalidInput(f"Column {labels.name!r} holds {problem}")


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
        raise _unclear(labels)
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


def match_classes(found: Mapping[str, Any], label: str, probability: Sequence[str]) -> tuple[Any, ...]:
    """Return the class of every probability column by the columns' names.

    A column is named by its class, or by its class between a beginning and an end that all columns share.

    >>> match_classes({"a": "a", "b": "b"}, "y", ["p_a", "p_b", "p_c"])
    ('a', 'b', 'c')
    >>> match_classes({"10": 10, "11": 11}, "y", ["p_10", "p_11", "p_12"])
    (10, 11, '12')
    """
    named = _named(probability, found)
    if not named:
        raise InvalidInput(
            f"Column {label!r} holds the label {next(iter(found))!r}, but no probability column is named after it; "
            "name the classes in the order of the columns with --classes."
        )
    return tuple(found.get(text, text) for text in named)


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
        raise _ambiguous(given, texts, option)
    return tuple(texts.index(name) for name in names)


def _ambiguous(given: Sequence[str], texts: Sequence[str], option: str) -> WrongUsage:
    way = "name the classes in the order of the columns with --classes"
    way = way if option == "--probability" or len(given) > 1 else f"give {option} a column for each class"
    return WrongUsage(
        f"It is unclear which of the classes {', '.join(texts)} is meant by {option} {','.join(given)}; {way}."
    )


def _named(names: Sequence[str], classes: Iterable[str]) -> list[str]:
    """Return the part of each column's name that is its class, if all classes are found so.

    The names are tried without a beginning and an end that all share, longest parts first.
    """
    ends = (list(names), [name[::-1] for name in names])
    before, after = (len(commonprefix(texts)) for texts in ends)  # noqa: RUF071 (letters are meant)
    cuts = sorted(((i, j) for i in range(before + 1) for j in range(after + 1)), key=sum)
    cut = ([name[i : len(name) - j] for name in names] for i, j in cuts)
    return next((one for one in cut if len(set(one)) == len(names) and all(one) and set(classes) <= set(one)), [])
