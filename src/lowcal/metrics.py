"""The module `lowcal.auditing.metrics`, by the name that users know."""

import sys

from lowcal.auditing.metrics import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.auditing.metrics"]
