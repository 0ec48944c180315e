"""Public names have several addresses: `lowcal.Fit`, and `lowcal.solve.fitting.Fit`, where pages of source link."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.addnodes import desc_signature

import lowcal


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-read", add_homes)
    return {"parallel_read_safe": True}


def add_homes(_app: Any, document: nodes.document) -> None:
    """Let every entry of the reference be found under the packages and the module that hold it, too."""
    for signature in document.findall(desc_signature):
        for name in [name for name in signature["ids"] if name.startswith("lowcal.")]:
            signature["ids"] += [home for home in homes_of(name) if home not in signature["ids"]]


def homes_of(name: str) -> list[str]:
    """Return the addresses of a name in the module that defines it and in all packages around that.

    >>> homes_of("lowcal.Trees.bind")
    ['lowcal.Trees.bind', 'lowcal.subpopulations.Trees.bind', 'lowcal.subpopulations.trees.Trees.bind']
    """
    parts = name.split(".")
    for size in range(len(parts) - 1, 0, -1):
        try:
            module = import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        home = getattr(getattr(module, parts[size], None), "__module__", "").split(".")
        found = [".".join(home[:k] + parts[size:]) for k in range(1, len(home) + 1)]
        return found + [short for name in found for short in shortcuts_of(name)]
    return []


def shortcuts_of(name: str) -> list[str]:
    """Return the addresses of a name in public modules that live deeper.

    >>> shortcuts_of("lowcal.data.errors.InvalidInput")
    ['lowcal.errors.InvalidInput']
    """
    deeper = ((f"lowcal.{public}.", f"{import_module(f'lowcal.{public}').__name__}.") for public in lowcal._MODULES)
    return [public + name.removeprefix(home) for public, home in deeper if name.startswith(home) and public != home]
