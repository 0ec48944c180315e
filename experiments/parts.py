"""Long work in parts: each finished part is a JSON file, and a run that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from lowcal.data.files import atomic_write

FOLDER = "parts"


@dataclass(frozen=True)
class Parts:
    """The folder of a run's finished parts.

    Parameters
    ----------
    folder : where results go; the parts lie in its folder `parts`. None keeps nothing.
    is_loud : whether to say on standard error what is done.
    """

    folder: Path | None
    is_loud: bool = False

    def get(self, name: str, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a part: the stored one if it was made under the same key, else computed and stored.

        key : everything the result depends on; what was stored under another key is made again.

        >>> Parts(None).get("one", {}, lambda: {"x": 1})
        {'x': 1}
        """
        key = json.loads(json.dumps(key))
        stored = self._read(name)
        if stored is not None and stored.get("key") == key:
            self._say(f"{name}: kept from an earlier run")
            return dict(stored["result"])
        began = perf_counter()
        result: dict[str, Any] = json.loads(json.dumps(compute()))
        if self.folder is not None:
            write_text(self._path(name), json.dumps({"key": key, "result": result}))
        self._say(f"{name}: done in {perf_counter() - began:.1f} s")
        return result

    def get_seeds(
        self, name: str, key: dict[str, Any], seeds: int, compute: Callable[[int], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the results of a part for the seeds 0, 1, ..., each of which is a part of its own."""
        return [self.get(f"{name}-seed-{seed}", {**key, "seed": seed}, partial(compute, seed)) for seed in range(seeds)]

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / FOLDER / f"{name}.json"

    def _read(self, name: str) -> dict[str, Any] | None:
        if self.folder is None:
            return None
        try:
            found = json.loads(self._path(name).read_text())
        except (OSError, ValueError):  # absent, or cut off: made again
            return None
        return found if isinstance(found, dict) else None

    def _say(self, text: str) -> None:
        if self.is_loud:
            print(f"experiments: {text}", file=sys.stderr, flush=True)


def write_text(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())
