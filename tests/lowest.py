"""The lowest versions that pyproject.toml allows, as constraints for pip: python tests/lowest.py numpy scipy ..."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def lowest(names: list[str]) -> list[str]:
    """Return `name==version` for each package that the project asks for with `>=`."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    least = dict(found.groups() for one in asked if (found := re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)$", one)))
    return [f"{name}=={least[name]}" for name in names]


if __name__ == "__main__":
    print("\n".join(lowest(sys.argv[1:])))
