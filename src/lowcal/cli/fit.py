"""`lowcal fit`: recalibrate the probabilities of a file and save what was learned."""

from __future__ import annotations

import argparse
from dataclasses import replace
from shlex import quote
from textwrap import fill
from typing import Any

from lowcal.cli.rows import LABEL, FileRows, given, is_automatic, open_file, read_rows, split_names, subpopulations_of
from lowcal.cli.terminal import DONE, check_outputs, is_wanted, put, say
from lowcal.data.errors import sentence
from lowcal.data.files.tables import STREAM
from lowcal.persistence import save, to_bytes
from lowcal.solve.fitting import Fit, Record, multicalibrate
from lowcal.solve.recalibration import recalibrate

_AUDIT = "Audit the calibrated predictions on rows that the fit has not seen."
_TARGET = ("notion", "alpha", "per_person", "min_share", "solver", "geometry", "validation_fraction", "max_updates")


def run_fit(options: argparse.Namespace) -> int:
    """Fit on a file, report what was reached, save the model."""
    check_outputs(options.out, inputs=[options.file])
    with open_file(options) as table:
        rows = read_rows(options, table)
        fit, text = _fit(options, rows)
    predictor, metadata = fit.predictor, _metadata(options, rows, fit)
    if rows.classes is not None and predictor.layout.classes is not None:  # the fit knows classes by their positions
        predictor = replace(predictor, layout=replace(predictor.layout, classes=rows.classes))
    text += "".join(f"\nNote: {note}" for note in rows.notes)
    if options.out == STREAM:
        put(to_bytes(predictor, metadata), STREAM)
        if not options.quiet:
            say(text)
        return DONE
    save(predictor, options.out, metadata=metadata)
    if not options.quiet:
        print(f"{text}\n{sentence(f'Wrote {options.out}')} Recalibrate new rows with:")
        print(f"  lowcal predict {quote(options.out)} FILE --out calibrated.csv")
    return DONE


def _fit(options: argparse.Namespace, rows: FileRows) -> tuple[Fit, str]:
    """Let cross-validation choose, or fit the notion that was asked for; return the fit and its description."""
    how: dict[str, Any] = {"progress": is_wanted(options), "random_state": options.seed, **rows.weights}
    data = (LABEL, rows.probability[0], rows.X)
    if is_automatic(options):
        fit = recalibrate(*data, groups=split_names(options.groups, rows.chosen.columns) or None, **how)
        return fit, f"{fit}\n\n{_AUDIT}"
    records: list[Record] = []
    how |= {"guard": not options.no_guard, "callback": records.append, **given(options, *_TARGET)}
    fit = multicalibrate(*data, subpopulations=subpopulations_of(options, rows.chosen.columns), **how)
    return fit, describe(fit, records[0].violation if records else fit.violation, rows.n)


def _metadata(options: argparse.Namespace, rows: FileRows, fit: Fit) -> dict[str, Any]:
    """Return what a later command must know of the file, and what was reached."""
    return {
        "label": options.label,
        "probability": list(rows.chosen.probability[0]),
        "columns": list(rows.chosen.columns),
        "classes": None if rows.classes is None else list(rows.classes),
        "notion": str(fit.notion),
        "alpha": fit.alpha,
        "per_person": fit.per_person,
        "status": fit.status.value,
        "violation": fit.violation,
        "n_rows": rows.n,
        **rows.sampled,
    }


def describe(fit: Fit, before: float, n: int) -> str:
    """Say what was reached on n rows."""
    kept = len(fit.predictor)
    held = f", of which the held-out rows keep {kept}" if kept < fit.n_updates else ""
    upper = f" (certified to be at most {fit.upper:.4g})" if fit.upper > fit.violation else ""
    status = fit.status.sentence.replace("guard=False", "--no-guard").replace("max_updates", "--max-updates")
    status = status[0].upper() + status[1:]
    learned = "" if fit.is_exact else " Subpopulations were found by a learner: others may exist."
    lines = [
        f"{fit.goal}: {fit.status.value}",
        "",
        f"  largest violation before  {before:.4g}",
        f"                    after   {fit.violation:.4g}{upper}, on the {n:,} rows of the fit",
        f"  updates                   {fit.n_updates}{held} (at most {fit.bound:,} were possible)",
        "",
        fill(f"{status}.{fit.cross_fitted}{learned} {_AUDIT}", 110, break_on_hyphens=False),
    ]
    return "\n".join(lines)
