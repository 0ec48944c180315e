"""Threads: results do not depend on BLAS's, nor on the thread that asks, and nobody's settings are touched."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - SciPy brings a BLAS of its own: both are loaded before threads are counted
from threadpoolctl import threadpool_info, threadpool_limits

import lowcal
from lowcal.kernels import loops
from worlds import multicalibrate

#: BLAS splits a scalar product from 10,000 rows on.
N = 12_000


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def binary(notion="degree-2"):
    data = lowcal.datasets.make_miscalibrated(N, random_state=0)
    return (data.y, data.p, data.X), {"notion": notion}


def features(subpopulations):
    data = lowcal.datasets.make_miscalibrated(N, random_state=0)
    noise = np.random.default_rng(0).standard_normal((N, 20))
    X = np.column_stack([np.unique(column, return_inverse=True)[1] for column in data.X.values()] + [noise])
    return (data.y, data.p, X), {"subpopulations": subpopulations}


def three_classes(notion):
    rng = np.random.default_rng(0)
    X = {f"g{k}": rng.integers(0, 3, N) for k in range(4)}
    p = rng.dirichlet(np.ones(3), N)
    q = p * (1.0 + 0.5 * np.outer(X["g0"] == 1, [1.0, 0.0, 0.0]))
    y = (rng.random(N)[:, None] > np.cumsum(q / q.sum(axis=1, keepdims=True), axis=1)[:, :2]).sum(axis=1)
    return (y, p, X), {"notion": notion}


CASES = {
    "degree-2": lambda: binary(),
    "smooth": lambda: binary("smooth"),
    "full": lambda: binary("full-0.1"),
    "linear": lambda: features(lowcal.Linear()),
    "trees": lambda: features(lowcal.Trees()),
    "three classes, degree 3": lambda: three_classes("degree-3"),
    "three classes, full": lambda: three_classes("full-0.2"),
}


def everything(rows, options, path) -> dict[str, bytes]:
    """Return the bytes of an audit, of what is measured, of a saved model and of its predictions."""
    report = lowcal.audit(*rows, random_state=0, null_draws=19, **options)
    measured = lowcal.measure(*rows, **options)
    fit = multicalibrate(*rows, random_state=0, max_updates=3, guard=False, **options)
    lowcal.save(fit.predictor, path)
    return {
        "audit": report.to_json().encode(),
        "measure": measured.violation.tobytes() + measured.upper.tobytes() + measured.mass.tobytes(),
        "model": path.read_bytes(),
        "history": repr(fit.history).encode(),
        "predictions": fit.predictor(rows[1], rows[2]).tobytes(),
    }


@pytest.mark.parametrize("name", CASES)
def test_same_bytes_with_any_number_of_blas_threads_and_in_any_thread(name, tmp_path):
    rows, options = CASES[name]()
    with threadpool_limits(1, user_api="blas"):
        alone = everything(rows, options, tmp_path / "model.json")
    with threadpool_limits(2, user_api="blas"):
        two = everything(rows, options, tmp_path / "model.json")
    with threadpool_limits(4, user_api="blas"), ThreadPoolExecutor(1) as pool:
        worker = pool.submit(everything, rows, options, tmp_path / "model.json").result()
    assert [part for part in alone if two[part] != alone[part]] == []
    assert [part for part in alone if worker[part] != alone[part]] == []


@pytest.mark.parametrize("notion", ["degree-2", "smooth", "full-0.1"])
@pytest.mark.parametrize("method", ["bootstrap", "exact"])
def test_same_bytes_with_draws_on_one_thread_or_on_several(notion, method, monkeypatch):
    data = lowcal.datasets.make_miscalibrated(600, random_state=0)
    reports = []
    for many in (10**9, 0):
        monkeypatch.setattr(loops, "MANY_ROWS", many)
        reports.append(lowcal.audit(data.y, data.p, data.X, notion=notion, method=method, random_state=0).to_json())
    assert reports[0] == reports[1]


@pytest.fixture
def three_blas_threads() -> Iterator[None]:
    """Set three threads from a thread that ends: threadpoolctl obeys one living thread at a time."""
    before = blas_threads()
    set_blas_threads(3)
    yield
    set_blas_threads(before[0])


def set_blas_threads(count: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(threadpool_limits, count, user_api="blas").result()


@pytest.mark.usefixtures("three_blas_threads")
def test_fits_that_overlap_leave_the_blas_threads_as_they_were():
    data = lowcal.datasets.make_miscalibrated(500, random_state=0)
    begun, overlaps, ended = Event(), Event(), Event()

    def fit(callback):
        return multicalibrate(data.y, data.p, data.X, callback=callback)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fit, lambda _: begun.set() or not overlaps.wait(60))
        assert begun.wait(60)
        second = pool.submit(fit, lambda _: overlaps.set() or not ended.wait(60))
        first.result()
        ended.set()
        second.result()
        assert set(blas_threads()) == {3}  # while the threads of the pool live
    assert set(blas_threads()) == {3}


def test_limits_of_another_thread_hold_while_a_fit_runs_and_after_it():
    data = lowcal.datasets.make_miscalibrated(500, random_state=0)
    before, seen = blas_threads(), {}
    begun, limited = Event(), Event()

    def follow(_record):
        begun.set()
        assert limited.wait(60)
        seen["inside the fit"] = set(blas_threads())

    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(multicalibrate, data.y, data.p, data.X, callback=follow)
        assert begun.wait(60)
        with threadpool_limits(3, user_api="blas"):
            seen["during"] = set(blas_threads())
            limited.set()
            fit.result()
            seen["after"] = set(blas_threads())
        assert blas_threads() == before
    assert seen == {"during": {3}, "inside the fit": {3}, "after": {3}}
    assert blas_threads() == before
