"""The module `lowcal.data.datasets`, by the name that users know."""

import sys

from lowcal.data.datasets import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.data.datasets"]
