"""The command: help, errors in one sentence, exit codes, and the demonstration on real data."""

import re
import sys

import numpy as np
import pytest

import lowcal.cli.demo as demo
from lowcal.cli.main import main, parser


@pytest.fixture
def quick(monkeypatch):
    """The same demonstration on fewer rows and levels."""
    monkeypatch.setattr(demo, "TRAIN", 600)
    monkeypatch.setattr(demo, "CALIBRATE", 30_000)
    monkeypatch.setattr(demo, "NOTIONS", ("multiaccuracy", "degree-2"))


def test_demo_prints_what_it_measured_and_saves_a_picture(quick, tmp_path, capsys):
    judged = demo.demonstrate(seed=1, folder=tmp_path / "new folder")
    text = capsys.readouterr().out
    degree_two = judged[1]
    assert f"{degree_two.before.largest:.4f}" in text
    assert f"{degree_two.after.largest:.4f}" in text
    assert degree_two.before.worst(1)[0][0] in text
    assert degree_two.after.largest < degree_two.before.largest / 2
    assert (tmp_path / "new folder" / "lowcal-demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_groups_are_described_by_their_own_rows(quick, capsys):
    judged = demo.demonstrate(seed=1)
    text = capsys.readouterr().out
    _, test = demo._prepare(1)
    before = judged[1].before
    checked = 0
    for j in demo._worst_per_person(before):
        name = before.names[j]
        line = next(line for line in text.splitlines() if line.startswith(f"   {name} ") and line.count("%") == 4)
        share, says, calibrated, truth = (float(x) / 100 for x in re.findall(r"([\d.]+)%", line))
        rows = np.ones(len(test.y), dtype=bool)
        for part in name.split(" & "):
            rows &= in_group(part, test.X)
        assert share == pytest.approx(rows.mean(), abs=6e-4)
        assert says == pytest.approx(test.p[rows].mean(), abs=6e-4)
        assert calibrated == pytest.approx(judged[1].calibrated[rows].mean(), abs=6e-4)
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
    assert error.startswith("lowcal: could not read or write")
    assert "Traceback" not in error


def test_errors_and_interrupts_are_one_sentence(monkeypatch, capsys):
    from lowcal.data.errors import InvalidInput

    def refuse(_):
        raise InvalidInput("p is nan in row 3.")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_demo", refuse)
    assert main(["demo"]) == 65
    assert capsys.readouterr().err == "lowcal: p is nan in row 3.\n"
    monkeypatch.setattr(demo, "run_demo", interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "lowcal: interrupted; nothing was written\n"


def test_what_was_not_foreseen_is_one_sentence_that_says_so(monkeypatch, capsys):
    def fail(_):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(demo, "run_demo", fail)
    monkeypatch.delenv("LOWCAL_DEBUG", raising=False)
    assert main(["demo"]) == 70
    error = capsys.readouterr().err
    assert error.startswith("lowcal: this is a bug (ZeroDivisionError: division by zero). Set LOWCAL_DEBUG=1")
    assert error.count("\n") == 1
    monkeypatch.setenv("LOWCAL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


def test_too_little_memory_says_what_to_do(monkeypatch, capsys):
    def fail(_):
        raise MemoryError

    monkeypatch.setattr(demo, "run_demo", fail)
    assert main(["demo"]) == 65
    assert "--sample N" in capsys.readouterr().err


def test_warnings_are_sentences(monkeypatch, capsys):
    import warnings

    monkeypatch.setattr(demo, "run_demo", lambda _: warnings.warn("careful", RuntimeWarning, stacklevel=1) or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["demo"]) == 0
    assert capsys.readouterr().err == "lowcal: careful\n"


FIT = ["fit", "t.csv", "--label", "y", "--probability", "p", "--groups", "g", "--out", "m.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["banana"], "invalid choice: 'banana'"),
        (["demo", "--seed", "x"], "'x' is not a whole number of at least 0"),
        (["fit", "t.csv"], "required: --label, --probability, --out"),
        ([*FIT, "--alpha", "-1"], "'-1' is not a positive number"),
        ([*FIT, "--alpha", "nan"], "'nan' is not a positive number"),
        ([*FIT, "--alpha", "inf"], "'inf' is not a positive number"),
        ([*FIT, "--sample", "0"], "argument --sample: '0' is not a whole number of at least 1"),
        ([*FIT, "--depth", "0"], "'0' is not a whole number of at least 1"),
        ([*FIT, "--notion", "degre-2"], "Unknown notion 'degre-2'"),
        ([*FIT, "--solver", "best"], "invalid choice: 'best'"),
        ([*FIT, "--validation-fraction", "1"], "'1' is not a number from 0 to below 1"),
        ([*FIT, "--separator", "ab"], "'ab' can't separate fields"),
        ([*FIT, "--separator", "a"], "'a' can't separate fields"),
        ([*FIT, "--encoding", "klingon"], "'klingon' is not an encoding"),
        ([*FIT, "--decimal", ";"], "invalid choice: ';'"),
        ([*FIT, "--conf", "1"], "there is no option --conf. Try 'lowcal fit --help'"),
        ([*FIT, "--alhpa=1"], "there is no option --alhpa. Did you mean '--alpha'?"),
        (["fit", "t.csv", "--lable", "y"], "there is no option --lable. Did you mean '--label'? Try 'lowcal fit"),
        ([*FIT, "more.csv"], "unrecognized arguments: more.csv. Try 'lowcal fit --help'"),
        (
            ["adit", "t.csv"],
            "invalid choice: 'adit' (choose from demo, audit, fit, predict, report, plan, export). ",
        ),
        (["adit", "t.csv"], "Did you mean 'audit'?"),
        (
            [*FIT, "--solver", "frist"],
            "argument --solver: invalid choice: 'frist' (choose from first, worst, block). Did",
        ),
        ([*FIT, "--bins", "1"], "argument --bins: '1' is not a whole number of at least 2"),
        ([*FIT, "--cuts", "25,40"], "argument --cuts: '25,40' has no column and cut points, such as age:25,40,65"),
        ([*FIT, "--probability", ","], "argument --probability: ',' contains no name"),
        ([*FIT, "--groups", ""], "argument --groups: '' contains no name"),
        ([*FIT, "--weight", ""], "argument --weight: the name is empty"),
        (["audit", *FIT[1:-2], "--against", ""], "argument --against: '' contains no name"),
        (["audit", *FIT[1:-2], "--json", ""], "argument --json: the name is empty"),
        (["audit", *FIT[1:-2], "--confidence", "0"], "argument --confidence: '0' is not a number between 0 and 1"),
        (["audit", *FIT[1:-2], "--confidence", "1"], "argument --confidence: '1' is not a number between 0 and 1"),
        (
            ["audit", *FIT[1:-2], "--alpha", "0.1", "--per-person", "0.1"],
            "argument --per-person: not allowed with argument --alpha",
        ),
        ([*FIT, "--alpha", "0.1", "--per-person", "0.1"], "argument --per-person: not allowed with argument --alpha"),
        ([*FIT, "--per-person", "nan"], "argument --per-person: 'nan' is not a positive number"),
        ([*FIT, "--min-share", "1"], "argument --min-share: '1' is not a number from 0 to below 1"),
        (["audit", *FIT[1:-2], "--per-person", "0"], "argument --per-person: '0' is not a positive number"),
        (["audit", *FIT[1:-2], "--min-share", "2"], "argument --min-share: '2' is not a number from 0 to below 1"),
        (["predict", "m.json", "t.csv", "--probability", ""], "argument --probability: '' contains no name"),
        (["plan", "--beta", "0"], "'0' is not a number between 0 and 1"),
        (["plan", "--classes", "1"], "'1' is not a whole number of at least 2"),
    ],
)
def test_wrong_usage_exits_with_64_and_points_to_help(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 64
    error = capsys.readouterr().err
    assert message in error
    assert re.search(r"[.?] Try 'lowcal( \w+)? --help'\.\n$", error)
    assert error.count("\n") == 1


COMMANDS = ["demo", "audit", "fit", "predict", "plan", "export"]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"] if command is None else [command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert re.search(rf"examples?:\n  lowcal {command or 'demo'}\b", text)
    if command is None:
        assert all(f"    {name}" in text for name in COMMANDS)


def test_options_say_what_they_are(capsys):
    options = parser().parse_args([*FIT, "--separator", "tab", "--encoding", "UTF8", "--sample", "1_000"])
    assert (options.separator, options.encoding, options.sample) == ("\t", "utf-8-sig", 1000)
    assert (options.notion, options.alpha, options.solver, options.progress) == (None, None, None, None)
    assert (options.per_person, options.min_share, options.no_guard) == (None, None, False)
    assert parser().parse_args(FIT).sample is None
    options = parser().parse_args([*FIT, "--per-person", "0.02", "--min-share", "0.05", "--no-guard"])
    assert (options.alpha, options.per_person, options.min_share, options.no_guard) == (None, 0.02, 0.05, True)
    assert parser().parse_args([*FIT, "--no-progress"]).progress is False
    assert parser().parse_args([*FIT, "--notion", "full-0.1"]).notion == "full-0.1"
    assert parser().parse_args([*FIT, "--groups", "--a column"]).groups == ["g", "--a column"]


def test_help_needs_no_library(run_python):
    script = "import sys; from lowcal.cli.main import parser; parser().format_help(); print(sorted(sys.modules))"
    loaded = run_python("-c", script).stdout
    assert "'lowcal.cli.main'" in loaded
    assert not any(f"'{name}'" in loaded for name in ("numpy", "scipy", "pyarrow", "narwhals", "sklearn"))


def test_python_m_lowcal_is_the_command(run_python):
    assert run_python("-m", "lowcal", "--version").stdout.startswith("lowcal 0.")
