"""Every page of docs/how-to runs as printed, and shows what is really printed."""

from __future__ import annotations

from pathlib import Path

import pytest

import pages

HOW_TO = sorted((Path(__file__).parents[1] / "docs" / "how-to").glob("*.md"))


def test_there_are_pages():
    assert {"add-a-notion.md", "add-a-hypothesis-class.md"} <= {page.name for page in HOW_TO}


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_a_page_runs_and_prints_what_it_shows(page):
    pages.run(page)


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_links_of_a_page_lead_somewhere(page):
    assert not pages.broken_links(page)


# --- the runner itself ---------------------------------------------------------------------------------------


def write(tmp_path, *blocks):
    page = tmp_path / "page.md"
    page.write_text("".join(f"Some words.\n\n```{kind}\n{body}\n```\n" for kind, body in blocks), encoding="utf-8")
    return page


def test_blocks_share_one_session(tmp_path):
    names, printed = pages.run(write(tmp_path, ("python", "a = 2"), ("sh", "exit 1"), ("python", "print(a + 1)")))
    assert names["a"] == 2
    assert printed == "3\n"


def test_a_text_block_must_be_what_is_printed(tmp_path):
    pages.run(write(tmp_path, ("python", "print(1)\nprint(2)"), ("text", "1\n2")))
    pages.run(write(tmp_path, ("python", "print(1)"), ("sh", "ls"), ("text", "the listing")))
    for shown in ("1", "1\n3", "1\n2\n3"):
        with pytest.raises(AssertionError, match=r"page.md shows what is not printed"):
            pages.run(write(tmp_path, ("python", "print(1)\nprint(2)"), ("text", shown)))


def test_a_page_that_fails_or_has_no_code_is_no_page(tmp_path):
    with pytest.raises(ZeroDivisionError):
        pages.run(write(tmp_path, ("python", "1 / 0")))
    with pytest.raises(AssertionError, match="has no Python"):
        pages.run(write(tmp_path, ("sh", "ls")))


def test_a_link_to_nowhere_is_found(tmp_path):
    (tmp_path / "there.md").write_text("", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#part) [b](https://example.org/x) [c](gone.md)", encoding="utf-8")
    assert pages.broken_links(page) == ["gone.md"]
