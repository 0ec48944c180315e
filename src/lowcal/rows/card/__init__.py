"""Rows on a graphics card: code columns, log odds and outcomes stay there, and passes are sums of formulas.

A pass that has a formula here is summed on the card; any other visits the rows block by block in this machine's memory,
so that every notion and class works. Log odds are held in single precision, unless double is asked for: moments are
then right to 1e-7 of the mass of all rows, and predictions to 1e-5.
"""
