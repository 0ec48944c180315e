"""The module `lowcal.auditing.metrics`, by the name that users know."""

import sys

import lowcal.auditing.metrics as home
from lowcal.auditing.metrics import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = home
