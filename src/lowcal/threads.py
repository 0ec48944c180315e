"""One BLAS thread while a fit runs.

A fit makes many small matrix products. Several BLAS threads spend more time waiting for each other than they save, and
far more so when the cores are busy with something else (try OPENBLAS_NUM_THREADS=1 and 2 on a small fit without this).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController  # scikit-learn requires it


@cache
def _controller() -> Any:
    """Return the handle on the loaded BLAS libraries; finding them takes milliseconds, so it is done once."""
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS uses one thread; the user's setting comes back afterwards.

    >>> with one_blas_thread():
    ...     pass
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit
