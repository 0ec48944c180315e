"""The paper, reproduced: `run("figure-1", "results")` is what `python -m experiments figure-1 --out results` does.

Every target measures, says for each claim whether it holds, and writes a JSON file, a CSV file, a page and, where
matplotlib is installed, a figure. Finished parts are kept, so that an interrupted run goes on where it stopped. This
package stands beside lowcal in its repository and is not installed with it.
"""

from experiments.experiment import Settings, small_settings
from experiments.results import Claim, Result
from experiments.targets import ALIASES, TARGETS, run

__all__ = ["ALIASES", "TARGETS", "Claim", "Result", "Settings", "run", "small_settings"]
