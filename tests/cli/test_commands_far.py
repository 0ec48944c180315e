"""The command on folders and globs, and on files that do not fit into memory: the same models, in the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import lowcal
from far_rows import three_classes
from lowcal.cli.main import main
from lowcal.persistence import read
from lowcal.rows import disk
from lowcal.solve import homes

N = 3000
GROUPS = ["sex", "age", "city", "member"]
ASKED = ["--label", "y", "--probability", "p", "--groups", ",".join(GROUPS), "--notion", "degree-2", "--seed", "0"]


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    made, rng = lowcal.datasets.make_miscalibrated(N, random_state=0), np.random.default_rng(1)
    age = rng.integers(18, 80, N).astype(float)
    age[::50] = np.nan
    return pd.DataFrame(
        {
            "y": made.y,
            "p": made.p,
            "sex": np.array(["F", "M", None], dtype=object)[rng.integers(0, 3, N)],
            "age": age,
            "city": np.array(["Zürich", 'the "old", town', "01", "02"], dtype=object)[rng.integers(0, 4, N)],
            "member": rng.random(N) < 0.4,
            "w": rng.random(N).round(3),
        }
    )


@pytest.fixture
def is_small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine without memory; the list tells how many spill files were opened."""
    made: list[int] = []
    real = disk.Spill.__init__

    def opened(self: Any, *given: Any) -> None:
        made.append(1)
        real(self, *given)

    monkeypatch.setattr(homes, "_quarter", lambda: 1)
    monkeypatch.setattr(disk.Spill, "__init__", opened)
    return made


def put(frame: pd.DataFrame, form: str) -> str:
    """Write a table; return what the command is called with."""
    if form == "csv":
        frame.to_csv("t.csv", index=False)
        return "t.csv"
    if form == "csv.gz":
        frame.to_csv("t.csv.gz", index=False)
        return "t.csv.gz"
    if form == "jsonl":
        frame.to_json("t.jsonl", orient="records", lines=True, double_precision=15)
        return "t.jsonl"
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if form == "parquet":
        pq.write_table(table, "t.parquet", row_group_size=700)
        return "t.parquet"
    if form in ("arrow", "arrows"):
        with (pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream)(f"t.{form}", table.schema) as writer:
            writer.write_table(table, max_chunksize=700)
        return f"t.{form}"
    Path("rows/more").mkdir(parents=True)
    pq.write_table(table.slice(0, 1000), "rows/a.parquet")
    feather.write_feather(table.slice(1000, 1100), "rows/b.feather")
    pq.write_table(table.slice(2100).select(table.column_names[::-1]), "rows/more/c.parquet")
    return {"folder": "rows", "glob": "rows/**/*.*"}[form]


FORMS = ["csv", "csv.gz", "jsonl", "parquet", "arrow", "arrows", "folder", "glob"]


def model(path: str = "model.json") -> dict[str, Any]:
    saved = read(path)
    return {"predictor": saved.model.to_dict(), **{k: v for k, v in saved.metadata.items() if k != "columns"}}


def fit(*options: str, out: str = "model.json") -> int:
    return main(["fit", *options, "--out", out, "--quiet"])


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_does_not_fit_gives_the_same_model(form: str, data: Any, here: Path, request: Any) -> None:
    path = put(data, form)
    assert fit(path, *ASKED) == 0
    near = model()
    made = request.getfixturevalue("is_small")
    assert fit(path, *ASKED, out="far.json") == 0
    assert made
    assert model("far.json") == near
    assert near["n_rows"] == N
    assert len(near["predictor"]["updates"]) > 0


MORE = {
    "weights": ["--weight", "w"],
    "depth": ["--depth", "2", "--min-mass", "100"],
    "alpha": ["--alpha", "0.01", "--solver", "worst"],
    "held out": ["--validation-fraction", "0.2"],
    "no guard": ["--no-guard", "--per-person", "0.05"],
    "categorical": ["--categorical", "age"],
}


TREES = [
    "--label",
    "y",
    "--probability",
    "p",
    "--subpopulations",
    "trees",
    "--features",
    "sex,age,city",
    "--depth",
    "2",
]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_trees_that_do_not_fit_are_the_same(form: str, data: Any, here: Path, request: Any, capsys: Any) -> None:
    path = put(data, form)
    assert fit(path, *TREES) == 0
    near = main(["audit", path, *TREES, "--seed", "0", "--quiet", "--json", "near.json"])
    made = request.getfixturevalue("is_small")
    assert fit(path, *TREES, out="far.json") == 0
    assert made
    assert model("far.json") == model()
    assert len(model()["predictor"]["updates"]) > 0
    assert main(["audit", path, *TREES, "--seed", "0", "--quiet", "--json", "far-report.json"]) == near
    assert near < 64
    assert json.loads(Path("near.json").read_text()) == json.loads(Path("far-report.json").read_text())


