"""Engines that rows on a cluster are visited by; each is loaded when rows of its kind are given."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowcal.rows.engines.base import Engine


def open_engine(X: object) -> Engine | None:
    """Return the engine of rows that lie on a cluster; None: they do not.

    >>> open_engine({"p": [0.5]}) is None
    True
    """
    if "dask" in sys.modules:
        from lowcal.rows.engines import dask

        if dask.is_dask(X):
            return dask.Dask(X)
    if "ray" in sys.modules:
        from lowcal.rows.engines import ray

        if ray.is_ray(X):
            return ray.Ray(X)
    if "pyspark" in sys.modules:
        from lowcal.rows.engines import spark

        if spark.is_spark(X):
            return spark.Spark(X)
    return None
