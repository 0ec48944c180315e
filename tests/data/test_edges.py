"""Corners that no ordinary run visits: odd options, solvers that can't move, many cells, odd weights."""

import json
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest

import lowcal
from lowcal.cli.main import main
from lowcal.data.errors import InvalidInput
from lowcal.notions import Multiaccuracy
from lowcal.notions.weights import Cell, Points, evaluate, n_cells, occupied_cells
from lowcal.rows import START, Memory
from lowcal.rows.updates import Term, Update
from lowcal.solve.solvers import SOLVERS, Problem
from lowcal.subpopulations import Everyone
from lowcal.subpopulations.groups import cover
from worlds import multicalibrate

Y, P = np.array([0, 1, 0, 1]), np.array([0.2, 0.7, 0.4, 0.6])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"callback": 3}, "callback must be a function"),
        ({"random_state": "a"}, "random_state must be"),
        ({"random_state": -1}, "random_state must be"),
        ({"notion": 3}, "A notion is a name"),
        ({"notion": lowcal.LowDegree}, "A notion is a name"),
        ({"max_updates": 1.5}, "max_updates must be a whole number"),
        ({"max_updates": "a"}, "max_updates must be a whole number"),
        ({"step": True}, "step must be"),
        ({"step": [1]}, "step must be"),
        ({"validation_fraction": None}, "validation_fraction must be a number"),
    ],
)
def test_odd_options_are_refused_in_a_sentence(options, message):
    with pytest.raises(InvalidInput, match=message):
        multicalibrate(Y, P, **options)


def test_a_width_or_degree_that_is_no_number():
    with pytest.raises(InvalidInput, match="width"):
        lowcal.Full("a")
    with pytest.raises(InvalidInput, match="degree"):
        lowcal.LowDegree(True)


def test_a_tolerance_beyond_all_counting_has_a_bound():
    fit = multicalibrate(Y, P, alpha=1e-300, max_updates=2)
    assert fit.bound > 10**18


@pytest.mark.parametrize("solver", ["worst", "block"])
def test_a_solver_that_can_not_move_ends_and_says_so(solver, monkeypatch):
    """Rounding may leave a violation that no step lowers: the stream ends, the status is honest."""
    from lowcal.solve import solvers

    monkeypatch.setattr(solvers, "line_search", lambda *_: 0.0)
    fit = multicalibrate(Y, P, alpha=1e-6, solver=solver, geometry="euclidean")
    assert fit.status == "stalled"
    assert fit.n_updates == 0
    assert "no step lowers the loss" in str(fit)


@pytest.mark.parametrize("solver", ["worst", "block"])
def test_a_step_that_would_raise_the_loss_is_not_taken(solver, monkeypatch):
    from lowcal.solve import solvers

    monkeypatch.setattr(solvers, "line_search", lambda *_: -1.0)
    assert multicalibrate(Y, P, alpha=1e-6, solver=solver, geometry="euclidean").n_updates == 0


def test_block_takes_the_single_step_when_the_joint_one_gains_too_little(monkeypatch):
    from lowcal.solve import solvers

    real = solvers.block_terms

    def feeble(*arguments):
        return tuple(term.scaled(0.0) for term in real(*arguments))

    monkeypatch.setattr(solvers, "block_terms", feeble)
    data = lowcal.datasets.make_miscalibrated(1000, random_state=0)
    fit = multicalibrate(data.y, data.p, data.X, alpha=0.01, solver="block", geometry="euclidean")
    assert fit.status == "reached"
    assert fit.n_updates > 1
    assert all(len(update.terms[0].family.names) == 1 for update in fit.predictor.updates)


def test_too_many_joint_values_are_refused_before_the_table_is_built():
    assert cover([300, 300], 2) == ((0, 1),)
    with pytest.raises(InvalidInput, match="joint values"):
        cover([100_000, 100_000], 2)


def test_rare_categories_belong_to_no_group():
    X = {"id": np.array([f"id{k % 997}" for k in range(1000)]), "sex": np.array(["f", "m"] * 500)}
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 2, 1000), rng.random(1000)
    measured = lowcal.measure(y, p, X, subpopulations=lowcal.Intersections(["id", "sex"], depth=2))
    assert measured.names == ("everyone", "sex=f", "sex=m")


def test_cells_of_many_classes_are_told_apart_without_counting_them_all():
    p = np.eye(30)[[0, 1, 1, 2]]
    occupied, which = occupied_cells(p, 0.01)
    assert len(occupied) == 3
    assert which[1] == which[2] != which[0]
    ids = evaluate([Cell(0.01, tuple(row)) for row in occupied.tolist()], p)
    assert ids.ids.tolist() == which.tolist()


