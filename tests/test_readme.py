"""The examples of the README run as printed: its Python in one session, its commands in one folder."""

import re

import pytest

import pages

#: The second is the next README, until it takes the place of the first; its links start where the README is.
README, NEXT = pages.ROOT / "README.md", pages.ROOT / "docs" / "_readme_draft.md"
PRESENT = [page for page in (README, NEXT) if page.exists()]


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.stem)
def test_examples_run_in_order(page, tmp_path):
    if page.relative_to(pages.ROOT).as_posix() in pages.PENDING:
        pytest.skip("calls what is not built yet")
    names, printed = pages.run(page, tmp_path)
    assert "degree-2 at alpha=0.005: reached" in printed
    assert "'alpha'" in printed
    assert names["mended"].shape == names["data"].p.shape


def test_the_five_jobs_are_there_and_each_is_run():
    page = PRESENT[-1]
    jobs = re.split(r"^### (?=\d\. )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [job[:2] for job in jobs] == ["1.", "2.", "3.", "4.", "5."]
    for job in jobs:
        kinds = [kind for kind, body in pages.FENCE.findall(job) if kind == "python" or pages.CALLS.search(body)]
        assert kinds, f"nothing to run in {job.splitlines()[0]}"


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.stem)
def test_files_named_in_the_readme_exist(page):
    targets = pages.LINK.findall(page.read_text(encoding="utf-8"))
    assert targets
    assert not [target for target in targets if not (README.parent / target).exists()]
