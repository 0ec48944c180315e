"""The module `lowcal.theory.complexity`, by the name that users know."""

import sys

import lowcal.theory.complexity as home
from lowcal.theory.complexity import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = home
