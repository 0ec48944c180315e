"""Saved audits side by side: the same groups by different models, or by one model month after month."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from os import PathLike
from pathlib import Path
from textwrap import fill
from typing import Any

from lowcal.auditing.reports import words
from lowcal.auditing.reports.audit_report import Gap, Origin, Verdict, written
from lowcal.auditing.reports.page import comparison_page
from lowcal.data.errors import InvalidInput, abbreviate, aligned, brief_names, printable, repeated, some_of
from lowcal.subpopulations.base import EVERYONE

#: The number of groups in the text of a comparison.
SHOWN = 15


@dataclass(frozen=True, eq=False)
class SavedAudit:
    """The part of an audit that a comparison shows: its verdict, and the mean difference of every group (and class)."""

    path: str
    asked: str
    verdict: Verdict
    confidence: float
    n_rows: int
    lower: float
    upper: float
    origin: Origin
    gaps: Mapping[str, Gap]

    @classmethod
    def read(cls, path: str) -> SavedAudit:
        """Return the audit that `AuditReport.to_json` or `lowcal audit --json` wrote; refuse other files."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")), path)
        except OSError as error:
            raise InvalidInput(f"{path} can't be read: {error.strerror}.") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            made_by = "'lowcal audit --json' or report.to_json()"
            raise InvalidInput(
                f"{path} is not an audit saved by {made_by}; audits with --by have pages of their own."
            ) from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], path: str) -> SavedAudit:
        """Return the audit in `AuditReport.to_dict`; of equal names the first group counts, the worst."""
        is_per_person = data["per_person"] is not None
        tolerance = "per_person={per_person:g}" if is_per_person else "alpha={alpha:g}"
        found = data["largest_per_person"] if is_per_person else data
        lower, upper = ("lower", "upper") if is_per_person else ("certified_lower", "certified_alpha")
        return cls(
            path=path,
            asked=f"{data['notion']} at {tolerance.format(**data)}",
            verdict=Verdict(data["verdict"]),
            confidence=float(data["confidence"]),
            n_rows=int(data["n_rows"]),
            lower=_number(found[lower]),
            upper=_number(found[upper]),
            origin=Origin(**data.get("origin", {})),
            gaps=dict(each for one in reversed(data["findings"]) for each in _gaps(one)),
        )

    @property
    def noun(self) -> str:
        """The name of the error that the verdict compares with the tolerance."""
        return "error per person" if "per_person=" in self.asked else "violation"

    @property
    def ranked(self) -> list[str]:
        """The groups, those that are clearly off first, then by the size of the difference."""
        return sorted(self.gaps, key=lambda name: _badness(self.gaps[name]), reverse=True)


def _number(value: float | None) -> float:
    return nan if value is None else float(value)


def _gaps(finding: Mapping[str, Any]) -> list[tuple[str, Gap]]:
    """Return the differences of a group by its name; with several classes, by that of each class too."""
    name, gaps = str(finding["subpopulation"]), finding["gaps"]
    ends = ("predicted", "actual", "lower", "upper")
    read = [Gap(one["label"], *(_number(one[end]) for end in ends)) for one in gaps]
    return [(name if len(gaps) == 1 else f"{name}: {one.label}", one) for one in read]


def _badness(gap: Gap) -> tuple[bool, float]:
    return gap.least > 0.0, -1.0 if isnan(gap.gap) else abs(gap.gap)


