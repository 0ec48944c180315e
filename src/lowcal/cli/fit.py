"""`lowcal fit`: recalibrate the probabilities of a file and save what was learned."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

from lowcal.cli.output import check_outputs, put
from lowcal.cli.rows import (
    LABEL,
    Rows,
    find_roles,
    is_open,
    open_source,
    read_rows,
    split_names,
    subpopulations_of,
)
from lowcal.cli.talk import is_wanted, say
from lowcal.cli.usage import DONE
from lowcal.data.errors import sentence
from lowcal.data.files.paths import STREAM
from lowcal.deploy.persistence import save as write
from lowcal.rows.updates import Predictor
from lowcal.solve.fitting import multicalibrate
from lowcal.solve.options import MIN_SHARE
from lowcal.solve.recalibration import recalibrate
from lowcal.solve.runs import Fit, Record


def run(options: argparse.Namespace) -> int:
    """Fit on a file, say what was reached, save the model."""
    check_outputs(options.out, inputs=[options.file])
    with open_source(options, options.file) as source:
        roles = find_roles(options, source)
        rows = read_rows(options, source, roles)
        fit, text = (_chosen if is_open(options) else _asked)(options, rows)
    text += "".join(f"\nNote: {note}" for note in rows.notes)
    save(name_classes(fit.predictor, rows.classes), metadata_of(options, rows, fit), options.out)
    if not options.quiet:
        wrote = sentence(f"Wrote {options.out}")
        where = "" if options.out == STREAM else f"\n{wrote} Recalibrate new rows with:\n{_next(options)}"
        (say if options.out == STREAM else print)(text + where)
    return DONE


def _chosen(options: argparse.Namespace, rows: Rows) -> tuple[Fit, str]:
    """Let cross-validation choose; return the fit and what to say of it."""
    fit = recalibrate(
        LABEL,
        rows.probability[0],
        rows.X,
        sample_weight=rows.weight,
        groups=split_names(options.groups, rows.roles.columns) or None,
        progress=is_wanted(options),
        random_state=options.seed,
    )
    return fit, f"{fit}\n\nAudit the calibrated predictions on rows that the fit has not seen."


def _asked(options: argparse.Namespace, rows: Rows) -> tuple[Fit, str]:
    """Fit the notion that was asked for; return the fit and what to say of it."""
    before: list[float] = []

    def remember(record: Record) -> None:
        before.append(record.violation)  # the one that the update was made for

    fit = multicalibrate(
        LABEL,
        rows.probability[0],
        rows.X,
        subpopulations=subpopulations_of(options, rows.roles.columns),
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
        callback=remember,
        progress=is_wanted(options),
        random_state=options.seed,
    )
    return fit, describe(fit, before[0] if before else fit.violation, rows)


def name_classes(predictor: Predictor, classes: tuple[Any, ...] | None) -> Predictor:
    """Return the predictor of a fit of positions with the names of the classes."""
    if classes is None or predictor.layout.classes is None:
        return predictor
    return replace(predictor, layout=replace(predictor.layout, classes=classes))


def metadata_of(options: argparse.Namespace, rows: Rows, fit: Fit) -> dict[str, Any]:
    """Return what a later command must know of the file, and what was reached."""
    return {
        "label": options.label,
        "probability": list(rows.roles.probability[0]),
        "columns": list(rows.roles.columns),
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


def describe(fit: Fit, before: float, rows: Rows) -> str:
    """Say what was reached."""
    kept = len(fit.predictor)
    held = f", of which the held-out rows keep {kept}" if kept < fit.n_updates else ""
    upper = f" (certified to be at most {fit.upper:.4g})" if fit.upper > fit.violation else ""
    updates = f"{fit.n_updates}{held} (at most {fit.bound:,} were possible)"
    lines = [
        f"{fit.goal}: {fit.status.value}",
        "",
        f"  largest violation before  {before:.4g}",
        f"                    after   {fit.violation:.4g}{upper}, on the {rows.n:,} rows of the fit",
        *_log_loss(fit),
        f"  updates                   {updates}",
        "",
        fill(f"{_sentence(fit)} Audit the calibrated predictions on rows that the fit has not seen.", 110),
    ]
    return "\n".join(lines)


def _log_loss(fit: Fit) -> list[str]:
    """Return the line of the log loss on held-out rows, before and after, where it is known."""
    end = fit.history[len(fit.predictor) - 1] if len(fit.predictor) else fit.start
    if fit.start is None or end is None or fit.start.held_out_log_loss is None or end.held_out_log_loss is None:
        return []
    return [f"  log loss on held-out rows {fit.start.held_out_log_loss:.4g} -> {end.held_out_log_loss:.4g}"]


def _sentence(fit: Fit) -> str:
    sentence = fit.status.sentence[0].upper() + fit.status.sentence[1:]
    return sentence + ("." if fit.is_exact else ". Subpopulations were found by a learner: others may exist.")


def _next(options: argparse.Namespace) -> str:
    from shlex import quote

    return f"  lowcal predict {quote(options.out)} FILE --out calibrated.csv"
