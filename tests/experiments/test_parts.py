"""Long work in parts: finished ones are kept, an interrupted run goes on, other settings are done anew."""

import json

import pytest

from experiments.parts import Parts


class Work:
    def __init__(self):
        self.done = []

    def __call__(self, name):
        def compute():
            self.done.append(name)
            return {"value": len(name), "at": (1, 2)}

        return compute


def test_a_finished_part_is_kept(tmp_path):
    work, parts = Work(), Parts(tmp_path)
    first = parts.get("a", {"seed": 0, "sizes": (1, 2)}, work("a"))
    again = Parts(tmp_path).get("a", {"seed": 0, "sizes": (1, 2)}, work("a"))
    assert first == again == {"value": 1, "at": [1, 2]}
    assert work.done == ["a"]


def test_a_run_that_was_interrupted_goes_on(tmp_path):
    work, parts = Work(), Parts(tmp_path)

    def interrupted():
        raise KeyboardInterrupt

    parts.get("seed-0", {}, work("seed-0"))
    with pytest.raises(KeyboardInterrupt):
        parts.get("seed-1", {}, interrupted)
    for name in ("seed-0", "seed-1"):
        parts.get(name, {}, work(name))
    assert work.done == ["seed-0", "seed-1"]
    assert not list(tmp_path.rglob("*.part"))


def test_other_settings_and_broken_files_are_made_again(tmp_path):
    work, parts = Work(), Parts(tmp_path)
    parts.get("a", {"rows": 10}, work("first"))
    parts.get("a", {"rows": 20}, work("second"))
    file = tmp_path / "parts" / "a.json"
    file.write_text(file.read_text()[:-5])
    parts.get("a", {"rows": 20}, work("third"))
    file.write_text("[1]")
    parts.get("a", {"rows": 20}, work("fourth"))
    assert work.done == ["first", "second", "third", "fourth"]
    assert json.loads(file.read_text())["key"] == {"rows": 20}


def test_progress_is_told_when_asked(tmp_path, capsys):
    Parts(tmp_path, is_loud=True).get("a", {}, dict)
    Parts(tmp_path, is_loud=True).get("a", {}, dict)
    Parts(tmp_path).get("a", {}, dict)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("experiments: a: done in")
    assert lines[1] == "experiments: a: kept from an earlier run"
