"""Data to try things on: exact worlds from the paper, its experiment's generator, made-up data with a known truth, real data."""

from lowcal.datasets.adult import load_adult
from lowcal.datasets.base import Dataset
from lowcal.datasets.semi_synthetic import SemiSynthetic
from lowcal.datasets.synthetic import make_miscalibrated, parity_square, two_halves

__all__ = ["Dataset", "SemiSynthetic", "load_adult", "make_miscalibrated", "parity_square", "two_halves"]
