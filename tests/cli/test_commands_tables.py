"""audit, fit and predict on files: the same figures as the library on the same rows, in every format."""

import csv
import gzip
import io
import json
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import lowcal
import lowcal.cli.audit as audit_command
import lowcal.data.batches as batches
import lowcal.data.text as delimited
from lowcal.auditing.reports import AuditReport
from lowcal.cli.main import main
from lowcal.datasets import make_miscalibrated
from lowcal.persistence import read, save

N = 3000


@pytest.fixture(scope="module")
def data():
    made = make_miscalibrated(N, random_state=0)
    rng = np.random.default_rng(1)
    sex = np.array(["F", "M", None], dtype=object)[rng.integers(0, 3, N)]
    age = rng.integers(18, 80, N).astype(float)
    age[::50] = np.nan
    city = np.array(["Zürich", 'the "old", town', "01", "02"], dtype=object)[rng.integers(0, 4, N)]
    member = rng.random(N) < 0.4
    return pd.DataFrame({"y": made.y, "p": made.p, "sex": sex, "age": age, "city": city, "member": member})


def table(path, separator=","):
    """A written CSV: the probabilities exactly, everything else as text."""
    content = Path(path).read_bytes()
    text = (gzip.decompress(content) if str(path).endswith(".gz") else content).decode("utf-8-sig")
    frame = pd.DataFrame(list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)))
    numbers = {name: [float(v.replace(",", ".")) for v in frame[name]] for name in frame if name.startswith("p")}
    return frame.assign(**numbers)


def test_cut_points_are_named_on_the_command_line(data, here, capsys):
    data.to_csv("t.csv", index=False)
    options = ["--label", "y", "--probability", "p", "--groups", "age,sex", "--quiet"]
    assert main(["audit", "t.csv", *options, "--cuts", "age:25, 40,65", "--json", "a.json"]) in (0, 1, 2)
    found = {one["subpopulation"] for one in json.loads(Path("a.json").read_text())["findings"]}
    ages = {"age<=25", "25<age<=40", "40<age<=65", "age>65"}
    assert found == {"everyone", *ages, "age is missing", "sex=F", "sex=M", "sex is missing"}
    assert main(["fit", "t.csv", *options, "--cuts", "age:40", "--depth", "2", "--out", "m.json"]) == 0
    expected = lowcal.multicalibrate("y", "p", data, subpopulations=lowcal.Intersections({"age": [40], "sex": None}))
    np.testing.assert_allclose(lowcal.load("m.json")(data["p"], data), expected.predictor(data["p"], data))
    capsys.readouterr()
    assert main(["audit", "t.csv", *options, "--cuts", "city:1"]) == 64
    assert "--cuts names 'city', which is no column of --groups" in capsys.readouterr().err
    assert main(["audit", "t.csv", *options, "--cuts", "sex:1"]) == 65
    assert "'sex' of X holds no numbers to cut" in capsys.readouterr().err


GROUPS = ["sex", "age", "city", "member"]
OPTIONS = ["--label", "y", "--probability", "p", "--groups", ",".join(GROUPS)]


def fitted(frame, **options):
    """What the library makes of the same rows."""
    kind = lowcal.Intersections(GROUPS, depth=options.pop("depth", 1))
    kind = lowcal.Groups(GROUPS) if kind.depth == 1 else kind
    return lowcal.multicalibrate(frame["y"], frame["p"], frame[GROUPS], subpopulations=kind, random_state=0, **options)


def as_csv(frame, path="t.csv", **options):
    frame.to_csv(path, index=False, **options)
    return str(path)


def content(text):
    """A saved audit, but for what it says of its origin."""
    return {name: value for name, value in json.loads(text).items() if name != "origin"}


def as_sheet(frame, path="t.csv"):
    """As a spreadsheet in much of Europe saves it."""
    return as_csv(frame, path, sep=";", decimal=",", encoding="utf-8-sig", lineterminator="\r\n")


def as_parquet(frame, path="t.parquet"):
    pl.from_pandas(frame).write_parquet(path)
    return str(path)


FORMATS = {"csv": (as_csv, []), "sheet": (as_sheet, ["--decimal", ","]), "parquet": (as_parquet, [])}


@pytest.mark.parametrize(
    ("options", "given", "goal"),
    [
        (["--notion", "degree-2"], {}, "degree-2 as far as the rows allow"),
        (["--per-person", "0.05"], {"per_person": 0.05}, "degree-2 at per_person=0.05"),
        (
            ["--per-person", "0.02", "--min-share", "0.4"],
            {"per_person": 0.02, "min_share": 0.4},
            "degree-2 at per_person=0.02",
        ),
        (["--alpha", "0.002", "--no-guard"], {"alpha": 0.002, "guard": False}, "degree-2 at alpha=0.002"),
    ],
)
def test_how_far_a_fit_goes(here, data, options, given, goal, capsys):
    assert main(["fit", as_csv(data), *OPTIONS, *options, "--seed", "0", "--out", "m.json"]) == 0
    expected, saved, text = fitted(data, **given), read("m.json"), capsys.readouterr().out
    assert expected.n_updates > 0
    assert saved.model.to_dict() == expected.predictor.to_dict()
    assert (saved.metadata["alpha"], saved.metadata["per_person"]) == (expected.alpha, expected.per_person)
    assert text.startswith(f"{goal}: {expected.status.value}\n")
    before = expected.start.held_out_log_loss
    if "--no-guard" in options:
        assert before is None
        assert "held-out" not in text
    else:
        after = expected.history[-1].held_out_log_loss
        assert after < before
        assert f"Log loss on held-out rows: {before:.4g} -> {after:.4g}." in " ".join(text.split())


