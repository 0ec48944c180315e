"""Real data that are not shipped: read from a folder, or fetched from OpenML by scikit-learn, which keeps a cache.

The folder is the argument `folder` or the variable LOWCAL_DATA. A file NAME.parquet or NAME.csv there comes first.
OpenML needs the network once; a copy of scikit-learn's cache can be named by the variable SCIKIT_LEARN_DATA.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput, MissingExtra
from lowcal.datasets import Dataset, load_adult

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Source:
    """Where a data set is found, and what its columns mean.

    `names` are the columns' names where OpenML has others; `text` are codes that are names, not numbers; `score` is a
    column with a model's probabilities; `groups` are the columns that people are told apart by.
    """

    title: str
    file: str
    label: str
    classes: tuple[Any, ...]
    groups: tuple[str, ...]
    openml: int | None = None
    names: tuple[str, ...] = ()
    openml_classes: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    score: str | None = None
    licence: str = "CC BY 4.0"


_PAY = ("PAY_0", *(f"PAY_{k}" for k in range(2, 7)))
_AMOUNTS = (*(f"BILL_AMT{k}" for k in range(1, 7)), *(f"PAY_AMT{k}" for k in range(1, 7)))
_BANK = (
    "age job marital education default balance housing loan contact day month duration campaign pdays previous poutcome"
)

SOURCES = {
    "acs_employment": Source(
        "ACS employment, Massachusetts 2015-2018 (US Census Bureau)",
        "acs_employment_ma",
        "employed",
        (0, 1),
        ("SEX", "RAC1P", "AGEP", "DIS", "MAR"),
        drop=("id", "prediction", "part"),
        score="predicted_probability",
        licence="public domain",
    ),
    "bank_marketing": Source(
        "Bank marketing (Moro, Rita and Cortez, 2014)",
        "bank_marketing",
        "y",
        ("no", "yes"),
        ("age", "marital", "job", "education"),
        openml=1461,
        names=(*_BANK.split(), "y"),
        openml_classes=("1", "2"),
    ),
    "credit_default": Source(
        "Default of credit card clients (Yeh, 2009)",
        "credit_default",
        "default",
        (0, 1),
        ("SEX", "EDUCATION", "MARRIAGE", "AGE"),
        openml=42477,
        names=("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *_PAY, *_AMOUNTS, "default"),
        openml_classes=("0", "1"),
        text=("SEX", "EDUCATION", "MARRIAGE"),
    ),
    "diabetes": Source(
        "Diabetes, 130 US hospitals (Clore, Cios, DeShazo and Strack, 2014)",
        "diabetes130",
        "readmitted",
        ("NO", ">30", "<30"),
        ("race", "gender", "age"),
        openml=4541,
        drop=("encounter_id", "patient_nbr"),
        text=("admission_type_id", "discharge_disposition_id", "admission_source_id"),
    ),
    "student_dropout": Source(
        "Predict students' dropout and academic success (Realinho, Machado, Baptista and Martins, 2021)",
        "student_dropout",
        "Target",
        ("Dropout", "Enrolled", "Graduate"),
        ("Gender", "Scholarship holder", "Debtor", "Displaced", "Age at enrollment"),
        text=("Gender", "Scholarship holder", "Debtor", "Displaced", "Course", "Marital status", "Application mode"),
    ),
}
CIFAR = "cifar100_probs"
#: The endings of a table, the first one first.
TABLES = (".parquet", ".csv")
NETWORKS = ("wideresnet", "densenet", "lenet5")


def load(name: str, folder: str | Path | None = None) -> Dataset:
    """Load a data set by its name: one of `SOURCES`, "adult", which lowcal ships, or "cifar100".

    A file in `folder` or, for None, in the folder that the variable LOWCAL_DATA names; OpenML where there is none.
    """
    if name == "adult":
        return load_adult()
    if name == "cifar100":
        return load_cifar100(folder=folder)
    source = SOURCES[name]
    path = find_file(source.file, folder)
    return _dataset(source, read_columns(path) if path is not None else _fetch(source, folder))


def load_cifar100(network: str = "wideresnet", folder: str | Path | None = None) -> Dataset:
    """Load a network's outputs on the 10,000 test images of CIFAR-100: p of shape (n, 100), and predicted superclasses.

    X has the columns `superclass`, that of the likeliest class (a function of p, so that it is known for a new image),
    and `confidence`. The file cifar100_probs.npz has the outputs of three networks: "wideresnet", "densenet", "lenet5".
    """
    if network not in NETWORKS:
        raise InvalidInput(f"network must be one of {', '.join(NETWORKS)}; got {network!r}.")
    path = find_file(CIFAR, folder, (".npz",))
    if path is None:
        raise InvalidInput(_absent(CIFAR, folder, (".npz",)))
    with np.load(path, allow_pickle=False) as stored:
        p, y, coarse = (stored[k] for k in (f"probs_{network}", "label", "fine_to_coarse"))
    p = p.astype(np.float64)
    p /= p.sum(axis=1, keepdims=True)
    likeliest = p.argmax(axis=1)
    names = np.array([f"superclass {k}" for k in range(int(coarse.max()) + 1)], dtype=object)
    return Dataset(
        X={"superclass": names[coarse[likeliest]], "confidence": p.max(axis=1)},
        y=y.astype(np.int64),
        p=p,
        description=f"CIFAR-100 test images, outputs of {network} (from netcal's examples, Apache-2.0)",
    )


# -------------------------------------------------------------------------------------------------- finding and reading
def find_file(stem: str, folder: str | Path | None, endings: Sequence[str] = TABLES) -> Path | None:
    """Return the file of a data set in the folder or in LOWCAL_DATA; None if it is in neither."""
    given = folder or os.environ.get("LOWCAL_DATA")
    candidates = [Path(given) / f"{stem}{ending}" for ending in endings] if given else []
    return next((path for path in candidates if path.is_file()), None)


def _absent(stem: str, folder: str | Path | None, endings: Sequence[str], more: str = "") -> str:
    where = folder or os.environ.get("LOWCAL_DATA")
    looked = f"in {where}" if where else "as neither folder= nor the variable LOWCAL_DATA names a folder"
    return f"{' or '.join(stem + ending for ending in endings)} was not found {looked}. {more}".rstrip()


def read_columns(path: Path) -> Columns:
    """Read a Parquet or CSV file with whichever of pyarrow, polars and pandas is installed."""
    import narwhals.stable.v2 as nw

    backend = next((b for b in ("pyarrow", "polars", "pandas") if find_spec(b) is not None), None)
    if backend is None:
        raise MissingExtra(f"reading {path.name} needs pyarrow, polars or pandas: pip install pyarrow")
    read: Any = nw.read_parquet if path.suffix == ".parquet" else nw.read_csv
    try:
        frame = read(str(path), backend=backend)
    except Exception as error:  # each library has its own errors
        raise InvalidInput(f"{path} can't be read: {error}") from error
    # some published files begin with a byte-order mark, which becomes a part of the first name
    return {name.lstrip("\ufeff"): _plain(frame[name].to_list()) for name in frame.columns}


def _plain(values: Sequence[Any]) -> NDArray[Any]:
    """Return numbers as an array of numbers, anything else as str or None."""
    missing = [v is None or v != v for v in values]
    if all(isinstance(v, int | float) for v, gone in zip(values, missing, strict=True) if not gone):
        if not any(missing) and all(isinstance(v, int) for v in values):
            return np.array(values, dtype=np.int64)
        return np.array([np.nan if gone else v for v, gone in zip(values, missing, strict=True)], dtype=np.float64)
    text = [None if gone or v in ("", "?") else str(v) for v, gone in zip(values, missing, strict=True)]
    return np.array(text, dtype=object)


def _fetch(source: Source, folder: str | Path | None) -> Columns:
    """Return the columns from OpenML, under the names of the published file."""
    if source.openml is None:
        text = "OpenML does not have it: put the file there."
        raise InvalidInput(_absent(source.file, folder, TABLES, text))
    from sklearn.datasets import fetch_openml

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it tries again; what matters is raised
            found = fetch_openml(data_id=source.openml, as_frame=False, parser="liac-arff", n_retries=1)
    except Exception as error:  # no network, no such data, a broken cache: all mean that it is not there
        text = f"OpenML (data_id {source.openml}) did not give it either: {type(error).__name__}: {error}"
        raise InvalidInput(_absent(source.file, folder, TABLES, text)) from error
    categories = found.get("categories") or {}
    columns = {
        name: _decode(found["data"][:, j], categories.get(name)) for j, name in enumerate(found["feature_names"])
    }
    columns[str(found["target_names"][0])] = np.asarray(found["target"], dtype=object)
    if source.names:
        columns = dict(zip(source.names, columns.values(), strict=True))
    if source.openml_classes:
        known = dict(zip(source.openml_classes, source.classes, strict=True))
        columns[source.label] = np.array([known[str(v)] for v in columns[source.label]], dtype=object)
    return columns


def _decode(values: NDArray[Any], categories: Sequence[str] | None) -> NDArray[Any]:
    """Return a column of OpenML: codes of categories as text."""
    if not categories:
        return _plain(values.tolist())
    return _plain([None if v is None or v != v else v if isinstance(v, str) else categories[int(v)] for v in values])


def _dataset(source: Source, columns: Columns) -> Dataset:
    absent = [name for name in (source.label, *source.groups) if name not in columns]
    if absent:
        raise InvalidInput(f"The data of {source.title} lack the columns {', '.join(absent)}; is it the right file?")
    label = [v.item() if isinstance(v, np.generic) else v for v in columns.pop(source.label)]
    unknown = [v for v in label if v not in source.classes]
    if unknown:
        raise InvalidInput(f"The label {source.label} holds {unknown[0]!r}; expected {list(source.classes)}.")
    p = columns.pop(source.score).astype(np.float64) if source.score else None
    X = {name: column for name, column in columns.items() if name not in source.drop}
    for name in source.text:
        X[name] = np.array([None if v is None else str(v) for v in X[name].tolist()], dtype=object)
    code = {value: k for k, value in enumerate(source.classes)}
    return Dataset(
        X, np.array([code[v] for v in label], dtype=np.int64), p, description=f"{source.title}; {source.licence}"
    )
