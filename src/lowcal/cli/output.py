"""What a command writes besides tables: texts, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lowcal.cli.usage import WrongUsage
from lowcal.data.files.atomic import check_writable
from lowcal.data.files.batches import files_of
from lowcal.data.files.opening import is_several
from lowcal.data.files.paths import STREAM
from lowcal.data.files.writing import open_bytes


def check_outputs(*paths: str | None, inputs: Sequence[str] = ()) -> None:
    """Refuse, before any work, outputs that can't be written, that replace an input, or that go to one place."""
    given = [path for path in paths if path is not None]
    if len({path if path == STREAM else os.path.realpath(path) for path in given}) < len(given):
        raise WrongUsage("Two outputs go to the same place; give each a file of its own.")
    for path in given:
        if path != STREAM:
            _check_no_input(path, inputs)
            check_writable(path)


def _check_no_input(path: str, inputs: Sequence[str]) -> None:
    """Refuse an output that is the same file as an input, by whatever name; pipes and devices may be both."""
    for one in [file for given in inputs for file in (files_of(given) if is_several(given) else [given])]:
        if one != STREAM and os.path.isfile(one) and os.path.exists(path) and os.path.samefile(one, path):
            raise WrongUsage(f"The output {path} would replace the input {one}; give another name.")


def put(text: str, path: str) -> None:
    """Write a text to a file, or to standard output."""
    with open_bytes(path) as stream:
        stream.write(text.encode())
