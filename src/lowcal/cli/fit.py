"""`lowcal fit`: recalibrate the probabilities of a file and save what was learned."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from shlex import quote
from textwrap import fill
from typing import Any

from lowcal.cli.rows import (
    LABEL,
    FileRows,
    choose_columns,
    is_open,
    open_file,
    read_rows,
    split_names,
    subpopulations_of,
)
from lowcal.cli.terminal import DONE, check_outputs, is_wanted, put, say
from lowcal.data.errors import sentence
from lowcal.data.files.tables import STREAM
from lowcal.deploy.persistence import save as write
from lowcal.rows.updates import Predictor
from lowcal.solve.fitting import multicalibrate
from lowcal.solve.options import MIN_SHARE
from lowcal.solve.recalibration import recalibrate
from lowcal.solve.runs import Fit, Record


def run(options: argparse.Namespace) -> int:
    """Fit on a file, say what was reached, save the model."""
    check_outputs(options.out, inputs=[options.file])
    with open_file(options) as table:
        rows = read_rows(options, table, choose_columns(options, table))
        fit, text = (_chosen if is_open(options) else _asked)(options, rows)
    text += "".join(f"\nNote: {note}" for note in rows.notes)
    predictor = fit.predictor
    if rows.classes is not None and predictor.layout.classes is not None:  # the fit knows classes by their positions
        predictor = replace(predictor, layout=replace(predictor.layout, classes=rows.classes))
    save(predictor, metadata_of(options, rows, fit), options.out)
    if options.quiet:
        return DONE
    if options.out == STREAM:
        say(text)
    else:
        print(f"{text}\n{sentence(f'Wrote {options.out}')} Recalibrate new rows with:")
        print(f"  lowcal predict {quote(options.out)} FILE --out calibrated.csv")
    return DONE


def _chosen(options: argparse.Namespace, rows: FileRows) -> tuple[Fit, str]:
    """Let cross-validation choose; return the fit and what to say of it."""
    fit = recalibrate(
        LABEL,
        rows.probability[0],
        rows.X,
        sample_weight=rows.weight,
        groups=split_names(options.groups, rows.chosen.columns) or None,
        progress=is_wanted(options),
        random_state=options.seed,
    )
    return fit, f"{fit}\n\nAudit the calibrated predictions on rows that the fit has not seen."


def _asked(options: argparse.Namespace, rows: FileRows) -> tuple[Fit, str]:
    """Fit the notion that was asked for; return the fit and what to say of it."""
    records: list[Record] = []
    fit = multicalibrate(
        LABEL,
        rows.probability[0],
        rows.X,
        subpopulations=subpopulations_of(options, rows.chosen.columns),
        notion=options.notion or "degree-2",
        alpha=options.alpha,
        per_person=options.per_person,
        min_share=MIN_SHARE if options.min_share is None else options.min_share,
        solver=options.solver,
        geometry=options.geometry,
        sample_weight=rows.weight,
        guard=not options.no_guard,
        validation_fraction=options.validation_fraction,
        max_updates=options.max_updates,
        callback=records.append,
        progress=is_wanted(options),
        random_state=options.seed,
    )
    return fit, describe(fit, records[0].violation if records else fit.violation, rows)


def metadata_of(options: argparse.Namespace, rows: FileRows, fit: Fit) -> dict[str, Any]:
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


def save(model: Predictor, metadata: dict[str, Any], path: str) -> None:
    """Save the model, whole or not at all; to standard output by way of a file."""
    if path == STREAM:
        with tempfile.TemporaryDirectory(prefix="lowcal-") as folder:
            file = Path(folder) / "model.json"
            write(model, file, metadata=metadata)
            put(file.read_text(encoding="utf-8"), STREAM)
        return
    write(model, path, metadata=metadata)


def describe(fit: Fit, before: float, rows: FileRows) -> str:
    """Say what was reached."""
    kept = len(fit.predictor)
    held = f", of which the held-out rows keep {kept}" if kept < fit.n_updates else ""
    upper = f" (certified to be at most {fit.upper:.4g})" if fit.upper > fit.violation else ""
    updates = f"{fit.n_updates}{held} (at most {fit.bound:,} were possible)"
    status = fit.status.sentence[0].upper() + fit.status.sentence[1:]
    learned = "" if fit.is_exact else " Subpopulations were found by a learner: others may exist."
    lines = [
        f"{fit.goal}: {fit.status.value}",
        "",
        f"  largest violation before  {before:.4g}",
        f"                    after   {fit.violation:.4g}{upper}, on the {rows.n:,} rows of the fit",
        *_log_loss(fit),
        f"  updates                   {updates}",
        "",
        fill(f"{status}.{learned} Audit the calibrated predictions on rows that the fit has not seen.", 110),
    ]
    return "\n".join(lines)


def _log_loss(fit: Fit) -> list[str]:
    """Return the line of the log loss on held-out rows, before and after, where it is known."""
    end = fit.history[len(fit.predictor) - 1] if len(fit.predictor) else fit.start
    if fit.start is None or end is None or fit.start.held_out_log_loss is None or end.held_out_log_loss is None:
        return []
    return [f"  log loss on held-out rows {fit.start.held_out_log_loss:.4g} -> {end.held_out_log_loss:.4g}"]
