"""plan: figures of the theory in words."""

from fractions import Fraction
from math import ceil

import pytest

from lowcal.cli.main import main
from lowcal.complexity import audit_rows, sample_size, show_rows


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
    assert "either --groups N (the number of subpopulations) or --vc N" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--alpha", "1e-300"], ["--alpha", "1e-160"], ["--beta", "1e-320"]])
def test_a_plan_that_can_not_be_counted_is_refused(given, capsys):
    assert main(["plan", "--groups", "4", *given]) == 64
    out, error = capsys.readouterr()
    assert out == ""
    assert "are too small: the number of rows overflows" in error


def test_a_plan_says_how_many_rows_an_audit_needs(capsys):
    assert main(["plan", "--alpha", "0.01", "--groups", "20", "--rate", "0.1", "--beta", "0.1"]) == 0
    text = capsys.readouterr().out
    assert "Held-out rows to certify alpha for a perfect model, base rate 0.1, 80% power" in text
    for words, method in (("bootstrap (default)", "normal"), ("bernstein: for any n", "bernstein")):
        rows = audit_rows("degree-2", 0.01, 20, rate=0.1, beta=0.1, method=method)
        assert next(line.split()[-1] for line in text.splitlines() if words in line) == show_rows(rows)
    for more in (["--vc", "5"], ["--groups", "5", "--notion", "smooth"]):
        assert main(["plan", *more]) == 0
        assert "Held-out rows" not in capsys.readouterr().out
