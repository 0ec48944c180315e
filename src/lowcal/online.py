"""The module `lowcal.solve.online`, by the name that users know."""

import sys

import lowcal.solve.online as home
from lowcal.solve.online import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = home
