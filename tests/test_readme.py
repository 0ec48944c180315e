"""The examples of the README run as printed, in one session."""

from pathlib import Path

import pages

README = Path(__file__).parents[1] / "README.md"


def test_python_examples_run_in_order():
    names, printed = pages.run(README)
    assert "degree-2 at alpha=0.005: reached" in printed
    assert "'alpha'" in printed
    assert names["mended"].shape == names["data"].p.shape


def test_files_named_in_the_readme_exist():
    assert not pages.broken_links(README)
