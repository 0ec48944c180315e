"""The benchmarks run at toy sizes, and their harness counts, stops and writes as it says."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Import a file of the folder as the scripts themselves do."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def cells(printed: str, first: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line[:1] == "|"]
    return [row for row in rows if row[0] == first]


# --- every benchmark of the page, small -----------------------------------------------------------------------


def test_peers_are_timed_and_judged_in_one_line(load, capsys, monkeypatch):
    peers = load("peers")
    monkeypatch.setattr(peers, "adult", lambda limit: load("common").adult(300))
    names = ["lowcal degree-2", "isotonic"]
    peers.main(["--rows", "400", "--groups", "20", "--repeats", "2", "--quick", "--methods", *names])
    printed = capsys.readouterr().out
    for name in names:
        made_up, adult = cells(printed, name)
        assert made_up[1] == adult[1] == "2"
        assert all(cell not in ("", "-") for cell in made_up + adult)
    (truth,) = cells(printed, "the truth f*")
    assert truth[6:9] == [".0000"] * 3
    assert len(cells(printed, "start")) == 2


def test_the_baseline_is_compared_over_seeds(load, capsys):
    load("baseline").main(["--quick", "--rows", "400", "--groups", "20", "--seeds", "2"])
    printed = capsys.readouterr().out
    assert printed.count("The baseline is logistic") == 4
    assert all("±" in cell for row in cells(printed, "lowcal degree-3") for cell in row[-2:])
    assert "lowcal defaults (degree-2, alpha 0.01): worse in" in printed


def test_coverage_of_a_case_is_counted(load, capsys):
    chosen = ["--data-sets", "2", "--notions", "degree-2", "--processes", "1", "p = .3", "100 rows"]
    load("intervals").main(chosen)
    printed = capsys.readouterr().out
    for case in ("p = .3, truth .35, 300 rows", "f ~ Beta(2, 2), 5 groups, 100 rows"):
        rows = cells(printed, case)
        assert [row[2] for row in rows] == ["bootstrap", "exact"]
        assert float(rows[0][-1]) < float(rows[1][-1])  # what holds for every number of rows is wider
        assert all(0.0 <= float(share) <= 1.0 for row in rows for share in row[3:7])


def test_alarms_are_counted(load, capsys):
    load("monitoring").main(["--runs", "2", "perfect model, 150"])
    (row,) = cells(capsys.readouterr().out, "perfect model, 150 rows")
    assert all(0.0 <= float(share) <= 1.0 for share in row[1:-1])
    assert sorted(row[2:-1]) == row[2:-1]  # what is found stays found


def test_cross_fitting_is_compared_over_seeds(load, capsys, monkeypatch, tmp_path):
    crossfit = load("crossfit")
    monkeypatch.setattr(crossfit, "ROWS", 150)
    monkeypatch.setattr(crossfit, "JUDGING", 300)
    crossfit.main(["--data", str(tmp_path), "--sets", "adult,flights_3m", "--bases", "logistic", "--seeds", "2"])
    printed = capsys.readouterr().out
    assert "flights_3m is not in" in printed
    (row,) = cells(printed, "adult")
    assert len(row) == 7
    assert all(0.0 < float(loss) < 1.0 for loss in row[2:6])
    assert "±" in row[6]


def test_a_pass_is_set_against_its_limit(load):
    latency = load("latency")
    shown = latency.roofline(2_000, 800_000)
    assert [row[0] for row in cells(shown, "mirror update")] == ["mirror update"]
    assert float(cells(shown, "moments")[0][1]) > 0
    assert "100 groups" in shown


def test_first_calls_run_in_a_fresh_process_without_numba(load):
    found = load("latency").fresh(500, "", blocked=True, calls=2)
    assert set(found) == {"fit", "predict", "measure", "smooth measure"}
    assert all(len(times) == 2 and min(map(min, times)) > 0 for times in found.values())


# --- the harness ----------------------------------------------------------------------------------------------


def test_a_task_survives_its_file(load, tmp_path):
    common = load("common")
    task = common.made_up(50, 20, seed=3)
    task.save(tmp_path / "task.npz")
    read = common.Task.load(tmp_path / "task.npz")
    assert read.name == task.name
    for part in ("train", "test"):
        for field in ("codes", "y", "p", "f_star"):
            np.testing.assert_array_equal(getattr(getattr(read, part), field), getattr(getattr(task, part), field))
    assert len(read.head(7).train) == 7


def test_memberships_of_test_rows_have_the_columns_of_the_training_rows(load):
    common = load("common")
    train = common.Rows(np.array([[0, 1], [2, 1]], np.uint8), np.array([0, 1]), np.array([0.5, 0.5]))
    test = common.Rows(np.array([[1, 1], [2, 3], [0, 1]], np.uint8), np.array([0, 1, 1]), np.full(3, 0.5))
    fitted, new = common.Task("toy", train, test).memberships()
    np.testing.assert_array_equal(fitted, [[1, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(new, [[0, 0, 1], [0, 1, 0], [1, 0, 1]])


def test_scores_are_the_definitions(load):
    common = load("common")
    codes = np.zeros((4, 1), dtype=np.uint8)
    rows = common.Rows(np.repeat(codes, 10, axis=0), np.tile([0, 1, 1, 1], 10), np.full(40, 0.5))
    found = common.score(rows, np.full(40, 0.5))
    assert found.violations["degree 1"] == pytest.approx(0.25)
    assert found.brier == pytest.approx(0.25)
    assert found.log_loss == pytest.approx(np.log(2))
    other = common.score(rows, np.full(40, 0.75))
    gap, error = found.gap(other, "brier")
    by_hand = [0.25 - (y - 0.75) ** 2 for y in rows.y]
    assert gap == pytest.approx(np.mean(by_hand))
    assert error == pytest.approx(np.std(by_hand) / np.sqrt(40))


def test_expected_losses_are_taken_over_labels_where_the_truth_is_known(load):
    common = load("common")
    rows = common.Rows(np.zeros((60, 1), np.uint8), np.ones(60, int), np.full(60, 0.3), np.full(60, 0.2))
    found = common.score(rows, np.full(60, 0.4))
    assert found.brier == pytest.approx(0.2 * 0.6**2 + 0.8 * 0.4**2)
    assert found.log_loss == pytest.approx(-0.2 * np.log(0.4) - 0.8 * np.log(0.6))
    assert found.violations["degree 1"] == pytest.approx(0.2)


BUSY = """
import sys
for line in sys.stdin:
    while True:
        pass
