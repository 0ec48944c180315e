"""`lowcal demo` writes the report of the recalibrated model beside that of the start."""

import lowcal.demo as demo
from markup import read


def test_demo_writes_both_audits_as_one_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "TRAIN", 600)
    monkeypatch.setattr(demo, "CALIBRATE", 30_000)
    monkeypatch.setattr(demo, "NOTIONS", ("multiaccuracy", "degree-2"))
    demo.run(seed=1, folder=tmp_path / "new")
    said = capsys.readouterr().out
    page = tmp_path / "new" / "lowcal-demo.html"
    assert f"Report:  {page}" in said
    tables = read(page.read_text(encoding="utf-8")).tables
    compared = {row[0]: row[1:] for row in tables["both"]}
    before, after = (float(value) for value in compared["Largest error seen"])
    assert after < before / 2
    for low, _, high in (value.partition(" to ") for value in compared["Largest error in the population"]):
        assert f"{low} to {high}" in said
