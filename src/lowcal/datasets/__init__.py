"""Data to try things on: exact worlds of the paper, its experiment's generator, made-up data, real data."""

from lowcal.datasets.adult import load_adult
from lowcal.datasets.base import Dataset
from lowcal.datasets.real import (
    load_acs_employment,
    load_bank_marketing,
    load_cifar100,
    load_credit_default,
    load_diabetes,
    load_student_dropout,
)
from lowcal.datasets.semi_synthetic import SemiSynthetic
from lowcal.datasets.synthetic import make_miscalibrated, parity_square, two_halves

__all__ = [
    "Dataset",
    "SemiSynthetic",
    "load_acs_employment",
    "load_adult",
    "load_bank_marketing",
    "load_cifar100",
    "load_credit_default",
    "load_diabetes",
    "load_student_dropout",
    "make_miscalibrated",
    "parity_square",
    "two_halves",
]
