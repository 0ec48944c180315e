"""What the pictures of the experiments share: colours, and matplotlib only when something is drawn."""

from __future__ import annotations

from typing import Any

from lowcal.data.errors import MissingExtra

#: Okabe and Ito's colours: distinct for every kind of colour vision.
COLOURS = {"MA": "#0072B2", "MC2": "#009E73", "MC3": "#56B4E9", "smooth": "#CC79A7", "MC-full": "#D55E00"}
MARKERS = {"MA": "o", "MC2": "s", "MC3": "^", "smooth": "v", "MC-full": "D"}


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib, in inches; no screen is needed, and no pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("the figure needs matplotlib: pip install 'lowcal[plot]'") from error
    return Figure(figsize=(width, height), dpi=110, layout="constrained")
