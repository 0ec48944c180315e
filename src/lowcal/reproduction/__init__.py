"""The paper, reproduced: `run("figure-1", "results")` is what `lowcal reproduce figure-1 --out results` does.

Every target measures, says for each claim whether it holds, and writes a JSON file, a CSV file, a page and, where
matplotlib is installed, a figure. Finished parts are kept, so that an interrupted run goes on where it stopped.
"""

from lowcal.reproduction.experiment import Settings, small_settings
from lowcal.reproduction.results import Claim, Result
from lowcal.reproduction.targets import ALIASES, TARGETS, run

__all__ = ["ALIASES", "TARGETS", "Claim", "Result", "Settings", "run", "small_settings"]
