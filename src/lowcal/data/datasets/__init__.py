"""Data to try things on: the paper's two exact worlds, made-up data with a known truth, and UCI Adult."""

from lowcal.data.datasets.adult import load_adult
from lowcal.data.datasets.base import Dataset
from lowcal.data.datasets.synthetic import make_miscalibrated, parity_square, two_halves

__all__ = ["Dataset", "load_adult", "make_miscalibrated", "parity_square", "two_halves"]
