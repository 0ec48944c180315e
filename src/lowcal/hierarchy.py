"""The module `lowcal.theory.hierarchy`, by the name that users know."""

import sys

from lowcal.theory.hierarchy import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.theory.hierarchy"]
