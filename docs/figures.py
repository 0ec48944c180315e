"""How figures of the documentation look: few colours, readable in print, in the dark and on a phone.

Figures are drawn for paper. `save` adds a style sheet for readers who prefer a dark screen; the figure brings its own
background, so it is readable on any page.
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler

INK, PAPER, QUIET, BAND = "#1b2a33", "#ffffff", "#66747c", "#e9eef1"
#: Of the Okabe-Ito palette, which lowcal's own plots use: distinct for every kind of colour vision, and in grey.
BEFORE, AFTER = "#d55e00", "#0072b2"
#: What becomes of each colour in the dark; greys are those of lowcal's plots.
DARK = {
    PAPER: "#16191c",
    INK: "#e4eaee",
    QUIET: "#9fadb6",
    BAND: "#2b3338",
    BEFORE: "#ff9a56",
    AFTER: "#62b5ea",
    "#000000": "#e4eaee",
    "#666666": "#9aa5ac",
    "#808080": "#a5afb5",
    "#e5e5e5": "#2f373c",
    "#e6e6e6": "#2f373c",
}
STYLE: Any = {
    "figure.figsize": (7.2, 4.0),
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 11.0,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.facecolor": PAPER,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=[AFTER, BEFORE, QUIET, INK]),
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": BAND,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.hashsalt": "lowcal",
    "svg.fonttype": "path",
}


def use_style() -> None:
    """Draw without a screen, in this style, from now on."""
    mpl.use("Agg")
    mpl.rcParams.update(STYLE)


def save(figure: Any, path: Path, text: str) -> None:
    """Write a figure as SVG, the same bytes for the same figure, with a description for who cannot see it."""
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Title": text})
    drawn = re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)
    path.write_text(re.sub(r"(<defs>\s*<style[^>]*>)", lambda found: found[1] + dark_rules(), drawn, count=1), "utf-8")


def dark_rules() -> str:
    """Return the style sheet that replaces colours in the dark; without a browser it is ignored."""
    rules = (
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    return "@media (prefers-color-scheme: dark) {" + "\n".join(rules) + "}\n"
