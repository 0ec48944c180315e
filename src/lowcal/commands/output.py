"""What a command writes besides tables: texts, whole or not at all."""

from __future__ import annotations

from lowcal.commands.usage import WrongUsage
from lowcal.files.atomic import check_writable
from lowcal.files.opening import STREAM
from lowcal.files.writing import open_bytes


def check_outputs(*paths: str | None) -> None:
    """Refuse, before any work, outputs that can't be written, and two outputs in one place."""
    given = [path for path in paths if path]
    if len(set(given)) < len(given):
        raise WrongUsage("Two outputs go to the same place; give each a file of its own.")
    for path in given:
        if path != STREAM:
            check_writable(path)


def put(text: str, path: str) -> None:
    """Write a text to a file, or to standard output."""
    with open_bytes(path) as stream:
        stream.write(text.encode())
