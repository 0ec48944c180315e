"""plan and reproduce: figures of the theory in words, and the paper's example computed anew."""

import json
from fractions import Fraction
from math import ceil

import pytest

from lowcal.cli import main
from lowcal.commands.reproduce import example_b1
from lowcal.complexity import sample_size, show_rows


def test_a_plan_for_groups(capsys):
    assert main(["plan", "--notion", "degree-2", "--alpha", "0.1", "--groups", "50"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("degree-2 at alpha=0.1, 2 classes, 50 groups, 95% confidence\n")
    lines = {line[:46].strip(): line[46:].strip() for line in text.splitlines()}
    # Lemma 5.3 for scalars: phi(f_0) / alpha^2 with phi <= 1/4 from 1/2, and 1 from anywhere; the paper: 8 l / alpha^2
    for start, phi in [("from the uniform prediction", Fraction(1, 4)), ("from any predictor", Fraction(1))]:
        assert f"  {start}" in text
        found = next(line.split()[-1] for line in text.splitlines() if line.strip().startswith(start))
        assert int(found.replace(",", "")) == int(phi / Fraction(1, 100))
    assert "with the constants of the paper  800" in text
    for setting, words in [("fresh", "new rows for every update"), ("reuse", "the same rows for all updates")]:
        rows = sample_size("degree-2", 0.1, n_subpopulations=50, setting=setting).rows
        assert next(line.split()[-1] for line in text.splitlines() if words in line) == show_rows(rows)
    assert "What other notions would cost for the same" in text
    assert lines


def test_a_plan_for_a_vc_dimension_says_that_it_is_an_order(capsys):
    assert main(["plan", "--alpha", "0.05", "--classes", "10", "--vc", "20", "--beta", "0.1"]) == 0
    text = capsys.readouterr().out
    assert "10 classes, subpopulations of VC dimension 20, 90% confidence" in text
    rows = sample_size("degree-2", 0.05, n_classes=10, vc=20, beta=0.1).rows
    assert f"order of growth (the constant is not known)    {ceil(rows):,}" in text


def test_a_plan_for_other_notions_has_no_comparison(capsys):
    for notion in ("smooth", "multiaccuracy", "full-0.1"):
        assert main(["plan", "--notion", notion, "--groups", "5"]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"{notion} at alpha=0.05")
        assert "other notions" not in text


@pytest.mark.parametrize("arguments", [[], ["--groups", "5", "--vc", "5"]])
def test_a_plan_needs_one_measure_of_the_subpopulations(arguments, capsys):
    assert main(["plan", *arguments]) == 64
    assert "--groups N (their number) or --vc N" in capsys.readouterr().err


def test_example_b1_is_that_of_the_paper():
    """The parity square by hand: weights 1/3, 1/3, 1/6, 1/6; labels 1, 0, 0, 1; predictions 2/3, 1/3, 2/3, 1/3."""
    weight = [Fraction(1, 3), Fraction(1, 3), Fraction(1, 6), Fraction(1, 6)]
    y, p = [1, 0, 0, 1], [Fraction(2, 3), Fraction(1, 3), Fraction(2, 3), Fraction(1, 3)]
    x = {"x1": [0, 0, 1, 1], "x2": [0, 1, 0, 1]}
    found = example_b1()
    for name, column in x.items():
        for value in (0, 1):
            w = [a if b == value else Fraction(0) for a, b in zip(weight, column, strict=True)]
            total = sum(w)
            mean = [sum(a * b for a, b in zip(w, v, strict=True)) / total for v in (p, y)]
            both = sum(a * b * c for a, b, c in zip(w, p, y, strict=True)) / total
            assert found["covariance"][f"{name}={value}"] == pytest.approx(float(both - mean[0] * mean[1]), abs=1e-15)
    assert found["violation"]["multiaccuracy"] == pytest.approx(0, abs=1e-15)
    assert found["violation"]["degree-2"] == pytest.approx(1 / 27)


def test_reproduce_prints_and_writes(tmp_path, capsys):
    assert main(["reproduce", "example-b1"]) == 0
    assert "Cov(prediction, label | x1=1) = -0.0833" in capsys.readouterr().out
    assert main(["reproduce", "example-b1", "--out", str(tmp_path / "new" / "folder")]) == 0
    assert json.loads((tmp_path / "new" / "folder" / "example-b1.json").read_text()) == example_b1()
    (tmp_path / "file").write_text("")
    assert main(["reproduce", "example-b1", "--out", str(tmp_path / "file" / "x")]) == 65
    assert "can't be made" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["figure-1", "hierarchy", "all"])
def test_what_does_not_exist_yet_is_said(target, capsys):
    assert main(["reproduce", target]) == 69
    assert capsys.readouterr().err.startswith(f"lowcal: {target} can't be reproduced by this version yet")
