"""Data to try things on: exact worlds from the paper, a generator with a known truth, and UCI Adult."""

from lowcal.datasets.adult import load_adult
from lowcal.datasets.base import Dataset
from lowcal.datasets.synthetic import make_miscalibrated, parity_square, two_halves

__all__ = ["Dataset", "load_adult", "make_miscalibrated", "parity_square", "two_halves"]
