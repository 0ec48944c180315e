"""`python -m experiments`: verdicts on the standard output, files in the folder, errors in a sentence."""

import json

import pytest

import pages
from experiments.__main__ import main, parser
from experiments.targets import ALIASES, TARGETS


def test_it_runs_as_a_module_from_the_root_of_the_repository(tmp_path, run_python):
    done = run_python("-m", "experiments", "counterexample", "--out", str(tmp_path), cwd=pages.ROOT)
    assert "Claims that hold: 4 of 4." in done.stdout
    assert done.stderr == ""  # no terminal, no progress


def test_verdicts_are_printed_and_written(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main(["example-b1", "--out", str(folder), "--progress"]) == 0
    out, error = capsys.readouterr()
    assert "Claims that hold: 4 of 4." in out
    assert error.startswith("experiments: counterexample: done in")
    assert all(claim["holds"] for claim in json.loads((folder / "counterexample.json").read_text())["claims"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure-9"], "Did you mean 'figure-1'?"),
        (["figure-1", "--seeds", "0"], "seeds must be a whole number of at least 1"),
        (["figure-1", "--engine", "jax"], "invalid choice: 'jax'"),
        (["counterexample", "--out", "file/x"], "Not a directory"),
    ],
)
def test_wrong_usage_is_a_sentence(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_an_interrupted_run_says_where_its_parts_are(tmp_path, monkeypatch, capsys):
    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.__main__.run", interrupted)
    assert main(["all", "--out", str(tmp_path)]) == 130
    assert f"finished parts are kept in {tmp_path}" in capsys.readouterr().err


def test_the_help_names_every_target(capsys):
    text = parser().format_help()
    assert all(name in text for name in (*TARGETS, *ALIASES, "all"))
