"""Input: tables, outcomes and files are read and checked; also errors, progress, saved values and ONNX graphs."""
