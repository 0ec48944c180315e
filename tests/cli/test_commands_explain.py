"""`lowcal predict --explain`: why each prediction changed, beside it, in every format and batch by batch."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import lowcal
import lowcal.data.text as delimited
from far_rows import DATA, three_classes
from lowcal.cli.main import main

GROUPS = ["city", "band"]
FRAME = pd.DataFrame({name: DATA[name][:400] for name in ("y", "p", *GROUPS)})


@pytest.fixture
def predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lowcal.Predictor:
    monkeypatch.chdir(tmp_path)
    fit = lowcal.multicalibrate("y", "p", FRAME, subpopulations=lowcal.Groups(GROUPS), geometry="mirror", guard=False)
    lowcal.save(fit.predictor, "m.json", metadata={"probability": ["p"]})
    FRAME.to_csv("t.csv", index=False)
    return fit.predictor


READERS = {
    "o.csv": lambda path: pd.read_csv(path),
    "o.parquet": lambda path: pd.read_parquet(path),
    "o.jsonl": lambda path: pd.read_json(path, lines=True),
    "o.json": lambda path: pd.DataFrame(json.loads(Path(path).read_text(encoding="utf-8"))),
}


def expected(predictor: lowcal.Predictor) -> list[str]:
    return [predictor.explain(row["p"], row).why() for row in FRAME.to_dict("records")]


@pytest.mark.parametrize("out", READERS)
def test_why_is_what_the_library_says(
    predictor: lowcal.Predictor, out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delimited, "BATCH_BYTES", 2_000)
    assert main(["predict", "m.json", "t.csv", "--explain", "--out", out]) == 0
    written = READERS[out](out)
    assert list(written) == [*FRAME, "p_calibrated", "why"]
    assert written["why"].tolist() == expected(predictor)
    said = capsys.readouterr().out
    first = predictor.explain(float(FRAME["p"][0]), FRAME.iloc[0].to_dict())
    assert said == f"Wrote 400 rows to {out}, with p_calibrated, why.\n\nRow 1: {first}\n"


def test_nothing_else_changes(predictor: lowcal.Predictor) -> None:
    assert main(["predict", "m.json", "t.csv", "--quiet", "--out", "plain.csv"]) == 0
    assert main(["predict", "m.json", "t.csv", "--quiet", "--explain", "--out", "why.csv"]) == 0
    pd.testing.assert_frame_equal(pd.read_csv("plain.csv"), pd.read_csv("why.csv").drop(columns="why"))


def test_standard_output_holds_the_table_alone(
    predictor: lowcal.Predictor, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["predict", "m.json", "t.csv", "--explain", "--out", "-"]) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert len(lines) == 401
    assert lines[0] == "y,p,city,band,p_calibrated,why"


def test_a_column_why_of_the_file_is_kept(predictor: lowcal.Predictor, capsys: pytest.CaptureFixture[str]) -> None:
    FRAME.assign(why="?").to_csv("t.csv", index=False)
    assert main(["predict", "m.json", "t.csv", "--explain", "--out", "o.csv"]) == 65
    assert capsys.readouterr().err == "lowcal: t.csv already has a column 'why'; rename it, or leave out --explain.\n"
    assert main(["predict", "m.json", "t.csv", "--out", "o.csv", "--quiet"]) == 0


def test_a_file_without_rows(predictor: lowcal.Predictor, capsys: pytest.CaptureFixture[str]) -> None:
    FRAME[:0].to_csv("t.csv", index=False)
    assert main(["predict", "m.json", "t.csv", "--explain", "--out", "o.csv"]) == 0
    assert Path("o.csv").read_text(encoding="utf-8") == "y,p,city,band,p_calibrated,why\n"
    assert "Row 1" not in capsys.readouterr().out


def test_several_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(three_classes(600))
    names = ["p_a", "p_b", "p_c"]
    fit = lowcal.multicalibrate("y", names, frame, subpopulations=lowcal.Groups(["city"]))
    lowcal.save(fit.predictor, "m.json", metadata={"probability": names})
    frame.to_csv("t.csv", index=False)
    assert main(["predict", "m.json", "t.csv", "--explain", "--quiet", "--out", "o.csv"]) == 0
    why = pd.read_csv("o.csv")["why"].tolist()
    assert why == [fit.predictor.explain([r[n] for n in names], r).why() for r in frame.to_dict("records")]
