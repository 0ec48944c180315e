"""Fitting: problems, solvers, steps, and what stops them."""
