"""Models that leave the process: saved files and ONNX."""
