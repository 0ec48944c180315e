"""Windows of time: the rows of a table, split by one of its columns (`audit(..., by=...)`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.auditing.certificates.panel import Panel
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import read_table
from lowcal.kernels.simplex import IntArray
from lowcal.rows.base import Memory
from lowcal.rows.engines import open_engine
from lowcal.solve.homes import Home, far_roles
from lowcal.subpopulations.levels import show_dates

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: A column with more distinct values than this holds times of day or identifiers, not windows.
MOST = 400


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a column in the order of time, the window of every row, and the other columns of the table."""

    by: str
    names: tuple[Any, ...]
    codes: IntArray
    rest: Frame

    def panels(self, home: Home) -> tuple[tuple[Any, ...], list[Panel], list[float]]:
        """Return the windows that have weight: their names, rows, and shares of the total weight.

        The home was opened on `rest`. Its groups and cut points are those of all rows, so windows can be compared.
        """
        if not home.learner.is_exact:
            raise InvalidInput(
                "by= compares the same groups in every window, but a learned class finds others each time. Use Groups, "
                "Intersections, Memberships or Thresholds."
            )
        assert isinstance(home.rows, Memory)
        codes = self.codes if home.given is None else self.codes[np.flatnonzero(home.given[0].weight)]
        families, is_label = tuple(home.learner.families), home.layout.classes is not None
        kept = np.unique(codes)
        rows = [np.flatnonzero(codes == t) for t in kept]
        panels = [Panel(home.rows.taken(some), families, is_label) for some in rows]
        shares = [float(home.rows.whole.weight[some].sum()) for some in rows]
        return tuple(self.names[t] for t in kept), panels, shares


def read_windows(
    y: ArrayLike, p: ArrayLike, X: object, sample_weight: ArrayLike | None, by: str, memory: int | None
) -> Windows:
    """Split the rows of X by a column of numbers, text or dates, whose sorted values are the windows in order of time.

    >>> table = {"month": ["2024-02", "2024-01", "2024-02"], "sex": ["F", "M", "M"]}
    >>> windows = read_windows([0, 1, 0], [0.5, 0.5, 0.5], table, None, "month", None)
    >>> windows.names, windows.codes.tolist(), windows.rest
    (('2024-01', '2024-02'), [1, 0, 1], Table(3 rows: 'sex'))
    """
    if X is None:
        raise InvalidInput(f"by names the column {by!r}, but X is None; give the table that holds it as X.")
    if open_engine(X) is not None or far_roles(y, p, X, sample_weight, memory) is not None:
        raise InvalidInput("by= needs the rows in memory. Give the rows of the windows you watch, or a sample of them.")
    table = read_table(X)
    column = table.column(by)
    order: list[Any] = list(column.categories or ())
    if column.categories is None:
        order = sorted(value for value in column.distinct()[0] if value is not None and value == value)
    codes = column.encode(tuple(order))
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise InvalidInput(f"Column {by!r} of X, row {row}: the window is missing. Fill it in or drop the row.")
    kept, places = np.unique(codes, return_inverse=True)
    if len(kept) > MOST:
        raise InvalidInput(
            f"Column {by!r} of X has {len(kept):,} different values; by= makes a window of each, and {MOST} at most. "
            "Round it to days, weeks or months."
        )
    values = [order[k] for k in kept]  # numbers and text name windows as they are, dates in the form of ISO 8601
    whole = (int(one) if isinstance(one, float) and one.is_integer() else one for one in values)
    names = show_dates(values) if column.is_date else tuple(whole)
    return Windows(by, names, places.astype(np.intp), table.without([column.name]))
