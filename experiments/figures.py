"""What the pictures of this package share: colours, and matplotlib only when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowcal.errors import MissingExtra

#: Okabe and Ito's colours: distinct for every kind of colour vision.
COLOURS = {"MA": "#0072B2", "MC2": "#009E73", "MC3": "#56B4E9", "smooth": "#CC79A7", "MC-full": "#D55E00"}
MARKERS = {"MA": "o", "MC2": "s", "MC3": "^", "smooth": "v", "MC-full": "D"}


def load_pyplot() -> Any:
    """Return matplotlib's pyplot, drawing to files only."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtra("the figure needs matplotlib: pip install 'lowcal[plot]'") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> None:
    """Write the picture and forget it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    load_pyplot().close(figure)
