"""What a reproduction says: summaries over seeds, claims with their verdicts, and the files that hold them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.parts import write_text
from lowcal.data.errors import MissingExtra


@dataclass(frozen=True)
class Claim:
    """A claim, where it is made, what was measured, whether it holds, and, where it does not, why."""

    claim: str
    source: str
    measured: str
    holds: bool
    reason: str = ""

    @property
    def verdict(self) -> str:
        """One word or two."""
        return "holds" if self.holds else "does not hold"

    def __str__(self) -> str:
        why = f" {self.reason}" if self.reason else ""
        return f"[{self.verdict}] {self.claim} ({self.source})\n    {self.measured}.{why}"


@dataclass(frozen=True)
class Result:
    """The outcome of one target.

    `summary` holds everything measured but the clock's figures, which no rerun repeats; these are in `seconds`, and the
    claims about them in `timed`.
    """

    name: str
    summary: dict[str, Any]
    claims: tuple[Claim, ...]
    page: str
    rows: Sequence[Mapping[str, Any]] = ()
    seconds: dict[str, Any] = field(default_factory=dict)
    draw: Callable[[], Any] | None = field(default=None, repr=False)
    timed: tuple[Claim, ...] = ()

    @property
    def score(self) -> str:
        """How many claims hold; those about speed, which depend on the machine, are counted apart."""
        told = f"{sum(c.holds for c in self.claims)} of {len(self.claims)}"
        fast = f"; about speed {sum(c.holds for c in self.timed)} of {len(self.timed)}" if self.timed else ""
        return told + fast

    def write(self, out: Path) -> list[Path]:
        """Write NAME.json, .csv, .md, seconds apart, and the figure where matplotlib is installed; return the paths."""
        texts = {
            "json": to_json({**self.summary, "claims": [asdict(c) for c in self.claims]}),
            "csv": to_csv(self.rows),
            "seconds.json": to_json(self.seconds) if self.seconds else "",
            "md": self.page,
        }
        paths = []
        for ending, text in texts.items():
            if text:
                paths.append(out / f"{self.name}.{ending}")
                write_text(paths[-1], text)
        if self.draw is not None:
            try:
                figure = self.draw()
            except MissingExtra:
                return paths
            paths.append(out / f"{self.name}.png")
            figure.savefig(paths[-1])
        return paths


def to_json(found: Mapping[str, Any]) -> str:
    """Write a summary so that it can be read and compared."""
    return json.dumps(found, indent=1) + "\n"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows of a table, with a header; nothing for no rows.

    >>> to_csv([{"a": 1, "b": 0.5}])
    'a,b\\r\\n1,0.5\\r\\n'
    """
    if not rows:
        return ""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the standard deviation over the seeds (0 for a single one).

    >>> summarise([1.0, 3.0]) == {"mean": 2.0, "sd": 2**0.5}
    True
    """
    found = np.asarray(values, dtype=np.float64)
    return {"mean": float(found.mean()), "sd": float(found.std(ddof=1)) if len(found) > 1 else 0.0}


def summarise_trees(found: Sequence[Any]) -> Any:
    """Return `summarise` of every number of equally shaped dictionaries of dictionaries of numbers, one for each seed.

    >>> summarise_trees([{"a": {"b": 1.0}}, {"a": {"b": 1.0}}])
    {'a': {'b': {'mean': 1.0, 'sd': 0.0}}}
    """
    first = found[0]
    if not isinstance(first, dict):
        return summarise(found)
    return {name: summarise_trees([one[name] for one in found]) for name in first}


def show(figure: Mapping[str, float], digits: int = 4) -> str:
    """Write mean and deviation.

    >>> show({"mean": 0.01234, "sd": 0.001})
    '0.0123 ± 0.0010'
    """
    return f"{figure['mean']:.{digits}f} ± {figure['sd']:.{digits}f}"


def verdict_lines(claims: Sequence[Claim]) -> str:
    """Return the claims as a Markdown table, with the reasons of those that do not hold below."""
    rows = [
        {"claim": c.claim, "where": c.source, "measured": c.measured, "verdict": f"**{c.verdict}**"} for c in claims
    ]
    reasons = "".join(f"\n* *{c.claim}* {c.verdict}: {c.reason}\n" for c in claims if c.reason)
    return markdown_table(rows) + reasons


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table.

    >>> print(markdown_table([{"a": 1, "b": "x"}]), end="")
    | a | b |
    |---|---|
    | 1 | x |
    """
    names = list(rows[0])
    head, *body = ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in ({n: n for n in names}, *rows)]
    return "\n".join([head, "|---" * len(names) + "|", *body]) + "\n"