def test_what_to_do_next_is_said_in_options(here, data, capsys):
    assert main(["fit", as_csv(data), *OPTIONS, "--alpha", "0.0001", "--seed", "0", "--out", "m.json"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert read("m.json").metadata["status"] == "guarded"
    assert "or --no-guard to fit these rows all the same." in text
    options = ["--solver", "worst", "--no-guard", "--max-updates", "1", "--alpha", "0.0001", "--out", "m.json"]
    assert main(["fit", "t.csv", *OPTIONS, *options]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--max-updates was reached before the notion held; raise --max-updates or alpha." in text


def test_a_fit_that_does_harm_says_so_in_a_sentence(here, data, capsys):
    """Filters of warnings have no part in it: whoever calls the command can't set them."""
    options = ["--geometry", "euclidean", "--alpha", "0.0005", "--no-guard", "--seed", "0", "--quiet"]
    sure = data.assign(y=np.where(data["sex"] == "F", 0, data["y"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["fit", as_csv(sure), *OPTIONS, *options, "--out", "m.json"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"lowcal: [\d,]+ of 3,000 calibrated predictions are exactly 0 or 1, [^\n]+\.\n", err)


@pytest.mark.parametrize("form", FORMATS)
def test_a_fit_on_a_file_is_the_fit_on_its_rows(here, data, form, monkeypatch):
    monkeypatch.setattr(delimited, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(batches, "BATCH_ROWS", 700)
    make, more = FORMATS[form]
    path = make(data)
    assert (
        main(["fit", path, *OPTIONS, *more, "--depth", "2", "--alpha", "0.005", "--seed", "0", "--out", "m.json"]) == 0
    )
    expected = fitted(data, depth=2, alpha=0.005)
    assert expected.n_updates > 0
    saved = read("m.json")
    assert saved.model.to_dict() == expected.predictor.to_dict()
    assert saved.metadata == {
        "label": "y",
        "probability": ["p"],
        "columns": GROUPS,
        "classes": [0, 1],
        "notion": "degree-2",
        "alpha": 0.005,
        "per_person": None,
        "status": expected.status.value,
        "violation": expected.violation,
        "n_rows": N,
    }


@pytest.mark.parametrize("out", ["out.csv", "out.parquet", "out.json", "out.csv.gz"])
@pytest.mark.parametrize("form", FORMATS)
def test_predict_recalibrates_as_the_library_does_whatever_the_format(here, data, form, out, monkeypatch, capsys):
    monkeypatch.setattr(delimited, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(batches, "BATCH_ROWS", 700)
    fit = fitted(data, depth=2, alpha=0.005)
    save(fit.predictor, "m.json", metadata={"probability": ["p"]})
    make, more = FORMATS[form]
    path = make(data)
    assert main(["predict", "m.json", path, *more, "--out", out]) == 0
    assert f"Wrote 3,000 rows to {out}, with p_calibrated." in capsys.readouterr().out
    expected = fit.predictor(data["p"], data[GROUPS])
    if out.endswith(".parquet"):
        got = pd.read_parquet(out)
    elif out.endswith(".json"):
        got = pd.DataFrame(json.loads((here / out).read_text(encoding="utf-8")))
    else:
        got = table(out, ";" if form == "sheet" else ",")
    assert list(got.columns) == [*data.columns, "p_calibrated"]
    np.testing.assert_array_equal(got["p_calibrated"], expected)
    np.testing.assert_array_equal(got["p"], data["p"])
    assert got["city"].tolist() == data["city"].tolist()


def test_a_batch_is_read_as_the_model_was_fitted_not_as_it_looks(here, data, monkeypatch):
    """Text that looks like numbers, numbers that are categories, truth values, values never seen before."""
    frame = data.assign(zip=np.array(["1", "2", "x"])[np.arange(N) % 3], floor=np.arange(N) % 4)
    groups = ["zip", "floor", "member", "age"]
    expected = lowcal.multicalibrate(
        frame["y"], frame["p"], frame[groups], subpopulations=lowcal.Groups(groups), alpha=0.002
    ).predictor
    save(expected, "m.json")
    new = frame.iloc[:6].assign(zip=["1", "2", "1", "3", None, "2"], floor=[0, 1, 9, None, 3, 2])
    columns = ["p", *groups]
    as_csv(new[columns], "new.csv")
    text = (here / "new.csv").read_text().replace("9.0", "nine")
    (here / "new.csv").write_text(text)
    monkeypatch.setattr(delimited, "BATCH_BYTES", 100)
    assert main(["predict", "m.json", "new.csv", "--probability", "p", "--out", "o.csv"]) == 0
    floors = [0, 1, "nine", None, 3, 2]
    wanted = expected(new["p"], {**{name: new[name].tolist() for name in groups}, "floor": floors})
    np.testing.assert_array_equal(table("o.csv")["p_calibrated"], wanted)


@pytest.mark.parametrize("learner", ["trees", "linear"])
def test_learned_subpopulations(here, data, learner, capsys):
    path = as_csv(data)
    options = ["--label", "y", "--probability", "p", "--subpopulations", learner, "--features", "age,sex,member"]
    assert main(["fit", path, *options, "--alpha", "0.005", "--seed", "0", "--out", "m.json"]) == 0
    assert "others may exist" in capsys.readouterr().out
    columns = ["age", "sex", "member"]
    kind = lowcal.Trees(3, columns) if learner == "trees" else lowcal.Linear(columns)
    expected = lowcal.multicalibrate(
        data["y"], data["p"], data[columns], subpopulations=kind, alpha=0.005, random_state=0
    ).predictor
    assert main(["predict", "m.json", path, "--out", "o.csv"]) == 0
    got = table("o.csv")["p_calibrated"]
    np.testing.assert_array_equal(got, expected(data["p"], data[columns]))


def test_features_are_all_other_columns_by_default(here, data):
    path = as_csv(data.drop(columns="city"))
    options = ["--label", "y", "--probability", "p", "--subpopulations", "trees", "--depth", "2", "--quiet"]
    assert main(["fit", path, *options, "--out", "m.json"]) == 0
    assert read("m.json").metadata["columns"] == ["sex", "age", "member"]


def test_options_reach_the_fit(here, data, capsys):
    path = as_csv(data.assign(w=np.arange(N) % 3))
    options = ["--solver", "worst", "--geometry", "mirror", "--validation-fraction", "0.25", "--max-updates", "4"]
    options += ["--notion", "multiaccuracy", "--alpha", "0.001", "--seed", "7", "--weight", "w", "--bins", "3"]
    assert main(["fit", path, *OPTIONS, *options, "--min-mass", "100", "--out", "m.json"]) == 0
    expected = lowcal.multicalibrate(
        data["y"],
        data["p"],
        data[GROUPS],
        subpopulations=lowcal.Groups(GROUPS, n_bins=3, min_mass=100),
        notion="multiaccuracy",
        alpha=0.001,
        solver="worst",
        geometry="mirror",
        validation_fraction=0.25,
        max_updates=4,
        sample_weight=np.arange(N) % 3,
        random_state=7,
    )
    assert read("m.json").model.to_dict() == expected.predictor.to_dict()
    text = capsys.readouterr().out
    assert f"multiaccuracy at alpha=0.001: {expected.status.value}" in text
    assert "updates                   4" in text
    assert f"after   {expected.violation:.4g}" in text


def test_what_is_printed_of_a_fit_is_what_was_measured(here, data, capsys):
    assert main(["fit", as_csv(data), *OPTIONS, "--alpha", "0.005", "--seed", "0", "--out", "m.json"]) == 0
    text = capsys.readouterr().out
    before = lowcal.measure(data["y"], data["p"], data[GROUPS], subpopulations=lowcal.Groups(GROUPS)).largest
    after = fitted(data, alpha=0.005)
    assert f"largest violation before  {before:.4g}\n" in text
    assert f"after   {after.violation:.4g}, on the 3,000 rows of the fit\n" in text
    assert "lowcal predict m.json FILE" in text
    assert main(["fit", "t.csv", *OPTIONS, "--alpha", "0.005", "--solver", "worst", "--out", "m.json"]) == 0
    text = capsys.readouterr().out
    assert "updates                   1 " not in text
    assert f"largest violation before  {before:.4g}\n" in text
    assert main(["fit", as_csv(data), *OPTIONS, "--alpha", "0.9", "--out", "m.json"]) == 0
    text = capsys.readouterr().out
    assert f"before  {before:.4g}\n" in text
    assert f"after   {before:.4g}," in text


@pytest.mark.parametrize(
    ("options", "columns", "given"),
    [
        ([], ["sex", "age", "city", "member"], {}),
        (["--features", "sex,age"], ["sex", "age"], {}),
        (["--groups", "sex,age"], ["sex", "age"], {"groups": ["sex", "age"]}),
        (["--groups", "sex", "--features", "age"], ["sex", "age"], {"groups": ["sex"]}),
    ],
)
def test_a_fit_that_asks_for_nothing_is_chosen_by_cross_validation(here, data, capsys, options, columns, given):
    data = data.assign(p=np.where(data["sex"] == "F", 0.5 * data["p"], data["p"]))
    path = as_csv(data)
    assert main(["fit", path, "--label", "y", "--probability", "p", *options, "--seed", "0", "--out", "m.json"]) == 0
    fit = lowcal.recalibrate(data["y"], data["p"], data[columns], random_state=0, **given)
    assert fit.candidates.chosen.name.endswith(("groups", "trees"))
    shown = capsys.readouterr().out
    assert shown.startswith(f"Chosen by cross-validation (*): {fit.candidates.chosen.name}. Log loss on held-out rows")
    assert "lowcal predict m.json FILE" in shown
    assert main(["predict", "m.json", path, "--out", "o.csv", "--quiet"]) == 0
    np.testing.assert_allclose(table("o.csv")["p_calibrated"], fit.predictor(data["p"], data[columns]), atol=1e-12)
    assert read("m.json").metadata["status"] == "chosen"


def test_numbers_that_are_names(here, data):
    frame = data.assign(zip=8000 + np.arange(N) % 8)
    options = ["--label", "y", "--probability", "p", "--groups", "zip", "--notion", "degree-2", "--quiet"]
    options += ["--out", "m.json"]
    for path in (as_csv(frame), as_parquet(frame)):
        assert main(["fit", path, *options, "--categorical", "zip"]) == 0
        levels = read("m.json").model.encoder.levels
        assert levels[0].categories == tuple(str(8000 + j) for j in range(8))
        assert main(["predict", "m.json", path, "--out", "o.csv", "--quiet"]) == 0
        kind = lowcal.Groups(["zip"])
        expected = lowcal.multicalibrate(frame["y"], frame["p"], frame[["zip"]].astype(str), subpopulations=kind)
        got = table("o.csv")["p_calibrated"]
        np.testing.assert_array_equal(got, expected.predictor(frame["p"], frame[["zip"]].astype(str)))


def test_numbers_that_are_names_are_known_however_they_are_written(here, data, capsys):
    frame = data.assign(zip=8000 + np.arange(N) % 8)
    options = ["--label", "y", "--probability", "p", "--groups", "zip", "--categorical", "zip", "--quiet"]
    whole, broken = as_csv(frame, "whole.csv"), as_csv(frame.assign(zip=frame["zip"].astype(float)), "broken.csv")
    calibrated = []
    for fitted_on in (whole, broken):
        assert main(["fit", fitted_on, *options, "--alpha", "0.005", "--out", "m.json"]) == 0
        for path in (whole, broken, as_parquet(frame), as_parquet(frame.assign(zip=frame["zip"].astype(float)))):
            assert main(["predict", "m.json", path, "--out", "o.csv", "--quiet"]) == 0
            calibrated.append(table("o.csv")["p_calibrated"])
    assert (calibrated[0] != data["p"]).any()
    for other in calibrated[1:]:
        np.testing.assert_array_equal(calibrated[0], other)
    strange = as_csv(frame.assign(zip="AB" + frame["zip"].astype(str)), "strange.csv")
    capsys.readouterr()
    assert main(["predict", "m.json", strange, "--out", "o.csv"]) == 0
    said = capsys.readouterr().err
    assert said.startswith(
        "lowcal: the model knows none of the values of column 'zip': the file holds 'AB8000', the fit had '8000.0'"
    )
    for path, quiet in ((strange, ["--quiet"]), (whole, []), (as_csv(frame.assign(zip="")), [])):
        assert main(["predict", "m.json", path, "--out", "o.csv", *quiet]) == 0
        assert capsys.readouterr().err == ""


def test_lists_in_a_file_are_refused_by_name(here, data, capsys):
    path = as_parquet(data.assign(several=[[1, 2]] * N))
    for options in (["--label", "several", "--groups", "sex"], ["--label", "y", "--groups", "several"]):
        assert main(["fit", path, "--probability", "p", *options, "--alpha", "0.01", "--out", "m.json"]) == 65
        assert "Column 'several' " in capsys.readouterr().err


def test_column_names_with_commas_are_given_one_by_one(here, data):
    path = as_csv(data.rename(columns={"sex": "sex, as told", "p": "p,1"}))
    options = ["--label", "y", "--probability", "p,1", "--groups", "sex, as told", "--groups", "age,city", "--quiet"]
    assert main(["fit", path, *options, "--out", "m.json"]) == 0
    assert read("m.json").metadata["columns"] == ["sex, as told", "age", "city"]
    assert read("m.json").metadata["probability"] == ["p,1"]
    assert main(["predict", "m.json", path, "--out", "o.csv", "--quiet"]) == 0
    assert "p,1_calibrated" in pd.read_csv("o.csv").columns


SAMPLED = "only a random sample of 500 of the 3,000 rows was used (--sample)."


@pytest.mark.parametrize("way", [[], ["--alpha", "0.01"]])
def test_a_fit_of_a_sample_says_so(here, data, capsys, way):
    options = ["fit", as_csv(data), *OPTIONS, *way, "--sample", "500", "--seed", "5", "--out"]
    assert main([*options, "m.json"]) == 0
    out, error = capsys.readouterr()
    assert f"\nNote: {SAMPLED}\n" in out
    assert error == f"lowcal: {SAMPLED}\n"
    assert read("m.json").metadata["n_rows"] == 500
    assert read("m.json").metadata["sampled"] == {"rows": 500, "of": N}
    assert main([*options, "again.json", "--quiet"]) == 0
    assert capsys.readouterr() == ("", f"lowcal: {SAMPLED}\n")
    assert (here / "again.json").read_bytes() == (here / "m.json").read_bytes()


def test_an_audit_of_a_sample_says_so(here, data, capsys):
    options = ["audit", as_csv(data.assign(old=data["p"])), *OPTIONS, "--sample", "500", "--seed", "5"]
    outputs = ["--html", "a.html", "--json", "a.json", "--markdown", "a.md"]
    main([*options, "--against", "old", *outputs])
    out, error = capsys.readouterr()
    assert out.count(f"Note: {SAMPLED}\n") == 2  # both audits are of the sample
    assert error == f"lowcal: {SAMPLED}\n"
    assert all(
        "only a random sample of 500 of the 3,000 rows was used" in (here / name).read_text() for name in outputs[1::2]
    )
    report = json.loads((here / "a.json").read_text())
    assert (report["n_rows"], report["sampled"]) == (500, {"rows": 500, "of": N})
    main([*options, "--quiet"])
    assert capsys.readouterr() == ("", f"lowcal: {SAMPLED}\n")


@pytest.mark.parametrize("sample", [[], ["--sample", str(N)]])
def test_all_rows_are_used_unless_a_smaller_sample_is_asked_for(here, data, capsys, sample):
    assert main(["fit", as_csv(data), *OPTIONS, *sample, "--out", "m.json"]) == 0
    main(["audit", as_csv(data), *OPTIONS, *sample, "--json", "a.json"])
    out, error = capsys.readouterr()
    assert "sample" not in out + error
    assert "sampled" not in read("m.json").metadata
    assert "sampled" not in json.loads((here / "a.json").read_text())


COMMANDS = (["audit"], ["fit", "--out", "m.json"], ["fit", "--notion", "degree-2", "--out", "m.json"])


def refused(command, path, capsys, *options):
    """What a command says of a file that it refuses as bad data; nothing is written."""
    assert main([*command, path, "--label", "y", "--probability", "p", "--groups", "sex", *options]) == 65
    out, error = capsys.readouterr()
    assert out == ""
    assert not Path("m.json").exists()
    return error


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_a_file_without_rows_is_refused(here, data, write, command, capsys):
    path = write(data[:0])
    assert refused(command, path, capsys) == f"lowcal: {path} has a header but no rows; give at least one row.\n"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_a_missing_text_label_is_told_with_its_row(here, data, write, command, capsys):
    some = data.assign(y=np.where(data["y"] == 1, "yes", "no")).astype({"y": object})
    some.loc[16, "y"] = None
    told = refused(command, write(some), capsys, "--positive", "yes")
    assert told == "lowcal: Row 17, column 'y': the value is missing. Fill it in or drop the row.\n"


def test_dates_of_a_file_are_cut_as_the_library_cuts_them(here, data, capsys):
    frame = data.assign(day=pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(N) % 50, unit="D"))
    path = as_parquet(frame)
    options = ["--label", "y", "--probability", "p", "--groups", "day", "--alpha", "0.002", "--seed", "0"]
    assert main(["fit", path, *options, "--out", "m.json", "--quiet"]) == 0
    kind = lowcal.Groups(["day"])
    fit = lowcal.multicalibrate(
        frame["y"], frame["p"], frame[["day"]], subpopulations=kind, alpha=0.002, random_state=0
    )
    assert read("m.json").model.to_dict() == fit.predictor.to_dict()
    assert main(["predict", "m.json", path, "--out", "o.csv", "--quiet"]) == 0
    np.testing.assert_array_equal(table("o.csv")["p_calibrated"], fit.predictor(frame["p"], frame[["day"]]))
    for label, probability, weight in (("day", "p", "y"), ("y", "day", "p"), ("y", "p", "day")):
        given = ["--label", label, "--probability", probability, "--weight", weight, "--groups", "sex"]
        assert main(["fit", path, *given, "--out", "n.json"]) == 65
        assert "convert it" in capsys.readouterr().err


# --- several classes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flowers():
    made = make_miscalibrated(N, n_classes=3, random_state=0)
    names = np.array(["rose", "lily", "iris"])
    frame = pd.DataFrame(made.p, columns=[f"p_{name}" for name in names])
    return frame.assign(kind=names[made.y], number=made.y, g=made.X["g0"])


def test_classes_are_named_by_their_columns(here, flowers, capsys):
    path = as_csv(flowers)
    options = ["--label", "kind", "--probability", "p_rose,p_lily,p_iris", "--groups", "g", "--seed", "0"]
    assert main(["fit", path, *options, "--alpha", "0.005", "--out", "m.json"]) == 0
    p = flowers[["p_rose", "p_lily", "p_iris"]].to_numpy()
    kind = {"subpopulations": lowcal.Groups(["g"]), "random_state": 0}
    expected = lowcal.multicalibrate(
        flowers["kind"], p, flowers[["g"]], classes=["rose", "lily", "iris"], alpha=0.005, **kind
    )
    assert read("m.json").model.to_dict() == expected.predictor.to_dict()
    assert main(["predict", "m.json", path, "--out", "o.csv"]) == 0
    got = table("o.csv")
    names = ["p_rose_calibrated", "p_lily_calibrated", "p_iris_calibrated"]
    np.testing.assert_array_equal(got[names].to_numpy(), expected.predictor(p, flowers[["g"]]))
    capsys.readouterr()
    main(["audit", path, *options, "--json", "-"])
    report = lowcal.audit(flowers["kind"], p, flowers[["g"]], classes=["rose", "lily", "iris"], **kind)
    assert content(capsys.readouterr().out) == content(report.to_json())


def test_classes_can_be_given(here, flowers):
    path = as_csv(flowers)
    options = ["--label", "number", "--probability", "p_rose,p_lily", "--probability", "p_iris", "--groups", "g"]
    assert main(["fit", path, *options, "--classes", "0,1,2", "--quiet", "--out", "m.json"]) == 0
    assert read("m.json").model.layout.classes == (0, 1, 2)


def test_sums_and_missing_classes_are_told(here, flowers, capsys):
    options = ["--label", "kind", "--groups", "g", "--out", "m.json", "--probability"]
    assert main(["fit", as_csv(flowers), *options, "p_rose,p_lily"]) == 65
    assert "Row 1: the probabilities p_rose, p_lily sum to" in capsys.readouterr().err
    save(lowcal.multicalibrate([0, 1] * 50, [0.5] * 100).predictor, "m.json")
    assert main(["predict", "m.json", as_csv(flowers), "--probability", "p_rose,p_lily,p_iris", "--out", "o.csv"]) == 64
    assert "The model has 2 classes, but --probability names 3 probability columns" in capsys.readouterr().err


def test_two_columns_of_a_binary_problem_are_both_recalibrated(here, data):
    frame = data.assign(q=1 - data["p"], label=np.where(data["y"] == 1, "yes", "no"))
    path = as_csv(frame.rename(columns={"p": "p_yes", "q": "p_no"}))
    options = ["--label", "label", "--probability", "p_no,p_yes", "--groups", "sex", "--quiet", "--out", "m.json"]
    assert main(["fit", path, *options]) == 0
    assert read("m.json").model.layout.classes == ("no", "yes")
    assert main(["predict", "m.json", path, "--out", "o.csv", "--quiet"]) == 0
    got = pd.read_csv("o.csv")
    np.testing.assert_allclose(got["p_no_calibrated"] + got["p_yes_calibrated"], 1.0, atol=1e-15)
    assert (got["p_yes_calibrated"] != got["p_yes"]).any()


def test_probability_columns_are_matched_by_class_in_any_order(here, flowers, capsys):
    path = as_csv(flowers.rename(columns={"p_rose": "pa", "p_lily": "pb", "p_iris": "pc"}), "abc.csv")
    options = ["--label", "kind", "--probability", "p_rose,p_lily,p_iris", "--groups", "g", "--seed", "0"]
    assert main(["fit", as_csv(flowers), *options, "--alpha", "0.005", "--quiet", "--out", "m.json"]) == 0
    assert main(["predict", "m.json", "t.csv", "--quiet", "--out", "o.csv"]) == 0
    expected = table("o.csv")
    for given in (["t.csv", "--probability", "p_iris,p_rose,p_lily"], [path, "--classes", "iris,rose,lily"]):
        given += [] if given[0] == "t.csv" else ["--probability", "pc,pa,pb"]
        assert main(["predict", "m.json", *given, "--quiet", "--out", "o.csv"]) == 0
        names = ("p_iris", "p_rose", "p_lily") if given[0] == "t.csv" else ("pc", "pa", "pb")
        assert list(table("o.csv"))[-3:] == [f"{name}_calibrated" for name in names]
        for name, old in zip(names, ("p_iris", "p_rose", "p_lily"), strict=True):
            np.testing.assert_array_equal(table("o.csv")[f"{name}_calibrated"], expected[f"{old}_calibrated"])
    assert main(["predict", "m.json", path, "--probability", "pc,pa,pb", "--out", "o.csv"]) == 64
    assert "which of the classes rose, lily, iris is meant by --probability pc,pa,pb; name" in capsys.readouterr().err
    for wrong, message in (("iris,rose", "names 2 classes"), ("iris,rose,lilly", "Did you mean 'lily'")):
        assert main(["predict", "m.json", "t.csv", "--classes", wrong, "--out", "o.csv"]) == 64
        assert message in capsys.readouterr().err
    main(["audit", "t.csv", *options, "--against", "p_iris,p_lily,p_rose"])
    old, new = capsys.readouterr().out.split("With p_rose, p_lily, p_iris:\n")
    assert old == f"With p_iris, p_lily, p_rose:\n{new}\n"
    assert main(["audit", "t.csv", *options, "--against", "p_iris,p_lily"]) == 65
    assert "p_iris, p_lily sum to" in capsys.readouterr().err
    assert main(["audit", "t.csv", *options, "--against", "p_iris"]) == 64
    assert "The file has 3 classes, but --against names 1 probability column" in capsys.readouterr().err


def test_one_column_of_two_classes_speaks_of_its_own_class(here, data, capsys):
    frame = data.assign(p_no=1 - data["p"], label=np.where(data["y"] == 1, "yes", "no")).rename(columns={"p": "p_yes"})
    path = as_csv(frame.assign(p2=frame["p_yes"]))
    options = ["--label", "label", "--probability", "p_yes,p_no", "--groups", "sex", "--seed", "0"]
    assert main(["fit", path, *options, "--quiet", "--out", "m.json"]) == 0
    assert main(["predict", "m.json", path, "--quiet", "--out", "o.csv"]) == 0
    expected = table("o.csv")["p_yes_calibrated"]
    for given in (["p_yes"], ["p2", "--classes", "yes"], ["p_no,p_yes"]):
        assert main(["predict", "m.json", path, "--probability", *given, "--quiet", "--out", "o.csv"]) == 0
        got = table("o.csv")[("p2" if given[0] == "p2" else "p_yes") + "_calibrated"]
        np.testing.assert_allclose(got, expected, atol=1e-12)
    assert main(["predict", "m.json", path, "--probability", "p2", "--out", "o.csv"]) == 64
    assert "which of the classes yes, no is meant by --probability p2; name" in capsys.readouterr().err
    main(["audit", path, *options, "--against", "p_yes"])
    old, new = capsys.readouterr().out.split("With p_yes, p_no:\n")
    assert old.splitlines()[1:4] == new.splitlines()[:3]
    assert main(["audit", path, *options, "--against", "p2"]) == 64
    assert "give --against a column for each class" in capsys.readouterr().err


def test_classes_with_commas_are_given_one_by_one(here, flowers):
    frame = flowers.assign(kind=flowers["kind"].replace({"rose": "rose, red"}))
    options = ["--label", "kind", "--probability", "p_rose,p_lily,p_iris", "--groups", "g", "--quiet"]
    for given in (["rose, red", "lily", "iris"], ["rose, red", "lily,iris"]):
        classes = [word for one in given for word in ("--classes", one)]
        assert main(["fit", as_csv(frame), *options, *classes, "--out", "m.json"]) == 0
        assert read("m.json").model.layout.classes == ("rose, red", "lily", "iris")


# --- audits ------------------------------------------------------------------------------------------------------


def audited(data, **options):
    return lowcal.audit(
        data["y"], data["p"], data[GROUPS], subpopulations=lowcal.Groups(GROUPS), random_state=0, **options
    )


@pytest.mark.parametrize(
    ("alpha", "code", "verdict"), [(0.9, 0, "satisfied"), (0.001, 1, "violated"), (None, 2, "undecided")]
)
def test_the_exit_code_of_an_audit_is_its_verdict(here, data, capsys, alpha, code, verdict):
    first = audited(data)
    alpha = alpha or (first.certified_lower + first.certified_alpha) / 2
    assert main(["audit", as_csv(data), *OPTIONS, "--alpha", repr(alpha), "--seed", "0"]) == code
    report = audited(data, alpha=alpha)
    assert report.verdict == verdict
    assert capsys.readouterr().out == f"{report}\n"


@pytest.mark.parametrize(
    ("limit", "code", "verdict"), [(0.9, 0, "satisfied"), (0.001, 1, "violated"), (None, 2, "undecided")]
)
def test_an_audit_per_person(here, data, capsys, limit, code, verdict):
    found = audited(data).largest_per_person
    limit = limit or (found.lower + found.upper) / 2
    arguments = ["audit", as_csv(data), *OPTIONS, "--per-person", repr(limit), "--seed", "0", "--json", "a.json"]
    assert main(arguments) == code
    report = audited(data, per_person=limit)
    assert report.verdict == verdict
    assert capsys.readouterr().out == f"{report}\n"
    assert content((here / "a.json").read_text()) == content(report.to_json())
    main([*arguments, "--min-share", "0.3", "--quiet"])
    plain = json.loads((here / "a.json").read_text())
    assert (plain["alpha"], plain["per_person"], plain["min_share"]) == (None, limit, 0.3)
    assert plain["certified_per_person"] == audited(data, per_person=limit, min_share=0.3).certified_per_person


def test_an_audit_in_all_formats(here, data, capsys, monkeypatch):
    made = {}

    def to_html(self, path=None, *, before=None, explain=None):
        made["before"] = before
        return "<p>page</p>"

    monkeypatch.setattr(AuditReport, "to_html", to_html, raising=False)
    monkeypatch.setattr(AuditReport, "to_markdown", lambda self: "# report\n", raising=False)
    outputs = ["--html", "a.html", "--json", "a.json", "--markdown", "a.md"]
    assert main(["audit", as_csv(data), *OPTIONS, "--seed", "0", *outputs, "--confidence", "0.9"]) == 1
    assert (here / "a.html").read_text() == "<p>page</p>"
    assert (here / "a.md").read_text() == "# report\n"
    report = audited(data, confidence=0.9)
    assert content((here / "a.json").read_text()) == content(report.to_json())
    assert capsys.readouterr().out == f"{report}\n"
    assert made["before"] is None
    assert main(["audit", as_csv(data), *OPTIONS, "--seed", "0", "--markdown", "-"]) == 1
    assert capsys.readouterr().out == "# report\n"


def test_an_audit_against_an_earlier_probability(here, data, capsys, monkeypatch):
    made = {}
    monkeypatch.setattr(
        AuditReport, "to_html", lambda self, before, **_: str(made.update(before=before)), raising=False
    )
    calibrated = fitted(data, alpha=0.001).predictor(data["p"], data[GROUPS])
    path = as_csv(data.assign(old=data["p"], p=calibrated))
    outputs = ["--html", "a.html", "--json", "a.json", "--markdown", "a.md"]
    code = main(["audit", path, *OPTIONS, "--against", "old", "--seed", "0", *outputs])
    text = capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lowcal.AuditWarning)
        old, new = audited(data), audited(data.assign(p=calibrated))
    assert text == f"With old:\n{old}\n\nWith p:\n{new}\n"
    assert made["before"].violation == old.violation
    found = json.loads((here / "a.json").read_text())
    before = found.pop("before")
    assert content(json.dumps(found)) == content(new.to_json())
    assert content(json.dumps(before)) == content(old.to_json())
    assert [one["origin"]["model"] for one in (found, before)] == ["p", "old"]
    assert (here / "a.md").read_text() == f"{new.to_markdown()}\nBefore, with old:\n\n{old.to_markdown()}"
    assert code == audit_command._CODES[new.verdict]


def test_text_labels_are_named_in_an_audit(here, data, capsys):
    path = as_csv(data.assign(label=np.where(data["y"] == 1, "> 50K", "<= 50K")))
    options = ["--label", "label", "--positive", "> 50K", "--probability", "p", "--groups", "sex", "--json", "-"]
    main(["audit", path, *options])
    report = json.loads(capsys.readouterr().out)
    assert report["layout"]["classes"] == ["<= 50K", "> 50K"]
    assert {one["label"] for one in report["findings"]} == {"> 50K"}


@pytest.mark.parametrize(
    ("labels", "options"), [((1, 2), []), ((-1, 1), []), (("no", "yes"), ["--positive", "yes"]), ((False, True), [])]
)
def test_two_labels_are_those_of_the_library(here, data, capsys, labels, options):
    frame = data.assign(y=np.array(labels)[data["y"]])
    main(["audit", as_csv(frame), *OPTIONS, *options, "--json", "-", "--seed", "0"])
    assert content(capsys.readouterr().out) == content(audited(frame).to_json())
    assert main(["fit", as_csv(frame), *OPTIONS, *options, "--alpha", "0.01", "--seed", "0", "--out", "m.json"]) == 0
    assert read("m.json").model.to_dict() == fitted(frame, alpha=0.01).predictor.to_dict()
    assert read("m.json").metadata["classes"] == list(labels)
    assert main(["predict", "m.json", as_csv(frame), "--out", "o.csv"]) == 0
    expected = fitted(data, alpha=0.01).predictor(data["p"], data[GROUPS])
    np.testing.assert_array_equal(table("o.csv")["p_calibrated"], expected)


def test_outcomes_in_the_unit_interval(here, data, capsys):
    share = (data["y"] * 0.8 + 0.1).round(2)
    main(["audit", as_csv(data.assign(y=share)), *OPTIONS, "--json", "-", "--seed", "0"])
    report = json.loads(capsys.readouterr().out)
    expected = audited(data.assign(y=share))
    assert report["violation"] == expected.violation
    assert report["layout"]["classes"] is None
    assert main(["fit", as_csv(data.assign(y=share)), *OPTIONS, "--quiet", "--out", "m.json"]) == 0
    assert read("m.json").model.layout.classes is None


def test_rows_used_before_are_noted_in_the_report_not_warned_of(here, data, capsys):
    calibrated = fitted(data, alpha=0.0005).predictor(data["p"], data[GROUPS])
    main(["audit", as_csv(data.assign(p=calibrated)), *OPTIONS, "--seed", "0"])
    out, err = capsys.readouterr()
    assert "the rows the model was fitted on" in " ".join(out.split())
    assert err == ""


# --- standard streams ----------------------------------------------------------------------------------------------


class Stream:
    def __init__(self, content=b""):
        self.buffer = io.BytesIO(content)


def test_standard_streams(here, data, capsysbinary, monkeypatch):
    path = as_csv(data)
    content = (here / path).read_bytes()
    monkeypatch.setattr(sys, "stdin", Stream(content))
    assert main(["fit", "-", *OPTIONS, "--notion", "degree-2", "--seed", "0", "--out", "-"]) == 0
    out, err = capsysbinary.readouterr()
    assert err.startswith(f"degree-2 as far as the rows allow: {fitted(data).status.value}\n".encode())
    (here / "m.json").write_bytes(out)
    assert read("m.json").model.to_dict() == fitted(data).predictor.to_dict()
    expected = fitted(data).predictor(data["p"], data[GROUPS])
    for form in ("csv", "jsonl", "parquet"):
        monkeypatch.setattr(sys, "stdin", Stream(content))
        assert main(["predict", "m.json", "-", "--out", "-", "--format", form]) == 0
        out, err = capsysbinary.readouterr()
        assert err == b""
        if form == "csv":
            got = [float(row["p_calibrated"]) for row in csv.DictReader(io.StringIO(out.decode()))]
        elif form == "jsonl":
            got = [json.loads(line)["p_calibrated"] for line in out.splitlines()]
        else:
            got = pd.read_parquet(io.BytesIO(out))["p_calibrated"]
        np.testing.assert_array_equal(got, expected)
    monkeypatch.setattr(sys, "stdin", Stream(parquet_bytes(data)))
    assert main(["predict", "m.json", "-", "--out", "o.csv", "--quiet"]) == 0
    np.testing.assert_array_equal(table("o.csv")["p_calibrated"], expected)


def parquet_bytes(frame):
    stream = io.BytesIO()
    frame.to_parquet(stream)
    return stream.getvalue()


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.fixture
def model(here, data):
    save(fitted(data).predictor, "m.json", metadata={"probability": ["p"]})
    return here


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": "abc"}, "Row 4, column 'p': 'abc' is not a number"),
        ({"p": ""}, "Row 4, column 'p': the value is missing"),
        ({"p": "1.5"}, "Row 4, column 'p': 1.5 is not a probability"),
        ({"p": "-0.1"}, "Row 4, column 'p': -0.1 is not a probability"),
        ({"p": "inf"}, "Row 4, column 'p': inf is not a probability"),
        ({"y": ""}, "Row 4, column 'y': the value is missing"),
        ({"y": "inf"}, "Row 4, column 'y': the label is infinite"),
        ({"w": "-1"}, "Row 4, column 'w': the weight -1 is negative or infinite"),
        ({"w": "inf"}, "Row 4, column 'w': the weight inf is negative or infinite"),
        ({"w": ""}, "Row 4, column 'w': the value is missing"),
    ],
)
def test_bad_values_are_told_with_row_and_column(here, data, change, message, capsys, monkeypatch):
    monkeypatch.setattr(delimited, "BATCH_BYTES", 150)
    frame = data.iloc[:10].assign(w="1").astype(object)
    for name, value in change.items():
        frame.loc[frame.index[3], name] = value
    assert main(["fit", as_csv(frame), *OPTIONS, "--weight", "w", "--out", "m.json"]) == 65
    assert message in capsys.readouterr().err
    assert not (here / "m.json").exists()
    if "p" in change:
        save(fitted(data).predictor, "m.json")
        assert main(["predict", "m.json", as_csv(frame), "--probability", "p", "--out", "o.csv"]) == 65
        assert message in capsys.readouterr().err
        assert not (here / "o.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--label", "why", "--probability", "p", "--groups", "sex"], 65, "no column 'why'"),
        (["--label", "y", "--probability", "pp", "--groups", "sex"], 65, "no column 'pp'; it has .* Did you mean 'p'"),
        (["--label", "y", "--probability", "p", "--groups", "sexx"], 65, "no column 'sexx'.*Did you mean 'sex'"),
        (["--label", "y", "--probability", "p", "--groups", "sex", "--weight", "w"], 65, "no column 'w'"),
        (["--label", "y", "--probability", "p", "--groups", "sex", "--categorical", "zip"], 65, "no column 'zip'"),
        (
            ["--label", "y", "--probability", "p", "--alpha", "0.1"],
            64,
            "Name the columns that define the groups: --groups sex,age,city,member",
        ),
        (["--label", "y", "--probability", "p", "--groups", "sex,p"], 64, "Column 'p' is named by two options"),
        (["--label", "p", "--probability", "p", "--groups", "sex"], 64, "Column 'p' is named by two options"),
        (["--label", "y", "--probability", "p", "--features", "sex", "--depth", "1"], 64, "--features goes with"),
        (
            ["--label", "y", "--probability", "p", "--groups", "a", "--subpopulations", "trees"],
            64,
            "--groups goes with",
        ),
        (
            ["--label", "y", "--probability", "p", "--groups", "sex", "--classes", "a,b"],
            65,
            "which --classes does not name",
        ),
    ],
)
def test_columns_that_do_not_fit(here, data, arguments, code, message, capsys):
    assert main(["fit", as_csv(data), *arguments, "--out", "m.json"]) == code
    error = capsys.readouterr().err
    assert error.startswith("lowcal: ")
    assert __import__("re").search(message, error)
    assert error.count("\n") == 1
    assert not (here / "m.json").exists()


def test_outputs_are_checked_before_any_work(here, data, capsys):
    for arguments in (
        ["fit", "no.csv", *OPTIONS, "--out", "no/m.json"],
        ["predict", "no.json", "no.csv", "--out", "no/o.csv"],
        ["audit", "no.csv", *OPTIONS, "--html", "no/a.html"],
        ["export", "no.json", "no/m.onnx"],
    ):
        assert main(arguments) == 65
        assert "there is no folder" in capsys.readouterr().err
    assert main(["audit", "no.csv", *OPTIONS, "--html", "a", "--json", "a"]) == 64
    assert "Two outputs have the same name" in capsys.readouterr().err
    assert main(["predict", "no.json", "no.csv", "--out", "o.xyz"]) == 65
    assert "has no known extension" in capsys.readouterr().err


def test_outputs_that_would_replace_an_input_are_refused(model, data, capsys):
    path = as_csv(data)
    (model / "link.csv").symlink_to(path)
    (model / "hard.json").hardlink_to("m.json")
    before = {one.name: one.read_bytes() for one in model.iterdir()}
    for arguments in (
        ["fit", path, *OPTIONS, "--out", path],
        ["fit", path, *OPTIONS, "--out", "link.csv"],
        ["audit", path, *OPTIONS, "--json", f"../{model.name}/{path}"],
        ["predict", "m.json", path, "--out", path],
        ["predict", "m.json", path, "--out", "hard.json"],
    ):
        assert main(arguments) == 64
        assert f"The output {arguments[-1]} would replace the input" in capsys.readouterr().err
    assert main(["audit", path, *OPTIONS, "--html", "a", "--json", "./a"]) == 64
    assert "Two outputs have the same name" in capsys.readouterr().err
    assert {one.name: one.read_bytes() for one in model.iterdir()} == before
    assert main(["predict", "m.json", path, "--out", "/dev/null", "--format", "csv"]) == 0


def test_models_that_can_not_be_used(model, data, capsys):
    path = as_csv(data)
    (model / "bad.json").write_text("{}")
    for arguments, code, message in [
        (["predict", "no.json", path], 65, "There is no file no.json"),
        (["predict", "bad.json", path], 65, "bad.json can't be loaded"),
        (["predict", "m.json", as_csv(data.drop(columns="sex"), "s.csv")], 65, "s.csv has no column 'sex'"),
        (["predict", "m.json", as_csv(data.rename(columns={"p": "q"}), "q.csv")], 65, "q.csv has no column 'p'"),
        (
            ["predict", "m.json", as_csv(data.assign(p_calibrated=1), "c.csv")],
            65,
            "already has a column 'p_calibrated'",
        ),
        (
            ["predict", "m.json", as_csv(data.assign(age="old"), "a.csv")],
            65,
            "Row 1, column 'age': 'old' is not a number",
        ),
    ]:
        assert main([*arguments, "--out", "o.csv"]) == code
        assert message in capsys.readouterr().err
        assert not (model / "o.csv").exists()
    save(fitted(data).predictor, "bare.json")
    assert main(["predict", "bare.json", path, "--out", "o.csv"]) == 64
    assert "give --probability" in capsys.readouterr().err
    assert main(["predict", "m.json", as_csv(data.assign(p_calibrated=1)), "--out", "o.csv", "--suffix", "_2"]) == 0
    assert "p_2" in pd.read_csv("o.csv").columns


def test_a_saved_fit_recalibrates_and_an_estimator_does_not(model, data, capsys):
    save(fitted(data), "fit.json")
    path = as_csv(data)
    assert main(["predict", "fit.json", path, "--probability", "p", "--out", "o.csv", "--quiet"]) == 0
    got = table("o.csv")["p_calibrated"]
    np.testing.assert_array_equal(got, fitted(data).predictor(data["p"], data[GROUPS]))
    estimator = lowcal.MulticalibratedClassifier(None, random_state=0).fit(data[["p"]].to_numpy(), data["y"])
    save(estimator, "estimator.json")
    assert main(["predict", "estimator.json", path, "--probability", "p", "--out", "o2.csv"]) == 65
    assert "holds a MulticalibratedClassifier, which can't recalibrate the rows of a file" in capsys.readouterr().err


def test_a_file_without_rows_is_recalibrated_into_one_without_rows(model, capsys):
    (model / "h.csv").write_text("p,sex,age,city,member\n")
    assert main(["predict", "m.json", "h.csv", "--out", "o.csv"]) == 0
    assert (model / "o.csv").read_text() == "p,sex,age,city,member,p_calibrated\n"
    assert "has a header but no rows" in capsys.readouterr().err


def test_a_full_disk_keeps_the_old_file(model, data, capsys, monkeypatch):
    import errno

    (model / "o.csv").write_text("old")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lowcal.data.files.join_columns", full)
    assert main(["predict", "m.json", as_csv(data), "--out", "o.csv"]) == 65
    said = capsys.readouterr().err
    assert said == "lowcal: o.csv can't be written: No space left on device. The old file is as it was.\n"
    assert (model / "o.csv").read_text() == "old"
    before = (model / "m.json").read_bytes()
    monkeypatch.setattr("lowcal.cli.models.save", full)
    assert main(["fit", "t.csv", *OPTIONS, "--out", "m.json"]) == 65
    assert "the disk is full" in capsys.readouterr().err
    assert (model / "m.json").read_bytes() == before
    assert sorted(one.name for one in model.iterdir()) == ["m.json", "o.csv", "t.csv"]


# --- export ---------------------------------------------------------------------------------------------------------


def test_export_writes_the_graph_of_the_model(model, data, capsys):
    assert main(["export", "m.json", "m.onnx"]) == 0
    made = lowcal.to_onnx(fitted(data).predictor)
    assert (model / "m.onnx").read_bytes() == made.SerializeToString(deterministic=True)
    assert capsys.readouterr().out == "Wrote m.onnx.\n"
    for name in ("m.pb", "-"):
        assert main(["export", "m.json", name]) == 64
        assert "a name that ends in .onnx" in capsys.readouterr().err


# --- the minimal install --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "-"])
def test_files_without_pyarrow_say_what_to_install(here, data, monkeypatch, capsys, name):
    as_csv(data)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for arguments in (["fit", name, *OPTIONS, "--out", "m.json"], ["audit", name, *OPTIONS]):
        assert main(arguments) == 65
        shown = "standard input" if name == "-" else name
        assert capsys.readouterr().err == f"lowcal: Reading {shown} needs pyarrow: pip install 'lowcal[cli]'.\n"


# --- whole numbers beyond 2^53 -----------------------------------------------------------------------------------


def accounts_table(n=400):
    """Two neighbouring accounts that are one float, which differ in their bias; one row has no account."""
    account = [2**53 + k % 2 for k in range(n)]
    y = [k % 2 if k % 10 < 8 else 1 - k % 2 for k in range(n)]
    return pl.DataFrame({"y": y, "p": [0.5] * n, "account": [*account[:-1], None]})


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_neighbouring_accounts_of_a_file_stay_two_groups(here, form):
    rows = accounts_table()
    path = "rows.parquet" if form == "parquet" else "rows.csv"
    if form == "parquet":
        rows.write_parquet(path)
    else:
        rows.write_csv(path)
    options = [path, "--label", "y", "--probability", "p", "--groups", "account", "--quiet"]
    main(["audit", *options, "--json", "report.json"])
    assert {f"account={2**53}", f"account={2**53 + 1}"} <= {
        one["subpopulation"] for one in json.loads(Path("report.json").read_text())["findings"]
    }
    assert main(["fit", *options, "--out", "model.json"]) == 0
    assert main(["predict", "model.json", path, "--out", "out.csv", "--quiet"]) == 0
    calibrated = dict(zip(table("out.csv")["account"], table("out.csv")["p_calibrated"], strict=True))
    assert calibrated[str(2**53)] < 0.4 < 0.6 < calibrated[str(2**53 + 1)]


def test_labels_beyond_floats_keep_their_digits(here):
    labels = [str(2**53 + k % 2) for k in range(100)]
    Path("rows.csv").write_text("y,p,g\n" + "".join(f"{label},0.5,{'ab'[k % 2]}\n" for k, label in enumerate(labels)))
    options = ["--label", "y", "--probability", "p", "--groups", "g", "--json", "r.json", "--quiet"]
    main(["audit", "rows.csv", *options, "--positive", str(2**53 + 1)])
    violation = {one["subpopulation"]: one["violation"] for one in json.loads(Path("r.json").read_text())["findings"]}
    assert violation["g=b"] > 0 > violation["g=a"]


def test_more_accounts_than_groups_are_numbers(here):
    """So many different whole numbers are cut into bins, as if they were floats."""
    lines = [f"{k % 2},0.5,{2**53 + 1 + 1000 * k}" for k in range(200)]
    Path("rows.csv").write_text("\n".join(["y,p,account", *lines]) + "\n")
    options = ["--label", "y", "--probability", "p", "--groups", "account", "--json", "r.json", "--quiet"]
    main(["audit", "rows.csv", *options])
    names = {one["subpopulation"] for one in json.loads(Path("r.json").read_text())["findings"]}
    assert len(names) == 1 + 5
    assert any(name.startswith("account<=") for name in names)


def test_accounts_that_turn_out_to_be_text(here, monkeypatch):
    monkeypatch.setattr(delimited, "BATCH_BYTES", 1000)
    accounts = [str(2**53 + 1)] * 100 + ["closed"] * 100
    lines = [f"{k % 2},0.5,{account}" for k, account in enumerate(accounts)]
    Path("rows.csv").write_text("\n".join(["y,p,account", *lines]) + "\n")
    options = ["--label", "y", "--probability", "p", "--groups", "account", "--json", "r.json", "--quiet"]
    main(["audit", "rows.csv", *options])
    names = {one["subpopulation"] for one in json.loads(Path("r.json").read_text())["findings"]}
    assert names == {"everyone", f"account={2**53 + 1}", "account=closed"}


# --- rows that stand for several ------------------------------------------------------------------------------


def test_cells_are_audited_and_fitted_by_their_counts(data, here):
    few = lowcal.cells(data, ["sex", "city"], 64)
    file, options = as_csv(few), ["--label", "y", "--probability", "p", "--frequency-weight", "frequency"]
    options += ["--groups", "sex,city", "--seed", "0"]
    main(["audit", file, *options, "--json", "r.json", "--quiet"])
    told = json.loads(Path("r.json").read_text(encoding="utf-8"))
    asked = {"subpopulations": lowcal.Groups(["sex", "city"]), "random_state": 0}
    own = lowcal.audit("y", "p", few, frequency_weight="frequency", **asked)
    assert (told["n_rows"], told["violation"]) == (N, pytest.approx(own.violation, abs=1e-12))
    assert told["certified_alpha"] == pytest.approx(own.certified_alpha, abs=1e-12)
    assert main(["fit", file, *options, "--alpha", "0.01", "--out", "m.json", "--quiet"]) == 0
    fit = lowcal.multicalibrate("y", "p", few, alpha=0.01, frequency_weight="frequency", **asked)
    assert read("m.json").metadata["violation"] == pytest.approx(fit.violation, abs=1e-12)


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--alpha", "0.1", "--sample", "9"], "--sample draws rows"), ([], "Cross-validation needs single rows")],
)
def test_what_counts_cannot_do_is_refused(data, here, capsys, more, message):
    file = as_csv(lowcal.cells(data, ["sex"], 8))
    given = ["--label", "y", "--probability", "p", "--frequency-weight", "frequency", "--groups", "sex", *more]
    assert main(["fit", file, *given, "--out", "m.json"]) != 0
    assert message in capsys.readouterr().err


