"""The version of the package, which saved models, graphs and reports name."""

from __future__ import annotations

__version__ = "0.2.0"
