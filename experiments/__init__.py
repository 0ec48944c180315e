"""The paper, reproduced: `python -m experiments figure-1 --out results`, or `targets.run("figure-1", "results")`.

Every target measures, says for each claim whether it holds, and writes a JSON file, a CSV file, a page and, where
matplotlib is installed, a figure. Finished parts are kept, so that an interrupted run goes on where it stopped. This
package stands beside lowcal in its repository and is not installed with it.
"""
