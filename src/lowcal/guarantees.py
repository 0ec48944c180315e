"""The module `lowcal.theory.guarantees`, by the name that users know."""

import sys

from lowcal.theory.guarantees import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.theory.guarantees"]
