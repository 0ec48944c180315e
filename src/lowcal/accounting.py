"""The module `lowcal.theory.accounting`, by the name that users know."""

import sys

import lowcal.theory.accounting as home
from lowcal.theory.accounting import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = home
