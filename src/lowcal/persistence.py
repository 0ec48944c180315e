"""The module `lowcal.deploy.persistence`, by the name that users know."""

import sys

import lowcal.deploy.persistence as home
from lowcal.deploy.persistence import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = home
