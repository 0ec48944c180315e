"""The pages of docs/paper say what the measured files beside them say, and these meet what the project promises."""

import json
from pathlib import Path

import pytest

from experiments import examples, figure_1, hierarchy, real, samples, table
from experiments.results import Claim
from experiments.targets import TARGETS

PAPER = Path(__file__).resolve().parents[2] / "docs" / "paper"


def read(name):
    """Return the summary, its claims and its seconds."""
    summary = json.loads((PAPER / f"{name}.json").read_text(encoding="utf-8"))
    claims = tuple(Claim(**claim) for claim in summary.pop("claims"))
    clock = PAPER / f"{name}.seconds.json"
    return summary, claims, json.loads(clock.read_text())["fit, CPU seconds"] if clock.exists() else {}


def table_page(summary, claims, seconds):
    return table.page(summary, seconds, (*claims, *table.judge_seconds(summary, seconds)))


PAGES = {
    "counterexample": lambda s, c, _: examples.page_counterexample(s, c),
    "seventy-thirty": lambda s, c, _: examples.page_seventy_thirty(s, c),
    "robustness": lambda s, c, _: examples.page_robustness(s, c),
    "figure-1": lambda s, c, _: figure_1.page(s, c),
    "table": table_page,
    "hierarchy": lambda s, c, _: hierarchy.page(s, c),
    "samples": lambda s, c, _: samples.page(s, c),
    "real": lambda s, c, seconds: real.page(s, seconds, c),
}
JUDGES = {
    "counterexample": examples.judge_counterexample,
    "seventy-thirty": examples.judge_seventy_thirty,
    "robustness": examples.judge_robustness,
    "figure-1": figure_1.judge,
    "table": table.judge,
    "samples": samples.judge,
    "real": real.judge,
}


def test_every_target_has_its_page():
    assert set(PAGES) == set(TARGETS)
    index = (PAPER / "index.md").read_text(encoding="utf-8")
    for name in TARGETS:
        claims = read(name)[1]
        assert f"({name}.md) | {sum(c.holds for c in claims)} of {len(claims)}" in index


@pytest.mark.parametrize("name", TARGETS)
def test_a_page_is_made_from_its_figures(name):
    summary, claims, seconds = read(name)
    assert (PAPER / f"{name}.md").read_text(encoding="utf-8") == PAGES[name](summary, claims, seconds)
    if name in JUDGES:
        assert JUDGES[name](summary) == claims


@pytest.mark.parametrize("name", TARGETS)
def test_links_of_a_page_lead_somewhere(name):
    import re

    text = (PAPER / f"{name}.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (PAPER / target).exists(), target


def test_pictures_are_small():
    for picture in PAPER.glob("*.png"):
        assert 10_000 < picture.stat().st_size < 300_000


def test_figure_1_was_measured_on_five_seeds_of_the_paper_s_world():
    summary, _, _ = read("figure-1")
    assert summary["settings"]["seeds"] == 5
    assert summary["settings"]["engine"] == "torch"
    assert not summary["settings"]["is_small"]


def test_degree_two_ends_with_little_excess_variance_and_full_overfits():
    """MC2 at most half of MA's excess variance and at most MC-full's; MC-full's multiaccuracy error above MC2's."""
    curves = read("figure-1")[0]["curves"]
    excess = {m: curves[m]["test"]["excess variance"]["mean"][-1] for m in curves}
    assert excess["MC2"] <= excess["MA"] / 2
    assert excess["MC2"] <= excess["MC-full"]
    error = {m: curves[m]["test"]["multiaccuracy error"]["mean"][-1] for m in curves}
    assert error["MC-full"] > error["MC2"]
