"""Values on their way to workers, which know them again: a state of a fit is the same object there from pass to pass.

Rows remember predictions by states and designs by families, so that a copy of either would find nothing. Values that
are only equal to themselves are therefore packed once, under a token that no other value in the world has. A payload
lists what it is made of, each after what it needs; a worker unpacks what it has not met, and forgets the oldest.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from io import BytesIO
from threading import RLock
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from lowcal.rows.base import START

#: A worker keeps the values of this many packed bytes.
MOST_MET = 1 << 26


@dataclass(frozen=True, eq=False)
class Packed:
    """A value under its token: the bytes of its fields, and the values that these refer to by their tokens."""

    token: bytes
    content: bytes
    needs: tuple[Packed, ...]


_START = Packed(b"start", b"", ())
_packed: WeakKeyDictionary[Any, Packed] = WeakKeyDictionary({START: _START})


def is_shared(value: object) -> bool:
    """Whether a value is known by what it is, not by what it holds: one that never changes, or a family.

    >>> from lowcal.rows import START, Scale
    >>> is_shared(START), is_shared(Scale(10, 0.1))
    (True, False)
    """
    kind = getattr(type(value), "__dataclass_params__", None)
    return kind is not None and kind.frozen and (not kind.eq or hasattr(type(value), "design"))


class _Packer(pickle.Pickler):
    """Writes tokens in place of shared values, and lists these."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.needs: dict[Packed, None] = {}

    def persistent_id(self, value: Any) -> bytes | None:
        """Return the token of a shared value."""
        if not is_shared(value):
            return None
        known = _pack(value)
        self.needs[known] = None
        return known.token


def _pack(value: Any) -> Packed:
    """Return a shared value packed, after all those before it: a long trail would be too deep to follow."""
    for step in (*reversed(list(_steps_before(value))), value):
        if step not in _packed:
            # what a value has computed of itself, beside its fields, is left behind
            content, needs = _write((type(step), {field.name: getattr(step, field.name) for field in fields(step)}))
            _packed[step] = Packed(uuid4().bytes, content, needs)
    return _packed[value]


def _steps_before(value: Any) -> Iterator[Any]:
    """Yield the steps before one on a trail that are not packed yet, the last one first."""
    step = getattr(value, "before", None)
    while step is not None and step not in _packed:
        yield step
        step = step.before


def _write(value: object) -> tuple[bytes, tuple[Packed, ...]]:
    file = BytesIO()
    packer = _Packer(file)
    packer.dump(value)
    return file.getvalue(), tuple(packer.needs)


def pack(*values: object) -> bytes:
    """Return values as bytes that any worker can unpack, whatever it has met before."""
    root, needs = _write(values)
    return pickle.dumps((root, [(one.token, one.content) for one in _in_order(needs)]))


def _in_order(needs: tuple[Packed, ...]) -> list[Packed]:
    """Return all that is needed, each after what it needs itself."""
    done: dict[Packed, None] = {_START: None}
    waiting = [(one, False) for one in needs]
    while waiting:
        one, is_ready = waiting.pop()
        if is_ready:
            done[one] = None
        elif one not in done:
            waiting += [(one, True), *((other, False) for other in one.needs if other not in done)]
    return list(done)[1:]


# --- on workers -----------------------------------------------------------------------------------------------


#: By their tokens, the values that this process has met, with the sizes of their contents; the oldest first.
_met: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
_lock = RLock()


class _Unpacker(pickle.Unpickler):
    """Reads tokens as the values that they stand for."""

    def persistent_load(self, token: Any) -> Any:
        """Return the value of a token."""
        return START if token == _START.token else _met[token][0]


def unpack(payload: bytes) -> tuple[Any, ...]:
    """Return the values of a payload; those that were met before are the same objects again."""
    root, listed = pickle.loads(payload)
    with _lock:  # a worker may have several threads
        for token, content in listed:
            if token not in _met:
                _met[token] = _rebuilt(*_read(content)), len(content)
            _met.move_to_end(token)
        values: tuple[Any, ...] = _read(root)
        _forget_oldest()
    return values


def _read(content: bytes) -> Any:
    return _Unpacker(BytesIO(content)).load()


def _rebuilt(kind: type, given: dict[str, Any]) -> Any:
    """Return a value from its fields, which were checked when it was made."""
    value: Any = object.__new__(kind)
    for name, own in given.items():
        object.__setattr__(value, name, own)
    return value


def _forget_oldest() -> None:
    size = sum(size for _, size in _met.values())
    while size > MOST_MET and len(_met) > 1:
        size -= _met.popitem(last=False)[1][1]


def forget() -> None:
    """Forget all values, as a worker does that starts anew: what is unpacked then are new objects."""
    with _lock:
        _met.clear()
