"""Progress of long work: a bar where tqdm is installed, plain lines otherwise, nothing when not asked for."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """Shows the number of updates and the violation still left, on standard error."""

    def __init__(self, is_shown: bool, alpha: float) -> None:
        self.alpha = alpha
        self._bar: Any = None
        self._is_shown = is_shown
        self._last = time.monotonic()

    def __enter__(self) -> Progress:
        if self._is_shown:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return self
            self._bar = tqdm(unit=" updates", file=sys.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, n_updates: int, violation: float) -> None:
        """Tell the state after an update."""
        text = f"violation {violation:.3g} -> {self.alpha:g}"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        elif self._is_shown and time.monotonic() - self._last > 1.0:
            self._last = time.monotonic()
            print(f"lowcal: {n_updates} updates, {text}", file=sys.stderr)


class Passes:
    """Shows how far each pass over a stream of rows, or each part of other long work, is, on standard error."""

    def __init__(self, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._bar: Any = None
        self._what, self._done, self._total, self._unit = "", 0, 0, ""
        self._last = time.monotonic()

    def __enter__(self) -> Passes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, what: str, total: int | None = None, unit: str = " rows") -> None:
        """Begin a pass over this many rows, or other units, if their number is known."""
        self.close()
        self._what, self._done, self._total, self._unit = what, 0, total or 0, unit
        if self._is_shown:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return
            self._bar = tqdm(desc=what, total=total, unit=unit, unit_scale=True, file=sys.stderr, leave=False)

    def add(self, n: int) -> None:
        """Tell that n more are done."""
        self._done += n
        if self._bar is not None:
            self._bar.update(n)
        elif self._is_shown and time.monotonic() - self._last > 1.0:
            self._last = time.monotonic()
            of = f" of {self._total:,}" if self._total else ""
            print(f"lowcal: {self._what}, {self._done:,}{of}{self._unit}", file=sys.stderr)

    def close(self) -> None:
        """End the pass."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
