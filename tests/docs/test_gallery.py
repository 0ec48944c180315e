"""The examples run, decide what their pages say, and their pages show their scripts; pictures are those of the data."""

from __future__ import annotations

import importlib
import os
import re
import sys
from xml.etree import ElementTree

import pytest

import pages

DOCS = pages.ROOT / "docs"
SCRIPT = str(DOCS / "gallery.py")
NUMBER = re.compile(r"\d[\d,]*\.?\d*")

pytest.importorskip("matplotlib", reason="the gallery needs matplotlib")


@pytest.fixture(scope="module")
def gallery():
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("gallery")
    finally:
        sys.path.remove(str(DOCS))


NAMES = sorted(path.stem for path in (DOCS / "examples").glob("*.py"))


def committed(name):
    return (DOCS / "examples" / f"{name}.md").read_text(encoding="utf-8")


def title_of(svg):
    """The description of a picture, which ElementTree finds only in a file that is well formed."""
    found = ElementTree.fromstring(svg.read_text(encoding="utf-8")).iter("{http://purl.org/dc/elements/1.1/}title")
    return next(one.text for one in found if one.text)


def test_the_gallery_has_every_script_and_nothing_else(gallery):
    assert sorted(gallery.NAMES) == NAMES
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_and_decides_as_its_page_says(name, gallery, run_python, tmp_path):
    missing = gallery.Example(name).missing()
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    run_python(SCRIPT, name, "--out", str(tmp_path))
    fresh = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    was, now = gallery.decision(committed(name)), gallery.decision(fresh)
    assert NUMBER.sub("#", now) == NUMBER.sub("#", was)
    for old, new in zip(NUMBER.findall(was), NUMBER.findall(now), strict=True):  # another booster, another processor
        assert float(new.replace(",", "")) == pytest.approx(float(old.replace(",", "")), rel=0.15)
    assert title_of(tmp_path / f"{name}.svg") == title_of(DOCS / "examples" / f"{name}.svg")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_its_script(name, gallery):
    example, page = gallery.Example(name), committed(name)
    assert re.findall(r"^# (.*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE) == [example.title]
    code = [body.strip() for kind, body in pages.FENCE.findall(page) if kind == "python"]
    assert code == [body for _, body in example.cells() if body]
    for text in [*example.head.split("\n\n")[1:], *(text for text, _ in example.cells())]:
        assert text.strip() in page
    assert re.search(r"^Data: ", example.head, re.MULTILINE)
    assert gallery.foot(example).strip() in page
    assert title_of(DOCS / "examples" / f"{name}.svg") in page


def test_the_overview_is_made_of_the_pages(gallery):
    assert (DOCS / "examples" / "index.md").read_text(encoding="utf-8") == gallery.overview()


@pytest.mark.parametrize("page", sorted((DOCS / "examples").glob("*.md")), ids=lambda page: page.stem)
def test_links_of_an_example_lead_somewhere(page):
    assert not pages.broken_links(page)


def test_without_its_data_an_example_is_left_as_it_is(run_python, tmp_path):
    done = run_python(SCRIPT, "credit", "--out", str(tmp_path), env=os.environ | {"LOWCAL_DATA": str(tmp_path)})
    assert done.stdout == "credit: left as it is, for lack of credit_default.parquet\n"
    assert not list(tmp_path.iterdir())


def test_what_an_example_needs_is_read_off_its_script(gallery):
    assert gallery.Example("census").packages() == {"matplotlib", "numpy", "lowcal"}  # LightGBM is inside a try
    assert "dask" in gallery.Example("large").packages()
    assert gallery.Example("superclasses").files() == ["cifar100_probs.npz"]


def test_a_decision_is_a_line_of_its_own(gallery):
    shown = gallery.show("one\nDecision: go.\n")
    assert shown == "```text\none\n```\n\n**Decision: go.**"
    assert gallery.decision(shown) == "Decision: go."
    assert gallery.show("Decision: go.\n") == "**Decision: go.**"
    assert gallery.show("") == ""


def test_pictures_are_those_of_the_data(run_python, tmp_path):
    """The figures in their descriptions, and so in the README, are what a fresh audit finds."""
    run_python(str(DOCS / "pictures.py"), "--out", str(tmp_path))
    drawn = sorted(tmp_path.glob("*.svg"))
    assert [path.stem for path in drawn] == ["before-after", "concepts"]
    for path in drawn:
        assert title_of(path) == title_of(DOCS / "_static" / path.name)
    for page in (pages.ROOT / "README.md", DOCS / "index.md"):
        described = re.search(r"!\[([^\]]*)\]\([\w/]*_static/before-after.svg\)", page.read_text(encoding="utf-8"))[1]
        assert described == title_of(DOCS / "_static" / "before-after.svg")


def test_figures_have_colours_for_the_dark(gallery):
    for path in [
        *(DOCS / "examples").glob("*.svg"),
        *(DOCS / "_static" / f"{name}.svg" for name in ("concepts", "benchmarks")),
    ]:
        text = path.read_text(encoding="utf-8")
        assert "prefers-color-scheme: dark" in text, path
        assert "fill: #ffffff" in text, path  # its own background
