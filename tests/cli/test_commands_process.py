"""The command as a process: killed, interrupted or cut off, it leaves whole files; it is silent in a pipe."""

import argparse
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest

import lowcal
from lowcal.cli.main import is_wanted, main
from lowcal.datasets import make_miscalibrated
from lowcal.persistence import save

N = 4000


@pytest.fixture
def folder(tmp_path):
    """A table, a model, and an old file in the place of each output."""
    data = make_miscalibrated(N, random_state=0)
    frame = pd.DataFrame({"y": data.y, "p": data.p, "g": data.X["g0"], "text": "some more text to fill a pipe with"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = lowcal.multicalibrate(data.y, data.p, frame[["g"]], subpopulations=lowcal.Groups(["g"]), alpha=0.005)
    save(fit.predictor, tmp_path / "m.json", metadata={"probability": ["p"]})
    for name in ("out.csv", "new.json"):
        (tmp_path / name).write_text("old")
    return tmp_path


PREDICT = ["predict", "m.json", "t.csv", "--out", "out.csv"]
FIT = ["fit", "t.csv", "--label", "y", "--probability", "p", "--groups", "g", "--seed", "0", "--out", "new.json"]


def start(folder, arguments, before="", **options):
    """Start the command, with a few lines of Python run before it."""
    script = f"import sys\n{textwrap.dedent(before)}\nfrom lowcal.cli.main import main\nsys.exit(main({arguments!r}))"
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


#: Kills the process at the k-th call of a function.
KILL = """
    import os, signal, {module}
    import lowcal.data.text as delimited
    delimited.BATCH_BYTES = 20_000
    real, calls = {module}.{name}, []
    def stop(*a, **k):
        calls.append(1)
        if len(calls) == {k}:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*a, **k)
    {module}.{name} = stop
"""
MOMENTS = [
    (PREDICT, "lowcal.data.files", "join_columns", 3, "old"),
    (PREDICT, "os", "fsync", 1, "old"),
    (PREDICT, "os", "fsync", 2, "new"),  # the folder's, after the file has its name
    (FIT, "lowcal.cli.models", "save", 1, "old"),
    (FIT, "os", "replace", 1, "old"),
]


@pytest.mark.parametrize(("arguments", "module", "name", "k", "left"), MOMENTS)
def test_kill_leaves_the_old_file_or_the_new_one(folder, arguments, module, name, k, left, monkeypatch):
    process = start(folder, arguments, KILL.format(module=module, name=name, k=k))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    out = folder / arguments[-1]
    found = out.read_bytes()
    monkeypatch.chdir(folder)
    assert main([*arguments, "--quiet"]) == 0
    assert found == (b"old" if left == "old" else out.read_bytes())


#: Says when it is in the middle of writing, and waits.
WAIT = """
    import time, lowcal.data.files as writing
    def wait(*_):
        print("ready", file=sys.stderr, flush=True)
        time.sleep(60)
    writing.join_columns = wait
"""


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_signals_leave_nothing_half_written(folder, number, code, word):
    process = start(folder, PREDICT, WAIT)
    assert process.stderr.readline() == b"ready\n"
    assert len(list(folder.iterdir())) == 5  # the new file is in the making
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == code
    assert error.decode() == f"lowcal: {word}; nothing was written\n"
    assert (folder / "out.csv").read_text() == "old"
    assert sorted(one.name for one in folder.iterdir()) == ["m.json", "new.json", "out.csv", "t.csv"]


def test_an_interrupted_fit_keeps_nothing(folder, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise lowcal.FitInterrupted("Interrupted after 3 updates; they are kept in .fit.", None)

    monkeypatch.chdir(folder)
    monkeypatch.setattr("lowcal.cli.models.multicalibrate", interrupt)
    assert main([*FIT, "--notion", "degree-2"]) == 130
    assert capsys.readouterr().err == "lowcal: interrupted; nothing was written\n"
    assert (folder / "new.json").read_text() == "old"


def test_a_reader_that_leaves_is_no_error(folder):
    process = start(folder, [*PREDICT[:-1], "-"])
    assert process.stdout.readline() == b"y,p,g,text,p_calibrated\n"
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_reader_that_never_came_is_no_error(folder):
    process = start(folder, ["plan", "--groups", "5"])
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_nothing_but_the_table_in_a_pipe(folder):
    process = start(folder, [*PREDICT[:-1], "-"])
    out, error = process.communicate()
    assert process.returncode == 0
    assert error == b""
    assert out.count(b"\n") == N + 1


def shell(folder, line, **environment):
    """Run a line of a shell in which lowcal is the command."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | environment
    line = f'lowcal() {{ "{sys.executable}" -m lowcal "$@"; }}\n{line}'
    return subprocess.run(["bash", "-c", line], cwd=folder, env=known, capture_output=True, text=True, check=False)


AUDIT = "--label y --probability p --groups g --seed 0"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("lowcal plan --groups 5 >/dev/full", 65, "could not write to standard output: No space left on device.\n"),
        ("lowcal predict m.json t.csv --out - >/dev/full", 65, "could not write: the disk is full."),
        ("lowcal fit no.csv --out m.json 2>/dev/full", 64, ""),
        (f"lowcal audit no.csv {AUDIT} 2>/dev/full", 65, ""),
        (f"lowcal fit t.csv {AUDIT} --sample 2000 --out x.json >/dev/null 2>/dev/full", 0, ""),
        ("lowcal plan --groups 5 >&-", 0, ""),
        ("lowcal predict m.json t.csv --out x.csv >&- 2>&- <&-", 0, ""),
        ("lowcal predict no.json t.csv --out x.csv 2>&-", 65, ""),
        ("lowcal predict m.json - --out x.csv <&-", 64, "Standard input is closed"),
    ],
)
def test_streams_that_are_full_or_closed(folder, line, code, said):
    done = shell(folder, line)
    assert done.returncode == code
    assert done.stderr.startswith(f"lowcal: {said}") if said else done.stderr == ""
    assert done.stderr.count("\n") == bool(said)


def test_reports_are_written_even_if_nobody_reads_the_text(folder):
    done = shell(
        folder, f"lowcal audit t.csv {AUDIT} --json a.json | true; echo ${{PIPESTATUS[0]}}", PYTHONUNBUFFERED="1"
    )
    assert done.stdout == "141\n"
    assert json.loads((folder / "a.json").read_text())["verdict"] == "violated"


def test_letters_that_a_terminal_does_not_know_are_escaped(folder):
    frame = pd.read_csv(folder / "t.csv")
    frame.assign(g="中" + frame["g"]).to_csv(folder / "u.csv", index=False)
    done = shell(folder, f"lowcal audit u.csv {AUDIT}", PYTHONIOENCODING="cp1252")
    assert done.returncode == 1
    assert "g=\\u4e2da" in done.stdout


def test_pipes_are_files(folder):
    pd.read_csv(folder / "t.csv").to_parquet(folder / "t.parquet")
    lines = ["cat t.csv", "gzip -c t.csv", "cat t.parquet"]
    line = "; ".join(f"lowcal predict <(cat m.json) <({one}) --out {k}.csv || exit" for k, one in enumerate(lines))
    done = shell(folder, f"{line}; mkfifo named; cat t.csv > named & lowcal predict m.json named --out 3.csv --quiet")
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = (pd.read_csv(folder / f"{k}.csv") for k in range(4))
    for other in others:
        pd.testing.assert_frame_equal(first, other)


def test_pipes_are_outputs_by_their_names(folder):
    done = shell(folder, "lowcal predict m.json t.csv --out /dev/stdout --format csv --quiet | wc -l")
    assert (done.stdout.strip(), done.stderr) == (str(N + 1), "")


def test_an_interrupt_tells_of_half_a_table_in_a_pipe(folder, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(folder)
    monkeypatch.setattr("lowcal.data.files.join_columns", interrupt)
    assert main([*PREDICT[:-1], "-"]) == 130
    assert capsys.readouterr().err == "lowcal: interrupted; the output is incomplete\n"


def test_progress_is_for_terminals(monkeypatch):
    def options(**given):
        return argparse.Namespace(**{"quiet": False, "progress": None, **given})

    assert not is_wanted(options())
    assert is_wanted(options(progress=True))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert is_wanted(options())
    assert not is_wanted(options(progress=False))
    assert not is_wanted(options(quiet=True))


def test_progress_goes_to_standard_error(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main([*PREDICT, "--progress"]) == 0
    out, error = capsys.readouterr()
    assert "recalibrating t.csv: " in error
    assert " bytes" in error
    assert out == f"Wrote {N:,} rows to out.csv, with p_calibrated.\n"


def peak(folder, arguments):
    """The most memory that the command takes, in MiB; Arrow reads on one thread, or the peak depends on who waits."""
    script = f"from lowcal.cli.main import main\nassert main({arguments!r}) == 0\n"
    # not getrusage: a child's maximum there starts at the size of its parent
    script += "print(next(int(line.split()[1]) // 1024 for line in open('/proc/self/status') if 'VmHWM' in line))"
    env = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_columns_that_are_not_asked_for_take_no_memory(tmp_path):
    """A column of one letter, and of 2,000: 400 MB more in the file; a third of that would be seen in memory."""
    rng = np.random.default_rng(0)
    peaks = []
    for filling in ("x", "x" * 2000):
        with (tmp_path / "t.csv").open("w") as file:
            file.write("y,p,g,filling\n")
            p = rng.random(200_000)
            y = (rng.random(len(p)) < p**1.3).astype(int)
            g = rng.integers(0, 4, len(p))
            rows = enumerate(zip(y, p, g, strict=True))
            file.writelines(f"{a},{b:.5f},g{c},{i}{filling}\n" for i, (a, b, c) in rows)  # no two alike
        peaks.append((peak(tmp_path, [*FIT[:-1], "m.json"]), peak(tmp_path, PREDICT)))
    assert os.path.getsize(tmp_path / "out.csv") > 400_000_000
    (fit, predict), (wide_fit, wide_predict) = peaks
    assert wide_fit - fit < 130
    assert wide_predict - predict < 130
