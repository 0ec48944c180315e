"""The examples of the README run as printed, in one session."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_python_examples_run_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "degree-2 at alpha=0.005: reached" in printed
    assert "'alpha'" in printed
    assert names["mended"].shape == names["data"].p.shape


def test_files_named_in_the_readme_exist():
    text = README.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (README.parent / target).exists(), target
