"""The module `lowcal.data.errors`, by the name that users know."""

import sys

from lowcal.data.errors import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.data.errors"]
