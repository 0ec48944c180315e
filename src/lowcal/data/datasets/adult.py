"""UCI Adult: 48,842 people of the 1994 US census and whether each earned over $50,000 a year."""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lowcal.data.datasets.base import Dataset
from lowcal.data.errors import InvalidInput, sentence, suggest

SHA256 = "29c4fe1a63361e4b5284df21b9797bf39fd3dfb2c593a19609d5bd4315348e50"
SUBSETS = ("all", "train", "test")


def load_adult(subset: Literal["all", "train", "test"] = "all") -> Dataset:
    """Load the Adult data, which are shipped inside the package; no network, no optional library.

    y = 1 where the income is above $50K. The text columns (workclass, education, marital_status,
    occupation, relationship, race, sex, native_country) hold str, or None where the published value is
    "?"; the numeric ones hold int64. The census weight `fnlwgt` is a column; `sample_weight` is None.
    Becker and Kohavi (1996), https://doi.org/10.24432/C5XW20, CC BY 4.0; see data/ATTRIBUTION.md.

    Parameters
    ----------
    subset : "all", "train" or "test"
        The published split: 32,561 rows to train, 16,281 to test; "all" is one after the other.

    >>> data = load_adult("test")
    >>> len(data.y), int(data.y.sum()), sorted(set(data.X["sex"]))
    (16281, 3846, ['Female', 'Male'])
    """
    if subset not in SUBSETS:
        hint = suggest(str(subset), SUBSETS)
        raise InvalidInput(f"subset must be one of {', '.join(SUBSETS)}; got {subset!r}.{hint}")
    columns = _read(files("lowcal.datasets").joinpath("data", "adult.npz"))
    split, income = columns.pop("split"), columns.pop("income")
    rows = np.ones(len(split), dtype=np.bool_) if subset == "all" else split == subset
    return Dataset(
        X={name: column[rows] for name, column in columns.items()},
        y=(income[rows] == ">50K").astype(np.int64),
        description=f"UCI Adult (Becker and Kohavi, 1996; CC BY 4.0), {subset} rows",
    )


def _read(path: Traversable) -> dict[str, NDArray[Any]]:
    """Read every column of the file, after checking that its bytes are the shipped ones."""
    try:
        content = path.read_bytes()
    except OSError as error:
        why = sentence(f"the Adult data can't be read from {path}: {error}")
        raise InvalidInput(f"{why} Reinstall lowcal.") from error
    if sha256(content).hexdigest() != SHA256:
        raise InvalidInput(
            f"the Adult data in {path} are damaged or truncated: its {len(content)} bytes do not have the "
            f"SHA-256 checksum {SHA256}. Reinstall lowcal."
        )
    with np.load(BytesIO(content), allow_pickle=False) as stored:
        categories = json.loads(str(stored["categories"]))
        names = [name for name in stored.files if name != "categories"]
        return {name: _decode(stored[name], categories.get(name)) for name in names}


def _decode(codes: NDArray[Any], categories: list[str] | None) -> NDArray[Any]:
    """Turn the codes of a text column into text (code -1 is missing), a numeric column into int64."""
    if categories is None:
        return codes.astype(np.int64)
    text: NDArray[Any] = np.array([*categories, None], dtype=object)[codes]
    return text