@pytest.mark.parametrize("name", MORE)
def test_options_mean_the_same(name: str, data: Any, here: Path, request: Any) -> None:
    path = put(data, "parquet")
    assert fit(path, *ASKED, *MORE[name]) == 0
    request.getfixturevalue("is_small")
    assert fit(path, *ASKED, *MORE[name], out="far.json") == 0
    assert model("far.json") == model()


LABELS = {
    "positive": (lambda y: np.where(y == 1, "yes", "no"), ["--positive", "yes"]),
    "against others": (
        lambda y: np.where(y == 1, "yes", np.where(np.arange(N) % 2, "no", "perhaps")),
        ["--positive", "yes"],
    ),
    "classes": (lambda y: np.where(y == 1, "bad", "good"), ["--classes", "good,bad"]),
    "truth": (lambda y: y == 1, []),
    "signs": (lambda y: 2 * y - 1, []),
    "fractions": (lambda y: np.where(y == 1, 0.9, 0.2) + np.arange(N) / 1e5, []),
}


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("name", LABELS)
def test_labels_mean_the_same(name: str, form: str, data: Any, here: Path, request: Any) -> None:
    make, options = LABELS[name]
    path = put(data.assign(y=make(data["y"].to_numpy())), form)
    assert fit(path, *ASKED, *options) == 0
    request.getfixturevalue("is_small")
    assert fit(path, *ASKED, *options, out="far.json") == 0
    assert model("far.json") == model()


@pytest.mark.parametrize("names", [["p_a", "p_b", "p_c"], ["0", "1", "2"]])
def test_several_classes(names: list[str], here: Path, request: Any) -> None:
    frame = pd.DataFrame(three_classes())
    frame = frame.rename(columns=dict(zip(["p_a", "p_b", "p_c"], names, strict=True)))
    path = put(frame, "parquet")
    options = ["--label", "y", "--probability", ",".join(names), "--groups", "city", "--notion", "degree-2"]
    options += ["--classes", "a,b,c"]
    assert fit(path, *options) == 0
    request.getfixturevalue("is_small")
    assert fit(path, *options, out="far.json") == 0
    assert model("far.json") == model()
    assert model()["classes"] == ["a", "b", "c"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_exact_whole_numbers_and_columns_without_a_value(form: str, data: Any, here: Path, request: Any) -> None:
    path = put(data.assign(age=2**60 + np.arange(N) % 5, member=None), form)
    assert fit(path, *ASKED) == 0
    request.getfixturevalue("is_small")
    assert fit(path, *ASKED, out="far.json") == 0
    assert model("far.json") == model()


def test_many_rows_are_compared_piece_by_piece(data: Any, here: Path, request: Any, monkeypatch: Any) -> None:
    """Labels are found among all rows."""
    late = np.where(np.arange(N) == N - 1, "rare", np.where(data["y"] == 1, "yes", "no"))
    path = put(data.assign(y=late), "csv")
    request.getfixturevalue("is_small")
    monkeypatch.setattr("lowcal.data.text.BATCH_BYTES", 1 << 14)
    assert fit(path, *ASKED, "--positive", "yes") == 0
    assert model()["classes"] == ["not yes", "yes"]


def test_standard_input(data: Any, here: Path, is_small: list[int], monkeypatch: Any) -> None:
    with open(put(data, "csv")) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert fit("-", *ASKED) == 0
    assert is_small


def said(capsys: Any) -> str:
    """Return the one sentence on standard error."""
    err: str = capsys.readouterr().err
    assert err.count("\n") == 1
    return err.strip()


@pytest.mark.usefixtures("is_small")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--groups", "sex"],
            "t.csv does not fit into memory, which cross-validation needs; ask for one fit by",
        ),
        (
            ["--subpopulations", "linear"],
            "t.csv does not fit into memory, which --subpopulations linear needs; use groups or trees, or use",
        ),
        (["--subpopulations", "linear", "--alpha", "0.01"], "which --subpopulations linear needs"),
    ],
)
def test_what_needs_the_rows_in_memory_says_so(options: Any, words: str, data: Any, here: Path, capsys: Any) -> None:
    assert fit(put(data, "csv"), "--label", "y", "--probability", "p", *options) == 65
    sentence = said(capsys)
    assert words in sentence
    assert "--sample" in sentence
    assert not Path("model.json").exists()


