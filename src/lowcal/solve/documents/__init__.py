"""Predictors as documents: plain data with a checksum, checked field by field when they are read."""
