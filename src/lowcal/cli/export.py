"""`lowcal export`: a saved model as an ONNX graph."""

from __future__ import annotations

import argparse

import lowcal
from lowcal.cli.predict import load
from lowcal.cli.terminal import DONE, WrongUsage, check_outputs
from lowcal.data.errors import sentence


def run(options: argparse.Namespace) -> int:
    """Write the graph, whole or not at all."""
    if not options.out.endswith(".onnx"):
        raise WrongUsage(f"The output is an ONNX graph: give a name that ends in .onnx, not {options.out!r}.")
    check_outputs(options.out, inputs=[options.model])
    predictor, _ = load(options.model)
    lowcal.to_onnx(predictor, options.out)
    if not options.quiet:
        print(sentence(f"Wrote {options.out}"))
    return DONE
