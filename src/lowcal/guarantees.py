"""The module `lowcal.theory.guarantees`, by the name that users know."""

import sys

import lowcal.theory.guarantees as home
from lowcal.theory.guarantees import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = home