@pytest.mark.usefixtures("is_small")
def test_a_sample_fits(data: Any, here: Path) -> None:
    assert fit(put(data, "csv"), "--label", "y", "--probability", "p", "--sample", "1000", "--groups", "sex") == 0
    assert model()["sampled"] == {"rows": 1000, "of": N}


@pytest.mark.usefixtures("is_small")
@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("p", 1.5, "column 'p': 1.5 is not a probability"),
        ("p", None, "p"),
        ("w", -1.0, "the weight -1 is negative or infinite"),
        ("y", None, "y"),
    ],
)
def test_bad_values_are_named_with_their_row(
    column: str, value: Any, words: str, data: Any, here: Path, capsys: Any
) -> None:
    bad = data.copy()
    bad[column] = bad[column].astype(object)
    bad.loc[1999, column] = value
    assert fit(put(bad, "csv"), *ASKED, "--weight", "w") == 65
    sentence = said(capsys)
    assert words in sentence
    assert "2000" in sentence.replace(",", "")


@pytest.mark.usefixtures("is_small")
def test_a_full_disk_is_one_sentence(data: Any, here: Path, capsys: Any, monkeypatch: Any) -> None:
    def full(**how: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", full)
    assert fit(put(data, "parquet"), *ASKED) == 65
    assert "No space left on device" in said(capsys)


@pytest.mark.usefixtures("is_small")
def test_passes_are_shown(data: Any, here: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    monkeypatch.setattr("lowcal.data.batches.BATCH_ROWS", 700)
    clock = iter(np.arange(9.0, 1e6, 0.7))
    monkeypatch.setattr("lowcal.data.progress.time.monotonic", lambda: float(next(clock)))
    assert main(["fit", put(data, "parquet"), *ASKED, "--out", "model.json", "--progress"]) == 0
    told = capsys.readouterr().err
    assert "reading t.parquet" in told
    assert "lowcal: encoding, " in told
    assert " of 3,000 rows" in told


def test_json_lines_have_the_types_of_all_their_rows(data: Any, here: Path, monkeypatch: Any) -> None:
    """Also where the first rows have no value, whole numbers come first, or texts look like dates."""
    monkeypatch.setattr("lowcal.data.batches.BATCH_BYTES", 2000)
    frame = data.assign(age=data["age"].where(data.index > 1000), city="2020-01-0" + (data.index % 3 + 1).astype(str))
    records = [{k: None if v != v else v for k, v in row.items()} for row in frame.to_dict(orient="records")]
    records[0]["w"] = 1
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    pq.write_table(pa.Table.from_pylist(records), "t.parquet")
    assert fit("t.jsonl", *ASKED, "--weight", "w") == fit("t.parquet", *ASKED, "--weight", "w", out="p.json") == 0
    assert model() == model("p.json")
    assert main(["predict", "model.json", "t.jsonl", "--out", "o.jsonl", "--quiet"]) == 0
    written = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in row.items() if k != "p_calibrated"} for row in written] == records


def test_broken_json_lines_are_one_sentence(here: Path, capsys: Any) -> None:
    for text in ('{"y": 1}\n{"y": ', '{"y": 1}\n{"y": "one"}\n', "y,p\n1,0.5\n"):
        Path("t.jsonl").write_text(text)
        assert fit("t.jsonl", *ASKED) == 65
        assert "t.jsonl is damaged, cut short or not a" in said(capsys)


# --- folders and globs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["arrow", "arrows", "folder", "glob"])
def test_every_command_reads_folders_globs_and_arrow_files(form: str, data: Any, here: Path) -> None:
    path, one = put(data, form), put(data, "parquet")
    asked = ASKED[:6]
    assert fit(path, *asked) == 0  # without a notion, in memory
    assert fit(one, *asked, out="one.json") == 0
    assert model() == model("one.json")
    for source, out in ((path, "a"), (one, "b")):
        assert main(["predict", "model.json", source, "--out", f"{out}.parquet", "--quiet"]) == 0
        assert main(["audit", source, *ASKED, "--json", f"{out}.json", "--quiet"]) in (0, 1, 2)
    left, right = pq.read_table("a.parquet"), pq.read_table("b.parquet")
    assert left.schema == right.schema
    assert left.equals(right)
    found = [json.loads(Path(name).read_text()) for name in ("a.json", "b.json")]
    assert [audit.pop("origin")["file"] for audit in found] == [path, one]
    assert found[0] == found[1]


def test_a_dictionary_of_an_arrow_file_is_written_as_one(data: Any, here: Path) -> None:
    table = pa.Table.from_pandas(data.assign(city=data["city"].astype("category")), preserve_index=False)
    feather.write_feather(table, "t.feather")
    assert fit("t.feather", *ASKED) == 0
    assert main(["predict", "model.json", "t.feather", "--out", "out.parquet", "--quiet"]) == 0
    assert pq.read_table("out.parquet")["city"].to_pylist() == data["city"].tolist()


