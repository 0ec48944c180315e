"""The module `lowcal.solve.sampling`, by the name that users know."""

import sys

from lowcal.solve.sampling import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.solve.sampling"]