@dataclass(frozen=True, eq=False)
class AuditComparison:
    """Audits by name, in the order given, and the groups that two or more of them have, the worst anywhere first."""

    audits: Mapping[str, SavedAudit]

    @classmethod
    def of(cls, audits: Sequence[SavedAudit]) -> AuditComparison:
        """Compare audits of the same notion and tolerance that share groups; others are refused."""
        first, *rest = audits
        for one in rest:
            if one.asked != first.asked:
                both = f"{first.path} is an audit of {first.asked}, {one.path} of {one.asked}"
                raise InvalidInput(f"{both}. Audit all in the same way.")
            if not {*first.gaps} & {*one.gaps} - {EVERYONE} and len(first.gaps) + len(one.gaps) > 2:
                has = " has ".join((first.path, some_of(first.ranked, 2)))
                raise InvalidInput(f"{has}, {one.path} has {some_of(one.ranked, 2)}: they share no group to compare.")
        return cls(dict(zip(_names(audits), audits, strict=True)))

    @cached_property
    def groups(self) -> list[str]:
        """The groups of at least two audits."""
        common = repeated(name for one in self.audits.values() for name in one.gaps)
        return sorted(common, key=lambda name: max(map(_badness, self.gaps(name).values())), reverse=True)

    def gaps(self, group: str) -> dict[str, Gap]:
        """Return the differences of a group by the names of the audits that have it."""
        return {name: one.gaps[group] for name, one in self.audits.items() if group in one.gaps}

    @property
    def summary(self) -> str:
        """What was compared, and with which confidence."""
        each = {words.percent(one.confidence) for one in self.audits.values()}
        least = max(0.0, 1.0 - sum(1.0 - one.confidence for one in self.audits.values()))
        asked = next(iter(self.audits.values())).asked
        intervals = f"the intervals of an audit hold at once with {' or '.join(sorted(each))} confidence"
        together = f"those of all audits together with at least {words.percent(least)}"
        return f"{len(self.audits)} audits of {asked}; {intervals}, {together}."

    def verdicts(self) -> list[list[str]]:
        """Return a row for each audit, below their headings: its verdict, and its worst group."""
        noun = f"Largest {next(iter(self.audits.values())).noun}"
        heads = ["Audit", "Rows", "Verdict", noun, "Worst group", "Predicted", "Actual", "Difference", "Interval"]
        rows = []
        for name, one in self.audits.items():
            predicted, actual, gap, low, high = words.means(one.gaps[one.ranked[0]])
            largest = f"{words.number(one.lower)} to {words.number(one.upper)}"
            worst = [printable(abbreviate(one.ranked[0], 40)), predicted, actual, gap, f"{low} to {high}"]
            rows.append([printable(name), f"{one.n_rows:,}", one.verdict.value, largest, *worst])
        return [heads, *rows]

    def differences(self, n: int | None = None) -> list[list[str]]:
        """Return a row for each of the n worst groups, below their headings: actual minus predicted in every audit."""
        rows = ([name, *(_cell(one.gaps.get(name)) for one in self.audits.values())] for name in self.groups[:n])
        return [["Group", *self.audits], *rows]

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """Return the comparison as one HTML page that needs nothing else; with a path, also write it there."""
        return written(comparison_page(self), path)

    def __str__(self) -> str:
        heads, *rows = self.differences(SHOWN)
        names = brief_names(row[0] for row in rows)
        table = [[printable(one) for one in heads], *([name, *row[1:]] for name, row in zip(names, rows, strict=True))]
        left = len(self.groups) - len(rows)
        lead = "Actual minus predicted, in percentage points, with intervals; the largest difference comes first:"
        first = [fill(self.summary, 110), "", *aligned(self.verdicts(), "lrlllrrrr")]
        second = [lead, "", *aligned(table, "l" + "r" * len(self.audits)), *words.left_out(left)]
        return "\n".join([*first, "", *second])


def _cell(gap: Gap | None) -> str:
    """Return a difference and its interval; a dash where an audit does not have the group."""
    if gap is None or isnan(gap.gap):
        return "–"  # noqa: RUF001
    *_, value, low, high = words.means(gap)
    return f"{value} ({low} to {high})"


def _names(audits: Sequence[SavedAudit]) -> list[str]:
    """Return a name for each audit: its model, or else its file without or with its folder, the first that differ."""
    models = [one.origin.model for one in audits]
    for names in (models, [Path(one.path).stem for one in audits], [one.path for one in audits]):
        if all(names) and len({*names}) == len(names):
            return names
    raise InvalidInput("An audit is given twice; give each file once.")