def test_cells_of_a_width_that_does_not_divide_one_are_bounded_by_the_grid():
    assert n_cells(3, 0.3) == 4**3
    assert n_cells(1, 0.3) == 4


def test_points_are_named_and_become_plain_data():
    weight = Points(np.array([[0.2, 0.8]]), np.array([0.1]))
    assert str(weight) == "a Lipschitz function through 1 points"
    term = Term(Everyone(), (weight,), np.ones((1, 1, 2)))
    assert Update((term,)).to_dict()["terms"][0]["weights"][0]["kind"] == "points"
    with pytest.raises(lowcal.InvalidInput, match="no plain form"):
        Term(Everyone(), (np.mean,), np.ones((1, 1, 2))).to_dict()


def test_solvers_are_generators_that_know_nothing_of_limits():
    """The central algorithms run bare, without the loop around them."""
    from lowcal.data.frames import Table
    from lowcal.subpopulations import Groups

    data = lowcal.datasets.make_miscalibrated(500, random_state=1)
    weight = np.full(500, 1 / 500)
    for name, solver in SOLVERS.items():
        learner = Groups(min_mass=0).prepare(Table.of(data.X), weight)
        p, y, state = data.p[:, None], data.y[:, None].astype(float), START
        problem = Problem(Memory.of(learner.rows, p, y, weight), Multiaccuracy(), learner, alpha=0.02)
        for step in solver(problem, START):
            p, state = step.state.update(p, learner.rows), step.state
            np.testing.assert_array_equal(p, problem.whole(state)[0])
        assert problem.suprema(state).upper.max() <= 0.02, name


def test_unknown_public_names_are_refused():
    with pytest.raises(AttributeError, match="banana"):
        lowcal.banana  # noqa: B018


def test_a_learner_cut_short_is_asked_again_before_the_notion_is_said_to_hold(monkeypatch):
    """All that is known may be satisfied while the learner would still find a violation: that is not "reached"."""
    from lowcal.solve import fitting

    data = lowcal.datasets.make_miscalibrated(2000, random_state=0)
    options = {"subpopulations": lowcal.Trees(), "notion": "multiaccuracy", "alpha": 0.012, "guard": False}
    whole = multicalibrate(data.y, data.p, data.X, solver="worst", **options)
    assert whole.status == "reached"
    cut = [
        multicalibrate(data.y, data.p, data.X, solver="worst", max_updates=n, **options)
        for n in range(1, whole.n_updates)
    ]
    assert {fit.status.value for fit in cut} == {"limit"}
    monkeypatch.setattr(fitting, "explore", lambda *_: False)
    hasty = [
        multicalibrate(data.y, data.p, data.X, solver="worst", max_updates=n, **options)
        for n in range(1, whole.n_updates)
    ]
    assert "reached" in {fit.status.value for fit in hasty}  # without the question the claim would be false


def test_a_row_of_a_pandas_frame_is_a_row():
    pd = pytest.importorskip("pandas")
    data = lowcal.datasets.make_miscalibrated(2000, random_state=0)
    frame = pd.DataFrame(data.X)
    predictor = multicalibrate(data.y, data.p, frame, alpha=0.005).predictor
    assert predictor.one(data.p[3], frame.iloc[3]) == predictor.one(data.p[3], frame.iloc[3].to_dict())
    with pytest.raises(lowcal.errors.MissingColumn, match="no value for the column 'g0'"):
        predictor.one(data.p[3], frame.iloc[3].drop("g0"))


def test_an_account_beyond_floats_is_itself_when_served_and_saved(tmp_path):
    accounts, y = 2**53 + np.arange(400) % 2, np.arange(400) % 2
    fit = multicalibrate(y, np.full(400, 0.5), {"account": accounts}, subpopulations=lowcal.Groups())
    lowcal.save(fit.predictor, tmp_path / "m.json")
    for predictor in (fit.predictor, lowcal.load(tmp_path / "m.json")):
        first, second = predictor(np.full(2, 0.5), {"account": accounts[:2]})
        assert first < 0.2 < 0.8 < second
        for kind in (int, np.int64, Decimal):
            served = [predictor.one(0.5, {"account": kind(2**53 + k)}) for k in range(3)]
            assert served == pytest.approx([first, second, predictor.one(0.5, {"account": 5})])


def is_plain(text):
    return all(c.isprintable() or c == "\n" for c in text)