"""
SLEEPER = """
import json, sys, time
for line in sys.stdin:
    if json.loads(line)["do"] == "fit":
        time.sleep(60)
    answer = {"error": "ValueError: no"} if sys.argv[-1] == "broken" else {"cpu": 1.5, "wall": 2.5}
    print(json.dumps(answer), flush=True)
"""


def test_a_method_beyond_the_limit_is_stopped(load, tmp_path):
    peers = load("peers")
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER, encoding="utf-8")
    worker = peers.Worker("sleeper", 1, script=[str(script)])
    assert worker.ask(20, do="load") == peers.Clock(1.5, 2.5)
    process = worker.process
    with pytest.raises(peers.Stopped) as stopped:
        worker.ask(0.2, do="fit")
    assert stopped.value.clock.wall >= 0.4  # asleep, it uses no CPU: twice the limit on the wall stops it
    assert process.poll() is not None
    assert worker.process is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell CPU seconds")
def test_the_limit_is_of_cpu_seconds(load, tmp_path):
    peers = load("peers")
    script = tmp_path / "busy.py"
    script.write_text(BUSY, encoding="utf-8")
    worker = peers.Worker("busy", 1, script=[str(script)])
    with pytest.raises(peers.Stopped) as stopped:
        worker.ask(0.3, do="fit")
    assert 0 < stopped.value.clock.cpu <= stopped.value.clock.wall + 0.05


def test_a_method_that_fails_says_why(load, tmp_path):
    peers = load("peers")
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER, encoding="utf-8")
    worker = peers.Worker("broken", 1, script=[str(script)])
    with pytest.raises(peers.Failed, match="ValueError: no"):
        worker.ask(20, do="load")


def result(peers, method, fits, threads=1, failure=""):
    clocks = [peers.Clock(cpu, wall) for cpu, wall in fits]
    return peers.Result(peers.Worker(method, threads), clocks, list(clocks), failure)


def test_the_better_number_of_threads_counts_in_each_measure(load):
    peers = load("peers")
    ours = [result(peers, "lowcal degree-2", [(1.0, 1.0), (1.0, 1.0)])]
    theirs = [result(peers, "MCGrad", [(4.0, 4.0), (6.0, 6.0)]), result(peers, "MCGrad", [(8.0, 3.0), (8.0, 3.0)], 2)]
    assert peers.timing(theirs, ours, "fits", "cpu") == "5.0, 5.0x (4.0 to 6.0)"
    assert peers.timing(theirs, ours, "fits", "wall") == "3.0, 3.0x (3.0 to 3.0)"


def test_only_a_clearly_slower_number_of_threads_is_beaten(load):
    peers = load("peers")
    one, two, even, other = (
        result(peers, name, [seconds])
        for name, seconds in (("MCGrad", (1, 1)), ("MCGrad", (2, 2)), ("MCGrad", (2, 1)), ("HKRR, 5 passes", (9, 9)))
    )
    assert two.is_beaten([one, two, other])
    assert not one.is_beaten([one, two, other])
    assert not even.is_beaten([one, even])
    assert not other.is_beaten([one, two, other])


def test_a_stopped_peer_gives_a_bound(load):
    peers = load("peers")
    ours = [result(peers, "lowcal degree-2", [(0.5, 0.5)])]
    stopped = result(peers, "HKRR, 5 passes", [])
    stopped.fail(peers.Stopped(peers.Clock(100.0, 150.0)))
    assert peers.timing([stopped], ours, "fits", "cpu") == "> 100, > 200x"
    assert peers.timing([stopped], ours, "fits", "wall") == "> 150, > 300x"
    goals = peers.gates([*ours, stopped])
    assert (
        goals[0]
        == "to fit at least 500 times faster than HKRR, 5 passes: more than 200 times, not decided within the limit."
    )
    assert goals[1].endswith("to predict at least 100 times faster than HKRR, 5 passes: more than 200 times, met.")


def test_goals_are_judged_by_what_was_measured(load):
    peers = load("peers")
    ours = result(peers, "lowcal degree-2", [(0.5, 0.5)])
    assert all("90 times, not met." in line for line in peers.gates([ours, result(peers, "MCGrad", [(45.0, 99.0)])]))
    assert all("110 times, met." in line for line in peers.gates([ours, result(peers, "MCGrad", [(55.0, 9.0)])]))


def test_a_peer_that_failed_says_so_in_its_cells(load):
    peers = load("peers")
    ours = [result(peers, "lowcal degree-2", [(0.5, 0.5)])]
    broken = [result(peers, "HKRR, 5 passes", [], failure="ValueError: no")]
    assert peers.timing(broken, ours, "fits", "cpu") == "ValueError: no"


def test_larger_tasks_are_spared_after_the_limit(load):
    peers = load("peers")
    worker, stopped = peers.Worker("HKRR, 5 passes", 1), {("HKRR, 5 passes", 1): (10_000, 100)}
    assert "met the limit" in peers.too_large(worker, (100_000, 100), stopped)
    assert not peers.too_large(worker, (100_000, 20), stopped)
    assert peers.too_large(worker, (1_000_000, 20), {}) == "not run"
    slow = peers.Worker("HKRR, as documented", 1)
    assert not peers.too_large(slow, (100_000, 100), {})
    assert peers.too_large(slow, (10_000, 100), {}) == "not run"


def test_an_absent_peer_is_left_out_with_a_sentence(load, monkeypatch, capsys):
    peers = load("peers")
    monkeypatch.setattr(peers, "is_installed", lambda package: package != "mcgrad")
    assert peers.present(["MCGrad", "isotonic"]) == ["isotonic"]
    assert capsys.readouterr().out == "mcgrad is not installed and left out (pip install mcgrad).\n\n"


def test_whether_a_package_is_installed(load):
    peers = load("peers")
    assert peers.is_installed("numpy")
    assert not peers.is_installed("no_such_package_at_all")


def test_passes_are_compared_with_plain_sums(load, capsys):
    load("rows").exact(3_000)
    printed = capsys.readouterr().out
    assert "moments" in printed
    assert "losses" in printed


def test_a_cluster_takes_turns_with_memory(load, capsys):
    pytest.importorskip("distributed")
    load("cluster").main(["--rows", "20000", "--parts", "2", "--repeats", "1"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("different models")]
    assert line.split()[2] == "1"


def test_a_cost_model_is_fitted_to_measured_jobs(load, capsys, tmp_path):
    cost = load("cost")
    true = cost.Model(0.002, 0.001, {"checking": 0.02, "moments": 0.01}, {"checking": 1e-8, "moments": 4e-9})
    cases = [(name, n, k, w) for name in true.row for n in (10**6, 10**7) for k in (4, 64, 300) for w in (1, 2)]
    jobs = [cost.asdict(cost.Measured(name, False, n, k, w, true.seconds(name, n, k, w))) for name, n, k, w in cases]
    (tmp_path / "jobs.json").write_text(cost.json.dumps(jobs))
    cost.main(["--jobs", str(tmp_path / "jobs.json")])
    printed = capsys.readouterr().out
    assert "0 % at the median and 0 % at most" in " ".join(printed.split())
    (line,) = [row for row in cells(printed, "1,000,000,000") if row[1] == "10"]
    # 250 parts in one level, a network of three messages; what is read comes from storage too
    network = 3 * (cost.LATENCY + cost.FAN_IN * cost.SUMS / cost.BANDWIDTH)
    moments, checking = (0.002 + 0.25 + c + r * 1e8 + network for c, r in ((0.01, 4e-9), (0.02, 1e-8)))
    assert line[4] == f"{moments:.1f} s"
    assert line[3] == f"{checking + cost.BYTES * 1e8 / cost.BANDWIDTH:.1f} s"


def test_cells_are_compared_with_all_rows(load, capsys):
    pytest.importorskip("duckdb")
    load("cells").main(["--rows", "20000", "--bins", "64", "--draws", "199"])
    printed = capsys.readouterr().out
    violation, fitted = (
        float(figure) for figure in re.search(r"by (\S+), those after a fit by (\S+)", printed).groups()
    )
    assert max(violation, fitted) < 1e-3
    assert float(re.search(r"width by (\S+)%", printed)[1]) < 0.5


# --- the page -------------------------------------------------------------------------------------------------


def test_the_runner_knows_every_benchmark(load):
    run = load("run")
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert set(run.names()) == files - {"common", "run", "summary"}
    assert run.names()[:3] == ["peers", "baseline", "latency"]


def test_fresh_sections_replace_only_themselves(load, tmp_path):
    run = load("run")
    page = tmp_path / "page.md"
    run.write(page, {"smooth": "## Smooth\n\nold\n\n", "peers": "## Peers\n\n| a |\n\n"})
    run.write(page, {"smooth": "## Smooth\n\nnew\n\n"})
    written = page.read_text(encoding="utf-8")
    assert "old" not in written
    assert written.index("| a |") < written.index("new")
    assert written.startswith("# Benchmarks\n")


def test_the_page_begins_with_a_summary_of_its_own_figures(load, tmp_path):
    run, summary = load("run"), load("summary")
    text = run.PAGE.read_text(encoding="utf-8")
    sections = run.sections(run.PAGE)
    begun = summary.summary(sections)
    assert text.startswith(run.TITLE + begun)
    assert "not found" not in begun
    figures = re.findall(r"[\d,]*\d\.?\d*", re.sub(r"\[.*?\)", "", begun))
    assert len(figures) > 30
    below = text.removeprefix(run.TITLE + begun)
    shares = [f"{100 * float(one):.1f}" for one in re.findall(r"\b[01]\.\d{3}\b", below)]
    assert not [one for one in figures if one not in below and one not in shares]


def test_a_summary_follows_its_sections_and_never_costs_the_page(load, tmp_path):
    run, summary = load("run"), load("summary")
    sections = run.sections(run.PAGE)
    assert "7 of 1,296 cells" in summary.summary(
        sections | {"harm": sections["harm"].replace("**0 cells harmed", "**7 cells harmed")}
    )
    broken = summary.summary(sections | {"peers": "## Peers\n\nThe benchmark failed.\n\n"})
    assert broken.count("not found") == 2
    assert summary.summary({"peers": sections["peers"]}) == ""


def test_the_figure_of_the_summary_is_drawn(load, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    run, summary = load("run"), load("summary")
    summary.draw(run.sections(run.PAGE), tmp_path / "drawn.svg")
    assert summary.TEXT in (tmp_path / "drawn.svg").read_text(encoding="utf-8")


def test_what_takes_hours_runs_only_where_it_is_named(load, monkeypatch, tmp_path, capsys):
    run = load("run")
    ran = []
    monkeypatch.setattr(run, "section", lambda name, arguments: ran.append((name, *arguments)) or "")
    page = ["--page", str(tmp_path / "page.md")]
    run.main(page)
    assert [name for (name,) in ran] == [name for name in run.names() if name not in run.LONG]
    ran.clear()
    run.main(["harm", *page, "--seeds", "0"])
    run.main(["--quick", *page])
    assert ran == [("harm", "--seeds", "0"), *((name, "--quick") for name in ("peers", "baseline", "latency", "harm"))]


def test_options_go_to_one_benchmark_only(load, tmp_path, capsys):
    run = load("run")
    with pytest.raises(SystemExit):
        run.main(["peers", "baseline", "--limit", "5", "--page", str(tmp_path / "page.md")])
    assert "one benchmark only" in capsys.readouterr().err


def test_a_section_has_the_command_the_machine_and_the_output(load, tmp_path):
    run = load("run")
    (tmp_path / "toy.py").write_text(
        '"""A toy.\n\nMore."""\nimport sys\nprint("seen", sys.argv[1])\n', encoding="utf-8"
    )
    shown = run.section("toy", ["--quick"], tmp_path)
    assert shown.startswith("## A toy\n\n`python benchmarks/toy.py --quick`, ")
    assert "```text\nseen --quick\n```" in shown
    assert "numpy " in shown
    assert str(Path.home()) not in shown
    (tmp_path / "toy.py").write_text('"""A toy."""\nprint("| x |")\nraise SystemExit(3)\n', encoding="utf-8")
    shown = run.section("toy", [], tmp_path)
    assert "```" not in shown
    assert "failed with exit status 3" in shown


# --- learners against a peer ------------------------------------------------------------------------------------


@pytest.fixture
def learners(load):
    pytest.importorskip("pandas")
    return load("learners")


def test_learners_are_judged_on_the_rows_and_on_redrawn_ones(learners):
    rng = np.random.default_rng(0)
    y, p, C = rng.integers(0, 2, 40), rng.uniform(0.1, 0.9, 40), rng.integers(0, 2, (40, 3)).astype(float)
    drawn = learners.redraws(40, 0)
    assert drawn.shape == (40, 1 + learners.REDRAWS)
    assert abs(drawn[:, 1:].mean() - 1) < 0.05
    found = learners.judge(p, y, C, drawn)
    for k in (0, 1, 7):
        rows = np.repeat(np.arange(40), drawn[:, k])
        r, q = (y - p)[rows], p[rows]
        loss = np.mean([-np.log(b if a else 1 - b) for a, b in zip(y[rows], q, strict=True)])
        one = max(abs(sum(C[rows, g] * r)) / len(rows) for g in range(3))
        two = max(abs(sum(C[rows, g] * r * q)) / len(rows) for g in range(3))
        np.testing.assert_allclose(found[:, k], [loss, np.mean(r**2), one, max(one, two)], rtol=1e-9)


def test_the_noise_of_a_difference_is_the_larger_of_two(learners):
    zero = np.zeros((4, 3))
    steady = [
        np.tile(row, (4, 1)) for row in ([1.0, 0.8, 1.2], [1.0, 0.6, 1.4])
    ]  # the seeds agree, redrawn rows do not
    means, noise = learners.difference(steady, [zero, zero])
    np.testing.assert_allclose(means, 1.0)
    np.testing.assert_allclose(noise, np.std([0.7, 1.3], ddof=1))
    _, noise = learners.difference([zero + 1.0, zero + 3.0], [zero, zero])
    np.testing.assert_allclose(noise, np.std([1.0, 3.0], ddof=1) / np.sqrt(2))


@pytest.mark.parametrize(
    ("worse", "losses", "violations"), [(0.5, "met", "met"), (1.5, "NOT MET", "met"), (2.5, "NOT MET", "NOT MET")]
)
def test_what_is_asked_of_trees_says_met_or_not(learners, capsys, worse, losses, violations):
    noisy = np.tile([worse, worse - 2**-0.5, worse + 2**-0.5], (4, 1))  # redraws with a standard deviation of 1
    learners.gates("a set", [noisy], [np.zeros((4, 3))], np.array([[1.0, 1.0]]), np.array([[9.0, 1.0]]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1].strip() for line in lines] == [losses] * 2 + [violations] * 2 + ["NOT MET"]
    learners.gates("a set", [noisy], [np.zeros((4, 3))], np.array([[1.0, 1.0]]), np.array([[10.0, 1.0]]))
    assert capsys.readouterr().out.splitlines()[-1].endswith("  met")


def test_learners_run_on_the_synthetic_set(learners, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(learners, "synthetic", lambda seed, make=learners.synthetic: make(seed, 1500))
    rivals = {"ours": learners.ours("mirror"), "mcgrad": lambda X, p, y, Xt, pt: (pt, 100.0, 1.0)}
    learners.compare("synthetic", tmp_path, 2, rivals)
    learners.compare("adult", tmp_path, 2, rivals)
    printed = capsys.readouterr().out
    assert [line.split()[1] for line in printed.splitlines()[:3]] == ["start", "ours", "mcgrad"]
    assert printed.count(" met") == 5
    assert "adult: skipped" in printed


# --- does the default make a model worse? -----------------------------------------------------------------------


@pytest.fixture
def harm(load):
    pytest.importorskip("pandas")
    return load("harm")


def fits(changes, kind="groups-5", auc=0.0, extremes=0, **names):
    """Made-up results of one cell, one for each seed, of a base model with log loss .4."""
    cell = {"set": "adult", "base": "good", "rows": "300", "kind": kind, "notion": "degree-2", **names}
    before = {"base_log_loss": 0.4, "base_brier": 0.2, "base_auc": 0.8}
    rest = {"brier": 0.2, "auc": 0.8 + auc, "extremes": extremes, "cpu": 1.5, "status": "reached", "updates": 3}
    return [
        cell | before | rest | {"seed": seed, "log_loss": 0.4 + change, "warnings": {}}
        for seed, change in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("changes", "is_harmed"),
    [
        ([0.002, 0.002, 0.002], True),
        ([0.0009, 0.0009, 0.0009], False),  # steady, but below .001
        ([0.001, 0.005], False),  # a mean of .003 with a standard error of .002
        ([0.0021, 0.0039], True),  # a mean of .003 with a standard error of .0009
        ([-0.002, -0.002], False),
        ([0.002], True),  # one seed has no standard error
        ([0.0009], False),
    ],
)
def test_a_cell_is_harmed_beyond_noise_and_a_thousandth(harm, changes, is_harmed):
    (cell,) = harm.cells_of(fits(changes))
    assert cell.change("log_loss").mean == pytest.approx(np.mean(changes))
    if len(changes) > 1:
        assert cell.change("log_loss").error == pytest.approx(np.std(changes, ddof=1) / len(changes) ** 0.5)
    assert cell.is_harmed == is_harmed
    assert f"**{int(is_harmed)} cells harmed**" in harm.table(fits(changes))


def test_the_auc_of_a_cell_is_harmed_by_three_thousandths(harm):
    assert [harm.cells_of(fits([0.0], auc=auc))[0].auc_is_harmed for auc in (-0.0031, -0.0029, 0.1)] == [1, 0, 0]


def test_intersections_are_compared_with_groups_seed_by_seed(harm):
    groups = [0.10, 0.20, 0.30]  # the seeds differ far more than the classes do
    steady, noisy = [x + 0.01 + e for x, e in zip(groups, (0, 0.001, 0), strict=True)], [0.1, 0.2, 0.4]
    results = fits(groups) + fits(steady, "intersections-5")
    results += fits(groups, base="weak") + fits(noisy, "intersections-5", base="weak")
    results += fits(groups, rows="third") + fits(groups, "intersections-5", rows="third")
    compared, ((key, apart),) = harm.worse_than_groups(harm.cells_of(results))
    assert compared == 3
    assert (key.base, key.rows) == ("good", "300")
    assert apart.mean == pytest.approx(0.031 / 3)
    assert apart.error == pytest.approx(0.001 / 3)


def test_the_summary_of_harm_has_every_count(harm):
    results = fits([0.01, 0.01], extremes=2) + fits([-0.01, -0.01], "trees", auc=-0.01) + fits([0.02, 0.9], "linear")
    failed = {**fits([0.0], set="letter")[0], "failure": "ValueError: no | such\ncolumn"}
    shown = harm.table([*results, failed])
    assert shown.startswith("3 cells of 2 seeds, 6 fits: **1 cells harmed**")
    assert "1 with a mean AUC lower" in shown
    assert "1 with predictions of exactly 0 or 1" in shown
    assert "9 in all, median 1.5, largest 1.5" in shown
    assert cells(shown, "adult")[0] == ["adult", "good", "+0.1533, 1 of 3"]
    assert cells(shown, "Groups, 5 columns")[0][1:7] == ["1", "+0.0100", "+0.0100", "1", "0", "1"]
    (weakest, harmed, lower) = [row for row in cells(shown, "adult") if len(row) == len(harm.HEAD)]
    assert (weakest[3], harmed[3], lower[3]) == ("Linear, 8 columns", "Groups, 5 columns", "Trees, 8 columns")
    assert weakest[5] == "0.4000 to 0.8600"
    assert cells(shown, "letter good 300 groups-5 degree-2 seed 0") == [
        ["letter good 300 groups-5 degree-2 seed 0", "ValueError: no \\", "such column"]
    ]


def test_scores_of_two_and_of_three_classes(harm):
    y, p = np.array([0, 1, 1]), np.array([0.5, 0.25, 1.0])
    two = harm.scores(y, p)
    assert two["log_loss"] == pytest.approx((np.log(2) + np.log(4)) / 3)
    assert two["brier"] == pytest.approx((0.25 + 0.5625) / 3)
    assert two["auc"] == pytest.approx(0.5)
    three = harm.scores(np.array([0, 2, 1]), np.array([[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]))
    assert three["log_loss"] == pytest.approx((np.log(2) + np.log(4) - np.log(1e-12)) / 3)
    assert three["brier"] == pytest.approx((0.5 + 0.875 + 2.0) / 3)
    assert three["auc"] == pytest.approx((1.0 + 0.0 + 0.5) / 3)


def test_harm_runs_small_and_continues_its_file(harm, capsys, tmp_path):
    pytest.importorskip("pyarrow")
    out = tmp_path / "results.jsonl"
    harm.main(["--quick", "--out", str(out)])
    assert capsys.readouterr().out.startswith("2 cells of 1 seeds, 2 fits: ")
    written = out.read_text(encoding="utf-8")
    out.write_text(written + '{"set": "adu', encoding="utf-8")  # interrupted while a line was written
    harm.main(["--quick", "--out", str(out)])
    assert "0 fits to run" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == written
    harm.main(["--summary", str(out)])
    assert "0 fits failed" in capsys.readouterr().out
    results = harm.read_results(out)
    assert {line["kind"] for line in results} == {"groups-5", "intersections-5"}
    assert all(line["n"] == 300 and line["n_test"] == 1000 for line in results)


def test_a_fit_that_raises_is_a_result(harm, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise ValueError("no")

    X = harm.pd.DataFrame({name: [1, 2] for name in harm.SETS["adult"].groups})
    part = harm.Part(X, np.array([0, 1]), np.array([0.5, 0.5]))
    monkeypatch.setattr(harm, "loaded", lambda *_: (part, part, {}))
    monkeypatch.setattr(harm.lowcal, "multicalibrate", refuse)
    key = harm.Key("adult", "good", "third", "trees", "smooth", 3)
    line = harm.fit_one(harm.Source(tmp_path, tmp_path), key)
    assert line == {**key._asdict(), "failure": "ValueError: no"}


def test_cheap_cells_come_first_with_their_seeds_together(harm):
    chosen = type("Chosen", (), {"rows": ["300", "5000", "third"], "classes": ["trees", "groups-5"]})
    chosen.notions = ["degree-2"]
    sizes = {("adult", "good", seed): 1000 for seed in (0, 1)}
    done = [harm.Key("adult", "good", "300", "groups-5", "degree-2", 0)]
    assert [key[2:4] + key[5:] for key in harm.plan(chosen, sizes, done)] == [
        ("300", "groups-5", 1),
        ("300", "trees", 0),
        ("300", "trees", 1),
        ("third", "groups-5", 0),
        ("third", "groups-5", 1),
        ("third", "trees", 0),
        ("third", "trees", 1),
    ]
