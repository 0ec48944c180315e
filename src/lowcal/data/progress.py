"""Progress of long work: a bar where tqdm is installed, plain lines otherwise, nothing when not asked for."""

from __future__ import annotations

import sys
import time
from typing import Any, Self


class Passes:
    """Shows how far each pass over a stream of rows, or each part of other long work, is, on standard error."""

    def __init__(self, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._bar: Any = None
        self._what, self._done, self._of, self._unit = "", 0, "", ""
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, what: str, total: int | None = None, unit: str = " rows") -> None:
        """Begin a pass over this many rows, or other units, if their number is known."""
        self.close()
        self._what, self._done, self._of, self._unit = what, 0, f" of {total:,}" if total else "", unit
        if self._is_shown:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return
            looks: dict[str, Any] = {"desc": what, "leave": False, "unit_scale": True} if what else {}
            self._bar = tqdm(total=total, unit=unit, file=sys.stderr, **looks)

    def add(self, n: int, note: str = "") -> None:
        """Show that n more are done."""
        self._done += n
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(n)
        elif self._is_shown and time.monotonic() - self._last > 1.0:
            self._last = time.monotonic()
            parts = (self._what, f"{self._done:,}{self._of}{self._unit}", note)
            print(f"lowcal: {', '.join(filter(None, parts))}", file=sys.stderr)

    def close(self) -> None:
        """End the pass."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Progress(Passes):
    """Shows the number of updates and the violation still left, on standard error."""

    def __init__(self, is_shown: bool, alpha: float) -> None:
        super().__init__(is_shown)
        self.alpha = alpha

    def __enter__(self) -> Self:
        self.start("", None, " updates")
        return self

    def show(self, n_updates: int, violation: float) -> None:
        """Show the state after an update."""
        self.add(n_updates - self._done, f"violation {violation:.3g} -> {self.alpha:g}")
