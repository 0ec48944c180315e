"""The module `lowcal.theory.accounting`, by the name that users know."""

import sys

from lowcal.theory.accounting import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.theory.accounting"]
