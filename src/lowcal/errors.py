"""The module `lowcal.data.errors`, by the name that users know."""

import sys

import lowcal.data.errors as home
from lowcal.data.errors import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = home
