"""The module `lowcal.solve.online`, by the name that users know."""

import sys

from lowcal.solve.online import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.solve.online"]