# --- windows of time -------------------------------------------------------------------------------------------


def test_an_audit_by_windows(here, data, capsys):
    month = np.array(["2024-01", "2024-02", "2024-03"])[np.arange(N) // 1000]
    framed = data.assign(month=month)
    outputs = ["--html", "a.html", "--json", "a.json", "--markdown", "a.md"]
    code = main(["audit", as_csv(framed), *OPTIONS, "--by", "month", "--seed", "0", *outputs])
    text = capsys.readouterr().out
    report = lowcal.audit("y", "p", framed, by="month", subpopulations=lowcal.Groups(GROUPS), random_state=0)
    assert text == f"{report}\n"
    assert code == (1 if report.is_failed else 2 if report.verdict == "undecided" else 0)
    assert Path("a.md").read_text(encoding="utf-8") == report.to_markdown()
    named = replace(report, origin=replace(report.origin, file="t.csv"))
    assert Path("a.html").read_text(encoding="utf-8") == named.to_html()
    found = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert [one["window"] for one in found["windows"]] == ["2024-01", "2024-02", "2024-03"]


def test_a_drift_alarm_counts_as_violated_and_names_its_class(here, capsys):
    rng = np.random.default_rng(0)
    n = 4000
    p, month = rng.uniform(0.2, 0.3, (n, 2)), np.arange(n) // 500
    shares = np.column_stack([p, 1 - p.sum(axis=1)])
    y = np.array(["a", "b", "c"])[(rng.random(n)[:, None] > shares.cumsum(axis=1)).sum(axis=1)]
    y[(month >= 5) & (y == "c") & (rng.random(n) < 0.5)] = "b"
    columns = dict(zip(["p_a", "p_b", "p_c"], shares.T, strict=True))
    path = as_csv(pd.DataFrame({"y": y, "month": month, "g": "one", **columns}))
    options = ["--label", "y", "--probability", "p_a,p_b,p_c", "--groups", "g", "--by", "month", "--alpha", "1"]
    assert main(["audit", path, *options, "--seed", "0", "--json", "a.json"]) == 1
    found = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert found["verdict"] == "satisfied"
    assert {one["label"] for one in found["alarms"]} == {"b", "c"}
    assert "everyone, b: since 5" in capsys.readouterr().out


def test_a_column_of_windows_has_no_other_use(here, data, capsys):
    path = as_csv(data)
    assert main(["audit", path, *OPTIONS, "--by", "city"]) == 64
    assert "Column 'city' is named by two options" in capsys.readouterr().err
    assert main(["audit", path, *OPTIONS, "--by", "p"]) == 64
    assert main(["audit", path, *OPTIONS, "--by", "month"]) == 65
    assert "month" in capsys.readouterr().err
