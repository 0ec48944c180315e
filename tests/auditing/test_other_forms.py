"""The report in notebooks and as Markdown: short, true, and text stays text."""

import sys
from dataclasses import replace

import pytest

from audits import COLUMN, MARKUP, audited, read
from lowcal.auditing import page
from lowcal.cli.main import main
from lowcal.data.errors import InvalidInput, MissingExtra


@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_notebook_fragment_is_short_and_keeps_to_itself(n_classes):
    report = audited(n_classes)
    html = report._repr_html_()
    parser = read(html)
    assert len(html) < 12_000
    assert parser.elements[0] == ("div", {"class": "lowcal-audit"})
    style = html.split("<style>")[1].split("</style>")[0]
    rules = [rule for line in style.strip().splitlines() for rule in line.split("{")[0].split(",")]
    assert all(rule.strip().startswith(".lowcal-audit") for rule in rules)
    assert "script" not in {tag for tag, _ in parser.elements}
    whole = "".join(parser.text)
    assert f"at least {report.certified_lower:.4f}" in whole
    (rows,) = parser.tables.values()
    assert [row[0] for row in rows[1:]] == [one.subpopulation for one in report.worst(10)]
    assert ("Class" in rows[0]) == (n_classes == 5)
    assert "The worst 10 of 13 groups" in whole


def test_the_fragment_shows_notes_and_names_as_text():
    report = replace(audited(2), notes=("<i>note</i>",))
    report = replace(report, findings=tuple(sorted(report.findings, key=lambda one: MARKUP not in one.subpopulation)))
    whole = "".join(read(report._repr_html_()).text)
    assert "<i>note</i>" in whole
    assert f"g0={MARKUP}" in whole
    assert f"{COLUMN}=" in whole


@pytest.mark.parametrize("n_classes", [2, 5])
def test_markdown_is_a_table_that_nothing_breaks(n_classes):
    report = replace(audited(n_classes), notes=("a | note\nof two lines",))
    text = report.to_markdown(n=20)
    assert text.startswith("# Calibration audit: Not passed\n")
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + len(report.findings)
    bars = {line.replace("\\|", "").count("|") for line in table}
    assert bars == {8 if n_classes == 2 else 9}
    assert "<" not in text
    assert "&lt;img src=x onerror=alert\\(1\\)&gt;" in text
    assert "\\`a\\` \\*b\\*" in text
    assert "> Note: a \\| note of two lines" in text
    assert f"{report.findings[0].violation:+.4f}" in table[2]


def test_other_forms_show_the_error_per_person_with_its_interval():
    report = audited(2, alpha=None, per_person=0.02)
    first = report.findings[0]
    values, lowers, uppers = zip(first.interval("violation"), first.interval("per_person"), strict=True)
    cells = [
        cell
        for value, lower, upper in zip(values, lowers, uppers, strict=True)
        for cell in (f"{value:+.4f}", f"{lower:+.4f} to {upper:+.4f}")
    ]
    table = [line for line in report.to_markdown().splitlines() if line.startswith("| ")]
    assert "| Violation | 95% interval | Per person | 95% interval |" in table[0]
    assert " | ".join(cells) in table[2]
    assert "Tolerance: **0.02** (per\\_person" in report.to_markdown()
    fragment = report._repr_html_()
    assert "degree-2 at per_person=0.02: not passed" in fragment
    assert "".join(f"<td>{cell}</td>" for cell in cells).replace("-", "−") in fragment  # noqa: RUF001


def test_markdown_says_what_is_left_out():
    assert "and 11 more groups." in audited(2).to_markdown(n=2)
    assert "more groups" not in audited(2).to_markdown(n=13)
    with pytest.raises(InvalidInput, match="n must be a whole number"):
        audited(2).to_markdown(n=0)


@pytest.fixture
def no_jinja2(monkeypatch):
    page.environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)


def test_without_jinja2_a_page_says_what_to_install(no_jinja2, tmp_path):
    with pytest.raises(MissingExtra, match=r"pip install 'lowcal\[report\]'"):
        audited(2).to_html(tmp_path / "audit.html")
    assert list(tmp_path.iterdir()) == []


def test_without_jinja2_notebooks_show_the_text(no_jinja2):
    assert audited(2)._repr_html_() is None


def test_without_jinja2_the_command_stops_before_it_reads(no_jinja2, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--label", "y", "--probability", "p", "--html", "audit.html"]
    assert main(["audit", "missing.csv", *options]) == 65
    assert capsys.readouterr().err == "lowcal: An HTML report needs jinja2: pip install 'lowcal[report]'.\n"
    assert list(tmp_path.iterdir()) == []