def test_names_that_would_steer_a_terminal_are_spelled_out():
    """In every text that shows a name: the report and its notes, findings, guarantees, updates."""
    steering = "\x1b[2J\x1b[31mgone\r\x07\u202e"
    g = np.array([steering, "b"] * 300 + [f"{steering}{k}" for k in range(2)], dtype=object)
    y = np.array([1, 0] * 300 + [0, 1])
    p = np.full(602, 0.5)
    data = {"g": g, f"h{steering}": np.array([f"{k}" for k in range(602)], dtype=object)}
    report = lowcal.audit(y, p, data, subpopulations=lowcal.Groups())
    fit = multicalibrate(y, p, data, subpopulations=lowcal.Groups())
    texts = [str(report), *report.notes, report.guarantees(), *map(str, report.findings), str(fit)]
    texts += [str(update) for update in fit.predictor.updates]
    texts += [report.to_markdown(), str(report.pages(f"g={steering}")[0])]
    assert all(map(is_plain, texts))
    assert sum("\\x1b[31mgone" in text for text in texts) >= 6
    assert report.finding(f"g={steering}").violation > 0  # as data, a name is what it was


def test_what_a_command_says_can_not_steer_the_terminal(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("y,p,\x1b[31mg\n0,0.5,a\n1,0.5,b\n")
    assert main(["audit", str(path), "--label", "y", "--probability", "p"]) == 64
    told = capsys.readouterr().err
    assert "--groups \\x1b[31mg" in told
    assert is_plain(told)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("label", [0, 1])
def test_a_window_with_one_class_is_audited_where_the_classes_are_named(n_classes, label):
    """The violations are those of the definition: E[c (y - p)] with y = 0 or 1 throughout."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(n_classes), 400)
    g = rng.integers(0, 2, 400)
    names = ["a", "b", "c"][:n_classes]
    y = np.full(400, names[label], dtype=object)
    options = {"subpopulations": lowcal.Groups(), "notion": "multiaccuracy", "classes": names}
    report = lowcal.audit(y, p, {"g": g}, random_state=0, **options)
    assert report.verdict.value == "violated"
    found = report.finding("g=1")
    own = np.mean((g == 1)[:, None] * (np.eye(n_classes)[label] - p), axis=0)
    expected = own[1] if n_classes == 2 else own[np.abs(own).argmax()]
    assert found.violation == pytest.approx(expected)
    assert lowcal.measure(y, p, {"g": g}, **options).largest == pytest.approx(report.violation)
    with pytest.raises(InvalidInput, match="one class only"):
        multicalibrate(y, p, {"g": g}, classes=names)


def test_the_command_audits_a_window_with_one_class(tmp_path, capsys):
    path, json_path = tmp_path / "rows.csv", tmp_path / "r.json"
    options = ["--label", "y", "--groups", "g", "--json", str(json_path), "--quiet"]
    path.write_text("y,p,old,g\n" + "".join(f"0,0.5,0.4,{'ab'[k % 2]}\n" for k in range(100)))
    one = [*options, "--probability", "p"]
    assert main(["audit", str(path), *one]) == 65
    assert "name both, the positive one last, such as --classes 0,1" in capsys.readouterr().err
    assert main(["audit", str(path), *one, "--classes", "0,1", "--against", "old"]) == 1
    findings = json.loads(json_path.read_text())["findings"]
    assert {f["subpopulation"]: f["violation"] for f in findings}["g=a"] == pytest.approx(-0.25)
    for wrong, said in [
        (["--classes", "0,1", "--positive", "1"], "Give either --positive or --classes"),
        (["--classes", "0,1,2"], "names 3 classes, but a single probability column needs two"),
    ]:
        assert main(["audit", str(path), *one, *wrong]) == 64
        assert said in capsys.readouterr().err
    assert main(["audit", str(path), *one, "--classes", "1,2"]) == 65
    assert "holds the label '0', which --classes does not name" in capsys.readouterr().err
    assert (
        main(["fit", str(path), "--label", "y", "--groups", "g", *one[-2:], "--classes", "0,1", "--out", "m.json"])
        == 65
    )
    path.write_text("y,p_a,p_b,p_c,g\n" + "b,0.5,0.25,0.25,x\n" * 100)
    assert main(["audit", str(path), *options, "--probability", "p_a,p_b,p_c"]) == 1
    assert json.loads(json_path.read_text())["findings"][0]["label"] == "b"


def test_suprema_of_many_draws_need_little_memory():
    """Temporaries are those of a few draws, and each supremum is what it is alone."""
    v = np.random.default_rng(0).standard_normal((300, 51, 50))
    notion = lowcal.LowDegree(2)
    weights = notion.constraints(np.full((1, 50), 0.02))
    notion.norm(weights, v[:1])
    tracemalloc.start()
    found = notion.norm(weights, v)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < v.nbytes
    alone = [notion.norm(weights, v[[j]]) for j in (0, 52, 53, 299)]
    np.testing.assert_array_equal(found.value[[0, 52, 53, 299]], [one.value[0] for one in alone])
    np.testing.assert_array_equal(found.basis, np.abs(v).max(axis=(1, 2)))
