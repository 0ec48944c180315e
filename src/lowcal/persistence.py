"""The module `lowcal.deploy.persistence`, by the name that users know."""

import sys

from lowcal.deploy.persistence import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = sys.modules["lowcal.deploy.persistence"]
