"""Every page of the documentation runs as printed, and shows what is really printed."""

from __future__ import annotations

import os

import pytest

import pages

DOCS = pages.ROOT / "docs"
EVERY = sorted(DOCS.glob("[!_]*.md")) + sorted(DOCS.glob("how-to/*.md"))
RUN = [page for page in EVERY if pages.has_examples(page)]


def named(page):
    return page.relative_to(pages.ROOT).as_posix()


def test_there_are_pages():
    expected = "tutorial index how-to/audit-a-model how-to/choose-a-notion how-to/choose-groups how-to/many-classes"
    expected += " how-to/certify-a-release how-to/add-a-notion how-to/add-a-hypothesis-class command-line"
    assert {f"docs/{name}.md" for name in expected.split()} <= {named(page) for page in RUN}


@pytest.mark.parametrize("page", RUN, ids=named)
def test_a_page_runs_and_prints_what_it_shows(page, tmp_path):
    pages.run(page, tmp_path)


@pytest.mark.parametrize("page", EVERY, ids=named)
def test_links_of_a_page_lead_somewhere(page):
    assert not pages.broken_links(page)


# --- the runner itself ---------------------------------------------------------------------------------------


def write(tmp_path, *blocks):
    page = tmp_path / "page.md"
    page.write_text("".join(f"Some words.\n\n```{kind}\n{body}\n```\n" for kind, body in blocks), encoding="utf-8")
    return page


def run(tmp_path, *blocks):
    return pages.run(write(tmp_path, *blocks), tmp_path)


def test_blocks_share_one_session(tmp_path):
    names, printed = run(tmp_path, ("python", "a = 2"), ("sh", "exit 1"), ("python", "print(a + 1)"))
    assert names["a"] == 2
    assert printed == "3\n"


def test_a_text_block_must_be_what_is_printed(tmp_path):
    run(tmp_path, ("python", "print(1)\nprint(2)"), ("text", "1\n2"))
    run(tmp_path, ("python", "print(1)"), ("sh", "ls"), ("text", "the listing"))
    for shown in ("1", "1\n3", "1\n2\n3"):
        with pytest.raises(AssertionError, match=r"page.md shows what is not printed"):
            run(tmp_path, ("python", "print(1)\nprint(2)"), ("text", shown))


def test_three_dots_stand_for_any_lines(tmp_path):
    count = ("python", "for i in range(5): print(i)")
    for shown in ("0\n...", "...\n4", "0\n...\n3\n4", "...", "0\n1\n...\n2\n3\n4"):
        run(tmp_path, count, ("text", shown))
    for shown in ("1\n...", "...\n3", "0\n...\n5", "0\n...\n3\n3\n4", "0...\n4"):
        with pytest.raises(AssertionError, match="shows what is not printed"):
            run(tmp_path, count, ("text", shown))


def test_a_page_that_fails_or_has_no_code_is_no_page(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, ("python", "1 / 0"))
    with pytest.raises(AssertionError, match="has nothing to run"):
        run(tmp_path, ("sh", "ls"))


def test_python_and_the_shell_share_a_folder(tmp_path):
    before = os.getcwd()
    _, printed = run(
        tmp_path,
        ("python", "from pathlib import Path\nPath('a.txt').write_text('7')"),
        ("sh", "python -c 'print(6)' >> a.txt"),
        ("python", "print(Path('a.txt').read_text())"),
    )
    assert printed == "76\n\n"
    assert os.getcwd() == before


def test_lowcal_is_the_command_of_this_package(tmp_path):
    import lowcal

    run(tmp_path, ("bash", "lowcal --version"), ("text", f"lowcal {lowcal.__version__}"))


def test_exit_codes_are_those_that_the_page_states(tmp_path):
    fails = "lowcal nonsense 2> errors.txt"
    run(tmp_path, ("sh", f'{fails}\necho "exit code $?"'), ("text", "exit code 64"))
    run(tmp_path, ("sh", f"{fails} || [ $? -eq 64 ]\necho $?"), ("text", "0"))
    with pytest.raises(AssertionError, match="shows what is not printed"):
        run(tmp_path, ("sh", f'{fails}\necho "exit code $?"'), ("text", "exit code 1"))
    with pytest.raises(AssertionError, match="exits with 64"):
        run(tmp_path, ("sh", fails))
    with pytest.raises(AssertionError, match="exits with 64"):
        run(tmp_path, ("sh", f"{fails}\nlowcal --version\necho $?"))


def test_a_command_may_take_several_lines():
    block = "lowcal audit \\\n  file.csv\n\n# a remark\npython -c '\nprint(1)\n'\necho done"
    commands = ["lowcal audit \\\n  file.csv", "python -c '\nprint(1)\n'", "echo done"]
    assert pages.split_commands(block) == commands
    with pytest.raises(AssertionError, match="no end"):
        pages.split_commands("python -c '\nprint(1)")


def test_a_link_to_nowhere_is_found(tmp_path):
    (tmp_path / "there.md").write_text("", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#part) [b](https://example.org/x) [c](gone.md)", encoding="utf-8")
    assert pages.broken_links(page) == ["gone.md"]