@pytest.mark.parametrize("form", ["folder", "glob"])
def test_an_output_never_replaces_a_file_of_a_folder(form: str, data: Any, here: Path, capsys: Any) -> None:
    path = put(data, form)
    assert fit(path, *ASKED) == 0
    before = Path("rows/a.parquet").read_bytes()
    assert main(["predict", "model.json", path, "--out", "rows/a.parquet"]) == 64
    assert "rows/a.parquet would replace the input rows/a.parquet" in said(capsys)
    assert Path("rows/a.parquet").read_bytes() == before


def test_what_is_wrong_with_a_folder_is_one_sentence(data: Any, here: Path, capsys: Any) -> None:
    put(data, "folder")
    Path("nothing").mkdir()
    Path("csv").mkdir()
    data.to_csv("csv/a.csv", index=False)
    for path, words in (
        ("nothing", "The folder nothing holds no file that ends in .parquet"),
        ("*.pq", "No file matches *.pq"),
        ("csv/*.csv", "csv/a.csv is neither a Parquet nor an Arrow file"),
    ):
        assert fit(path, *ASKED) == 65
        assert words in said(capsys)
    table = pa.Table.from_pandas(data, preserve_index=False)
    pq.write_table(table.drop_columns("city"), "rows/z.parquet")
    assert fit("rows", *ASKED) == 65
    assert "rows/z.parquet has no column 'city', but rows/a.parquet has" in said(capsys)
    pq.write_table(table.set_column(3, "age", pa.array(["old"] * N)), "rows/z.parquet")
    assert fit("rows", *ASKED) == 65
    assert "Column 'age' has the type double in rows/a.parquet, but string in rows/z.parquet" in said(capsys)
    whole = Path("rows/b.feather").read_bytes()
    Path("rows/z.parquet").unlink()
    Path("rows/b.feather").write_bytes(whole[: len(whole) // 2])
    assert fit("rows", *ASKED) == 65
    assert "rows/b.feather is damaged, cut short or not an Arrow file" in said(capsys)


# --- files without rows, without labels, cut short ----------------------------------------------------------------


def ask(verb: str, path: str, *asked: str) -> int:
    """Fit or audit a file; nothing may be left behind."""
    code = main([verb, path, *asked, *(["--out", "model.json"] if verb == "fit" else ["--json", "report.json"])])
    assert not Path("model.json").exists()
    assert not Path("report.json").exists()
    return code


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("form", ["csv", "parquet", "arrow", "folder"])
@pytest.mark.parametrize("verb", ["fit", "audit"])
def test_a_file_without_rows_is_one_sentence(
    verb: str, form: str, is_far: bool, data: Any, here: Path, request: Any, capsys: Any
) -> None:
    if is_far:
        request.getfixturevalue("is_small")
    path = put(data.iloc[:0], form)
    assert ask(verb, path, *ASKED) == 65
    assert "no row" in said(capsys)


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "folder"])
@pytest.mark.parametrize("labels", ["numbers", "text"])
@pytest.mark.parametrize("verb", ["fit", "audit"])
def test_a_missing_label_is_one_sentence(
    verb: str, labels: str, form: str, is_far: bool, data: Any, here: Path, request: Any, capsys: Any
) -> None:
    if is_far:
        request.getfixturevalue("is_small")
    y = data["y"].astype(object) if labels == "numbers" else data["y"].map({0: "no", 1: "yes"}).astype(object)
    y.iloc[41] = None
    asked = [*ASKED, *(["--positive", "yes"] if labels == "text" else [])]
    assert ask(verb, put(data.assign(y=y), form), *asked) == 65
    assert "missing" in said(capsys)


@pytest.mark.parametrize("share", [0.02, 0.6, 0.99])
@pytest.mark.parametrize("verb", ["fit", "audit", "predict"])
def test_a_parquet_file_that_was_cut_short_is_one_sentence(
    verb: str, share: float, data: Any, here: Path, capsys: Any
) -> None:
    path = Path(put(data, "parquet"))
    if verb == "predict":
        assert fit(str(path), *ASKED, "--alpha", "0.01", "--quiet") == 0
        capsys.readouterr()
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    if verb == "predict":
        assert main(["predict", "model.json", str(path), "--out", "new.parquet"]) == 65
        assert not Path("new.parquet").exists()
    else:
        assert ask(verb, str(path), *ASKED) == 65
    assert "is damaged, cut short or not a Parquet file" in said(capsys)
