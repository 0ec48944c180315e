"""Input: tables, outcomes and files are read and checked; also errors, progress, saved values and ONNX graphs."""

#: The version of the package, which saved models, graphs and reports name.
__version__ = "0.2.0"
