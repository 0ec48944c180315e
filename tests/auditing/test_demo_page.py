"""`lowcal demo` writes the report of the recalibrated model beside that of the start."""

import sys

import pytest

import lowcal.cli.demo as demo
from audits import read
from lowcal.auditing import page


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(demo, "TRAIN", 600)
    monkeypatch.setattr(demo, "CALIBRATE", 30_000)
    monkeypatch.setattr(demo, "NOTIONS", ("multiaccuracy", "degree-2"))


def test_demo_writes_both_audits_as_one_page(tmp_path, capsys):
    demo.demonstrate(seed=1, folder=tmp_path / "new")
    said = capsys.readouterr().out
    page = tmp_path / "new" / "lowcal-demo.html"
    assert f"Report:  {page}" in said
    parser = read(page.read_text(encoding="utf-8"))
    tables, whole = parser.tables, "".join(parser.text)
    assert "Modelsmall network, recalibrated" in whole
    assert whole.count("Contributions to row") == 5
    compared = {row[0]: row[1:] for row in tables["both"]}
    before, after = (float(value) for value in compared["Largest violation observed"])
    assert after < before / 2
    for low, _, high in (value.partition(" to ") for value in compared["Largest violation in the population"]):
        assert f"{low} to {high}" in said


def test_without_extras_demo_says_what_it_does_not_write(tmp_path, monkeypatch, capsys):
    page.environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    demo.demonstrate(seed=1, folder=tmp_path)
    said = capsys.readouterr().out
    assert "No report: An HTML report needs jinja2: pip install 'lowcal[report]'." in said
    assert "No picture: matplotlib is not installed" in said
    assert list(tmp_path.iterdir()) == []
