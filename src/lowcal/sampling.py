"""The module `lowcal.solve.sampling`, by the name that users know."""

import sys

import lowcal.solve.sampling as home
from lowcal.solve.sampling import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = home
