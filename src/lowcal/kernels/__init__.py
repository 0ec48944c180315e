"""Kernels: the reference engine is the definition, faster ones must agree with it."""
