"""`lowcal export`: a saved model as an ONNX graph."""

from __future__ import annotations

import argparse

import lowcal
from lowcal.cli.models import load
from lowcal.cli.output import check_outputs
from lowcal.cli.usage import DONE, WrongUsage
from lowcal.data.errors import sentence
from lowcal.data.files.paths import STREAM


def run(options: argparse.Namespace) -> int:
    """Write the graph, whole or not at all."""
    if options.out == STREAM or not options.out.endswith(".onnx"):
        raise WrongUsage(f"Export writes ONNX: give a name that ends in .onnx, not {options.out!r}.")
    check_outputs(options.out, inputs=[options.model])
    predictor, _ = load(options.model)
    lowcal.to_onnx(predictor, options.out)
    if not options.quiet:
        print(sentence(f"Wrote {options.out}"))
    return DONE
