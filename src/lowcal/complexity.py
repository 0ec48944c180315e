"""The module `lowcal.theory.complexity`, by the name that users know."""

import sys

from lowcal.theory.complexity import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.theory.complexity"]
