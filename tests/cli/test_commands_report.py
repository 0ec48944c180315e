"""`lowcal report`: saved audits side by side; and what an audit of a file tells of its origin."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lowcal
from audits import audited, read
from lowcal.auditing.reports import AuditComparison, SavedAudit
from lowcal.cli.main import main
from lowcal.datasets import make_miscalibrated


@pytest.fixture
def saved(here):
    """Audits of two models, by their paths."""
    reports = {f"{model}.json": audited(2, model) for model in ("poor", "better")}
    for path, report in reports.items():
        report.to_json(path)
    return reports


def as_csv(n=2000, path="rows.csv"):
    data = make_miscalibrated(n, random_state=0)
    columns = {"y": data.y, "p": data.p, "g0": data.X["g0"], "g1": data.X["g1"]}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    Path(path).write_text("\n".join(lines) + "\n")
    return data


def numbers(cell):
    return [float(one.replace("\u2212", "-")) for one in re.findall("[+\u2212-]?[0-9][0-9.]*", cell)]


def test_the_page_and_the_text_hold_the_figures_of_both_audits(saved, capsys):
    assert main(["report", "poor.json", "better.json", "--html", "page.html"]) == 0
    text = capsys.readouterr().out
    parser = read(Path("page.html").read_text(encoding="utf-8"))
    heads, *rows = parser.tables["groups-table"]
    assert heads == ["Group", "poor", "better"]
    assert {row[0] for row in rows} == {one.subpopulation for one in audited(2).findings}
    for row in rows:
        for report, cell in zip(saved.values(), row[1:], strict=True):
            gap = report.finding(row[0]).largest_gap
            assert numbers(cell) == pytest.approx([100 * gap.gap, 100 * gap.lower, 100 * gap.upper], abs=0.05)
            assert cell.replace("\u2212", "-") in text
    worst = max(saved["poor.json"].findings, key=lambda one: abs(one.largest_gap.gap)).subpopulation
    assert rows[0][0] == worst
    _, *audits = parser.tables["audits-table"]
    for report, row in zip(saved.values(), audits, strict=True):
        assert row[-2] == report.verdict.value
        assert numbers(row[-1]) == pytest.approx([report.certified_lower, report.certified_alpha], abs=5e-5)
        assert f"{report.certified_lower:.4f} to {report.certified_alpha:.4f}" in text
    assert "those of all audits together with at least 90%" in " ".join(text.split())


def test_differences_are_drawn_to_scale(saved):
    main(["report", "poor.json", "better.json", "--quiet", "--html", "page.html"])
    html = Path("page.html").read_text(encoding="utf-8")
    drawn = re.findall(r'class="whisker" d="M([\d.]+) \d+H([\d.]+)"/><path class="dot1" d="M([\d.]+) ', html)
    compared = AuditComparison.of([SavedAudit.read(path) for path in saved])
    gaps = [gap for name in compared.groups[:8] for gap in compared.gaps(name).values()]
    reach = max(abs(end) for gap in gaps for end in (gap.gap, gap.lower, gap.upper))
    for gap, places in zip(gaps, drawn, strict=True):
        found = [(float(one) - 140) / 65 * reach for one in places]
        assert found == pytest.approx([gap.lower, gap.upper, gap.gap], abs=reach / 500)


def test_several_classes_are_compared_class_by_class(here, capsys):
    for model in ("poor", "better"):
        audited(5, model).to_json(f"{model}.json")
    assert main(["report", "poor.json", "better.json", "--html", "-"]) == 0
    _, *rows = read(capsys.readouterr().out).tables["groups-table"]
    assert len(rows) == 5 * len(audited(5).findings)
    gaps = {f"{one.subpopulation}: {gap.label}": gap for one in audited(5).findings for gap in one.gaps}
    for row in rows:
        assert numbers(row[1])[0] == pytest.approx(100 * gaps[row[0]].gap, abs=0.05)


def test_audits_per_person_compare_their_own_limits(here, capsys):
    for model in ("poor", "better"):
        audited(2, model, alpha=None, per_person=0.02).to_json(f"{model}.json")
    assert main(["report", "poor.json", "better.json"]) == 0
    found = audited(2, alpha=None, per_person=0.02).largest_per_person
    text = capsys.readouterr().out
    assert "Largest error per person" in text
    assert f"{found.lower:.4f} to {found.upper:.4f}" in text


def test_audits_are_named_after_models_or_files(saved, here):
    first, second = (SavedAudit.read(path) for path in saved)
    assert [*AuditComparison.of([first, second]).audits] == ["poor", "better"]
    named = [replace(one, origin=replace(one.origin, model=name)) for one, name in ((first, "m1"), (second, "m2"))]
    assert [*AuditComparison.of(named).audits] == ["m1", "m2"]
    alike = [replace(one, path=f"{month}/audit.json") for one, month in ((first, "may"), (second, "june"))]
    assert [*AuditComparison.of(alike).audits] == ["may/audit.json", "june/audit.json"]


def test_groups_that_one_audit_lacks_are_marked(saved, capsys):
    plain = json.loads(Path("better.json").read_text())
    third = plain | {"findings": plain["findings"][1:]}
    Path("third.json").write_text(json.dumps(third))
    main(["report", "poor.json", "better.json", "third.json", "--html", "-"])
    rows = {row[0]: row[1:] for row in read(capsys.readouterr().out).tables["groups-table"]}
    assert rows[plain["findings"][0]["subpopulation"]][2] == "\u2013"
    assert len(rows) == len(plain["findings"]) + 1


@pytest.mark.parametrize(
    ("files", "code", "message"),
    [
        (["poor.json"], 64, "needs at least two audits"),
        (["poor.json", "missing.json"], 65, "missing.json can't be read"),
        (["poor.json", "text.json"], 65, "text.json is not an audit saved by 'lowcal audit --json'"),
        (["poor.json", "empty.json"], 65, "empty.json is not an audit saved by"),
        (["poor.json", "windows.json"], 65, "audits with --by have pages of their own"),
        (["poor.json", "poor.json"], 65, "An audit is given twice"),
        (["poor.json", "smooth.json"], 65, "poor.json is an audit of degree-2 at alpha=0.01, smooth.json of smooth"),
        (["poor.json", "strict.json"], 65, "strict.json of degree-2 at per_person=0.02. Audit all in the same way."),
        (["poor.json", "groups.json"], 65, "they share no group to compare"),
    ],
)
def test_what_can_not_be_compared_is_said(saved, capsys, files, code, message):
    Path("text.json").write_text("no JSON")
    Path("empty.json").write_text("{}")
    Path("windows.json").write_text(json.dumps({"windows": [], "verdict": "violated"}))
    audited(2, notion="smooth").to_json("smooth.json")
    audited(2, alpha=None, per_person=0.02).to_json("strict.json")
    other = audited(2).to_dict()
    names = [{**one, "subpopulation": f"other {k}"} for k, one in enumerate(other["findings"])]
    Path("groups.json").write_text(json.dumps(other | {"findings": names}))
    assert main(["report", *files, "--html", "page.html"]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("page.html").exists()


def test_an_output_never_replaces_an_audit(saved, capsys):
    assert main(["report", "poor.json", "better.json", "--html", "poor.json"]) == 64
    assert "would replace the input poor.json" in capsys.readouterr().err


# --- the origin of an audit -----------------------------------------------------------------------------------


def test_an_audit_tells_its_file_hash_and_command(here, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    as_csv()
    options = ["--label", "y", "--probability", "p", "--groups", "g0", "--seed", "3", "--quiet"]
    main(["audit", "rows.csv", *options, "--html", "a.html", "--json", "a.json"])
    digest = hashlib.sha256(Path("rows.csv").read_bytes()).hexdigest()
    found = json.loads(Path("a.json").read_text())
    assert found["origin"] == {"model": "p", "outcome": "y", "file": "rows.csv", "sha256": digest}
    whole = "".join(read(Path("a.html").read_text(encoding="utf-8")).text)
    command = f"lowcal audit rows.csv {' '.join(options)} --html a.html --json a.json"
    for fact in (f"Command{command}", f"SHA-256 of the data{digest}", "Date1970-01-01", "Seed3", "Datarows.csv"):
        assert fact in whole
    main(["audit", "rows.csv", *options, "--json", "b.json"])
    assert Path("b.json").read_bytes() == Path("a.json").read_bytes()


def test_a_saved_model_explains_what_it_changes_most(here, capsys):
    data = as_csv()
    columns = ["--label", "y", "--probability", "p"]
    assert (
        main(["fit", "rows.csv", *columns, "--groups", "g0,g1", "--alpha", "0.01", "--quiet", "--out", "m.json"]) == 0
    )
    audit = ["audit", "rows.csv", *columns, "--groups", "g0", "--quiet", "--model", "m.json"]
    main([*audit, "--html", "a.html"])
    predictor, X = lowcal.load("m.json"), {name: data.X[name] for name in ("g0", "g1")}
    change = np.abs(predictor(data.p, X) - data.p)
    rows = [int(one.replace(",", "")) for one in re.findall(r"<h4>Row ([\d,]+): ", Path("a.html").read_text())]
    assert rows == [k + 1 for k in np.argsort(-change, kind="stable")[:5]]
    first = predictor.explain(data.p[rows[0] - 1], {name: column[rows[0] - 1] for name, column in X.items()})
    assert f"Row {rows[0]:,}: {first.headline}" in Path("a.html").read_text()
    assert main(audit) == 64
    assert "--model explains predictions on the page of one audit; give --html" in capsys.readouterr().err
