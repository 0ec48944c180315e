"""The command: help, errors in one sentence, exit codes, and the demonstration on real data."""

import re
import subprocess
import sys

import numpy as np
import pytest

import lowcal.demo as demo
from lowcal.cli import main


@pytest.fixture
def quick(monkeypatch):
    """The same demonstration on fewer rows and levels."""
    monkeypatch.setattr(demo, "TRAIN", 600)
    monkeypatch.setattr(demo, "MEND", 30_000)
    monkeypatch.setattr(demo, "NOTIONS", ("multiaccuracy", "degree-2"))


def test_demo_prints_what_it_measured_and_saves_a_picture(quick, tmp_path, capsys):
    judged = demo.run(seed=1, folder=tmp_path / "new folder")
    text = capsys.readouterr().out
    degree_two = judged[1]
    assert f"{degree_two.before.largest:.4f}" in text
    assert f"{degree_two.after.largest:.4f}" in text
    assert degree_two.before.worst(1)[0][0] in text
    assert degree_two.after.largest < degree_two.before.largest / 2
    assert (tmp_path / "new folder" / "lowcal-demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_groups_are_described_by_their_own_rows(quick, capsys):
    judged = demo.run(seed=1)
    text = capsys.readouterr().out
    _, test = demo._prepare(1)
    before = judged[1].before
    checked = 0
    for j in demo._worst_per_member(before):
        name = before.names[j]
        line = next(line for line in text.splitlines() if line.startswith(f"   {name} ") and line.count("%") == 4)
        share, says, mended, truth = (float(x) / 100 for x in re.findall(r"([\d.]+)%", line))
        rows = np.ones(len(test.y), dtype=bool)
        for part in name.split(" & "):
            rows &= in_group(part, test.X)
        assert share == pytest.approx(rows.mean(), abs=6e-4)
        assert says == pytest.approx(test.p[rows].mean(), abs=6e-4)
        assert mended == pytest.approx(judged[1].mended[rows].mean(), abs=6e-4)
        assert truth == pytest.approx(test.y[rows].mean(), abs=6e-4)
        checked += 1
    assert checked == 10


def in_group(part, X):
    """Rows of a group by its printed name: 'sex=Female', '28<age<=37', 'age>51' or 'age<=28'."""
    if found := re.fullmatch(r"(?:([\d.]+)<)?age<=([\d.]+)", part):
        return (X["age"] > float(found[1] or -1)) & (X["age"] <= float(found[2]))
    if found := re.fullmatch(r"age>([\d.]+)", part):
        return X["age"] > float(found[1])
    column, value = part.split("=", 1)
    return X[column] == value


def test_demo_command_returns_zero(quick, tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--seed", "1"]) == 0
    assert "Picture:" in capsys.readouterr().out


def test_demo_without_matplotlib_says_what_to_install(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--out", str(tmp_path), "--seed", "1"]) == 0
    assert "pip install 'lowcal[plot]'" in capsys.readouterr().out


def test_a_folder_that_cannot_be_made_is_one_sentence(quick, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert main(["demo", "--out", str(tmp_path / "file" / "folder"), "--seed", "1"]) == 65
    error = capsys.readouterr().err
    assert error.startswith("lowcal: could not write")
    assert "Traceback" not in error


def test_errors_and_interrupts_are_one_sentence(monkeypatch, capsys):
    from lowcal.errors import InvalidInput

    def refuse(**_):
        raise InvalidInput("p is nan in row 3.")

    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", refuse)
    assert main(["demo"]) == 65
    assert capsys.readouterr().err == "lowcal: p is nan in row 3.\n"
    monkeypatch.setattr(demo, "run", interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "lowcal: interrupted\n"


@pytest.mark.parametrize("arguments", [[], ["banana"], ["demo", "--seed", "x"]])
def test_wrong_usage_exits_with_64_and_points_to_help(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 64
    assert "lowcal --help" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_has_an_example(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    assert "example:" in capsys.readouterr().out


def test_python_m_lowcal_is_the_command():
    done = subprocess.run([sys.executable, "-m", "lowcal", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("lowcal 0.")
