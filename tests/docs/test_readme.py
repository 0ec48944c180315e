"""The examples of the README run as printed: its Python in one session, its commands in one folder."""

import re

import pages

README = pages.ROOT / "README.md"


def test_examples_run_in_order(tmp_path):
    names, printed = pages.run(README, tmp_path)
    assert "degree-2 as far as the rows allow: noise" in printed
    assert "Log loss on held-out rows: " in printed
    assert "'notion'" in printed
    assert names["calibrated"].shape == names["data"].p.shape


def test_the_five_jobs_are_there_and_each_is_run():
    jobs = re.split(r"^### (?=\d\. )", README.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [job[:2] for job in jobs] == ["1.", "2.", "3.", "4.", "5."]
    for job in jobs:
        kinds = [kind for kind, body in pages.FENCE.findall(job) if kind == "python" or pages.CALLS.search(body)]
        assert kinds, f"nothing to run in {job.splitlines()[0]}"


def test_files_named_in_the_readme_exist():
    targets = pages.LINK.findall(README.read_text(encoding="utf-8"))
    assert targets
    assert not [target for target in targets if not (README.parent / target).exists()]
