"""scikit-learn estimators: a base model and its recalibration in one object, to scikit-learn's contract."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import KFold, StratifiedKFold, check_cv, train_test_split
from sklearn.utils import Tags, _safe_indexing, check_random_state, get_tags
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    _raise_for_params,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)
from sklearn.utils.validation import _check_y as check_outcome

from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_share, check_weight, check_whole, is_share
from lowcal.kernels.simplex import FloatArray
from lowcal.solve.fitting import Fit, Options, fit_rows
from lowcal.solve.homes import read_class, remember, sketch_rows
from lowcal.solve.recalibration import recalibrate_from
from lowcal.solve.solvers import ALPHA
from lowcal.subpopulations import Groups, Private, Subpopulations, Trees
from lowcal.subpopulations.levels import resolve

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


#: Settings of the class of subpopulations are named so, as scikit-learn names those of a part.
NESTED = "subpopulations__"
#: With fewer rows in a fold than this, what is learned from scratch is not cross-fitted.
LEAST_HELD_OUT = 20
#: With fewer rows than this a base model is recalibrated for everyone together.
LEAST_FOR_TREES = 50
#: How the default class is boosted in each round, tuned on five data sets (benchmarks/learners.py).
BOOSTED: dict[str, Any] = {"n_trees": 25, "shrinkage": 0.15, "max_depth": 4, "max_bins": 32}


@dataclass(frozen=True, eq=False)
class _TrainingRows:
    """Rows of the training data."""

    X: Any
    y: NDArray[Any]
    weight: FloatArray | None

    @property
    def counted(self) -> NDArray[Any]:
        """The outcomes of rows that have weight."""
        return self.y if self.weight is None else self.y[self.weight > 0]

    def take(self, rows: NDArray[np.intp]) -> _TrainingRows:
        weight = None if self.weight is None else self.weight[rows]
        return _TrainingRows(_safe_indexing(self.X, rows), self.y[rows], weight)


@dataclass(eq=False, repr=False)
class _Recalibrated(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """What the two estimators share: fit a base model on some rows, recalibrate it on others."""

    estimator: Any = None
    _: KW_ONLY
    notion: Any = "degree-2"
    subpopulations: Any = None
    alpha: float | None = None
    solver: Any = "block"
    geometry: Any = None
    step: Any = None
    cv: Any = None
    validation_fraction: float = 0.2
    calibration_fraction: float = 0.5
    max_updates: int | None = None
    progress: bool = False
    random_state: Any = None

    #: The names under which the predictor knows the columns, in their order; None if a saved file does not name them.
    _columns: ClassVar[tuple[str, ...] | None] = None

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, **params: Any) -> Self:
        """Fit the base model if needed and recalibrate it; `params` are routed to the base model's fit."""
        before = dict(vars(self))
        try:
            options = self._options()
            X = self._check_features(X, reset=True)
            self._check_class(X)
            outcome = _read_y(y, X, is_numeric=isinstance(self, RegressorMixin))
            weight = None if sample_weight is None else check_weight(_check_sample_weight(sample_weight, X))
            fit_params = self._route(weight, params)
            every = _TrainingRows(X, outcome, weight)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            part, p = self._fit_parts(every, fit_params, seed, self._learn_outcomes(every))
            self._recalibrate(part, p, len(outcome), options, seed)
            self._remember(every)
        except BaseException:  # all or nothing
            self.__dict__ = before
            raise
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings, with those of the class of subpopulations as `subpopulations__n_bins` and so on."""
        nested = self._class_settings() if deep else {}
        return {**super().get_params(deep=deep), **{f"{NESTED}{name}": value for name, value in nested.items()}}

    def set_params(self, **params: Any) -> Self:
        """Set settings; the class of subpopulations, a value, is replaced by one with other settings."""
        nested = {name.removeprefix(NESTED): value for name, value in params.items() if name.startswith(NESTED)}
        super().set_params(**{name: value for name, value in params.items() if not name.startswith(NESTED)})
        known = self._class_settings()
        strange = next((name for name in nested if name not in known), None)
        if strange is not None:
            raise InvalidInput(
                f"Invalid parameter {strange!r} for subpopulations={self.subpopulations!r}; it has {sorted(known)!r}."
            )
        if nested:
            self.subpopulations = replace(self.subpopulations, **nested)
        return self

    def _class_settings(self) -> dict[str, Any]:
        """Return the settings of a class of subpopulations by name; there are none of columns alone."""
        given = self.subpopulations
        is_value = isinstance(given, Subpopulations) and is_dataclass(given)
        return {one.name: getattr(given, one.name) for one in fields(given)} if is_value else {}

    def _options(self) -> Options:
        """Return the options of the fit, checked before anything is fitted; folds hold out `validation_fraction`."""
        check_share("validation_fraction", self.validation_fraction)
        names = ("subpopulations", "notion", "alpha", "solver", "geometry", "step", "max_updates", "progress")
        return Options(**{name: getattr(self, name) for name in names})

    def _calibrated(self, X: Any) -> FloatArray:
        """Return the calibrated predictions on rows that are checked first."""
        starts, columns = self._inputs(X)
        return _mean(self.predictor_(start, columns) for start in starts)

    def _staged(self, X: Any) -> Iterator[FloatArray]:
        """Yield the predictions after each update."""
        starts, columns = self._inputs(X)
        yield from map(_mean, zip(*(self.predictor_.staged(start, columns) for start in starts), strict=True))

    def _inputs(self, X: Any) -> tuple[list[FloatArray], Any]:
        """Return the predictions of each base model, and the columns as the predictor reads them."""
        check_is_fitted(self, "predictor_")
        X = self._check_features(X, reset=False)
        models = self.estimator_ if isinstance(self.estimator_, list) else [self.estimator_]
        return [self._start(model, X) for model in models], self._by_name(X)

    def _remember(self, every: _TrainingRows) -> None:
        """Leave a sketch of the rows, so that an audit on them can warn; the fit has left one of its own rows."""

    def _by_name(self, X: Any) -> Any:
        """Return X as the predictor reads it: by name if scikit-learn saw the same names, else in the fitted order."""
        if self._columns is None or (_is_frame(X) and hasattr(self, "feature_names_in_")):
            return X
        return Frame.of(X).named(self._columns)

    def _check_features(self, X: Any, reset: bool) -> Any:
        """Check X as scikit-learn does; data frames keep their columns, whatever these hold."""
        if _is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) == 0:
                raise InvalidInput("Found array with 0 sample(s); at least one row is required.")
            return X
        if self.estimator is not None:  # which checks its X itself; pipelines do not report what they accept
            return validate_data(self, X, reset=reset, accept_sparse="csr", dtype=None, ensure_all_finite=False)
        finite = True if not self.__sklearn_tags__().input_tags.allow_nan else "allow-nan"
        return validate_data(self, X, reset=reset, accept_sparse="csr", dtype="numeric", ensure_all_finite=finite)

    def _check_class(self, X: Any) -> None:
        """Look up the columns that the class names before anything is fitted, and remember all names."""
        table = Frame.of(X)
        chosen = read_class(self.subpopulations)
        for part in () if chosen is None else chosen.each():
            if type(part).__module__.startswith("lowcal."):  # a user's class may mean something else by columns
                resolve(part.given_columns, table)
        self._columns = table.names  # type: ignore[misc]

    def __sklearn_tags__(self) -> Tags:
        """Inherit what the base model can take; without one, missing values need explicit subpopulations."""
        tags = super().__sklearn_tags__()
        if self.estimator is None:
            tags.input_tags.sparse = True
            tags.input_tags.allow_nan = self.subpopulations is not None
        else:
            base = get_tags(self.estimator).input_tags
            tags.input_tags.sparse, tags.input_tags.allow_nan = base.sparse, base.allow_nan
        return tags

    def get_metadata_routing(self) -> MetadataRouter:
        """Return what this estimator requests itself, and what its fit passes on to the base model's fit."""
        router = MetadataRouter(owner=self).add_self_request(self)
        if self.estimator is not None:
            router.add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))
        return router

    def _route(self, sample_weight: FloatArray | None, params: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the base model's fit: those it requested, or the weights if nothing is routed."""
        if _routing_enabled():
            routed = process_routing(self, "fit", sample_weight=sample_weight, **params)
            return {} if self.estimator is None else dict(routed["estimator"]["fit"])
        _raise_for_params(params, self, "fit")
        if sample_weight is None or not self._is_fitted_here():
            return {}
        if has_fit_parameter(self.estimator, "sample_weight"):
            return {"sample_weight": sample_weight}
        warnings.warn(
            f"{type(self.estimator).__name__}.fit takes no sample_weight: the base model is fitted without the "
            "weights, and recalibrated with them.",
            UserWarning,
            stacklevel=3,
        )
        return {}

    def _is_fitted_here(self) -> bool:
        """Whether there is a base model that is still to be fitted."""
        return self.estimator is not None and not isinstance(self.estimator, FrozenEstimator)

    def _fit_parts(
        self, every: _TrainingRows, params: dict[str, Any], seed: int, strata: Any
    ) -> tuple[_TrainingRows, FloatArray]:
        """Fit the base model where it needs fitting; return the calibration rows and its predictions there."""
        if not self._is_fitted_here():
            self.estimator_ = self.estimator
            return every, self._start(self.estimator_, every.X)
        if self.cv is not None:
            return self._cross_fit(every, params, self._folds(every, strata, seed))
        train, rest = self._split(len(every.y), strata, seed)
        self.estimator_ = self._fit_base(every, params, train)
        part = every.take(rest)
        return part, self._start(self.estimator_, part.X)

    def _fit_base(self, every: _TrainingRows, params: dict[str, Any], rows: NDArray[np.intp]) -> Any:
        base, fit_params = every.take(rows), _check_method_params(every.X, params, indices=rows)
        return clone(self.estimator).fit(base.X, base.y, **fit_params)

    def _cross_fit(self, every: _TrainingRows, params: dict[str, Any], folds: Any) -> tuple[_TrainingRows, FloatArray]:
        """Fit a base model outside every fold; the predictions of a row are those of the model that has not seen it."""
        self.estimator_ = [self._fit_base(every, params, train) for train, _ in folds]
        held = np.concatenate([rows for _, rows in folds])
        p = [self._start(one, every.take(rows).X) for one, (_, rows) in zip(self.estimator_, folds, strict=True)]
        order = np.argsort(held, kind="stable")
        return every.take(held[order]), np.concatenate(p)[order]

    def _folds(self, every: _TrainingRows, strata: Any, seed: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Return the rows outside and inside every fold: shuffled folds for a number, or those of a splitter."""
        if not isinstance(self.cv, Integral):
            splitter = check_cv(self.cv)
        else:
            check_whole("cv", self.cv, 2)
            kind = KFold if strata is None else StratifiedKFold
            splitter = kind(int(self.cv), shuffle=True, random_state=seed)
        folds = [(np.asarray(train), np.asarray(held)) for train, held in splitter.split(every.X, every.y)]
        if np.bincount(np.concatenate([held for _, held in folds])).max() > 1:
            raise InvalidInput(f"cv must hold out every row at most once, but {self.cv!r} repeats some. Use KFold.")
        return folds

    def _split(self, n: int, strata: Any, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        if not is_share(self.calibration_fraction) or self.calibration_fraction == 0:
            raise InvalidInput(
                f"calibration_fraction must be in (0, 1), but {self.calibration_fraction!r} was given; "
                "wrap a fitted model in FrozenEstimator to recalibrate it on all rows."
            )
        rows = np.arange(n)
        try:
            parts = train_test_split(rows, test_size=self.calibration_fraction, random_state=seed, stratify=strata)
        except ValueError:  # too few rows of a class to stratify
            parts = train_test_split(rows, test_size=self.calibration_fraction, random_state=seed)
        return np.sort(parts[0]), np.sort(parts[1])

    def _recalibrate(self, part: _TrainingRows, p: FloatArray, n: int, options: Options, seed: int) -> None:
        """Recalibrate on a part of n rows, as far as cross-fitting allows."""
        y, classes = self._outcomes(part, n)
        if self._is_open():
            folds = max(2, round(1.0 / self.validation_fraction))
            given = Frame.of(part.X), part.weight, None, folds, self.progress, seed, classes
            fit = recalibrate_from(y, p, *given, takes_line=isinstance(self.estimator_, list))
        else:
            fit = fit_rows(y, p, Frame.of(part.X), part.weight, classes, self._asked(options, len(p)), seed)
        self._keep(fit)

    def _keep(self, fit: Fit) -> None:
        """Keep a fit, and what of it a user may ask for."""
        self.predictor_, self.status_, self.history_ = fit.predictor, fit.status, fit.history
        self.n_updates_, self.n_oracle_calls_, self.fit_ = fit.n_updates, fit.n_oracle_calls, fit

    def _is_open(self) -> bool:
        """Whether a base model is given with all options at their defaults, so that cross-validation chooses."""
        asked = (self.subpopulations, self.alpha, self.geometry, self.step, self.max_updates)
        is_default = self.notion == "degree-2" and self.solver == "block" and all(one is None for one in asked)
        return self.estimator is not None and is_default and self.validation_fraction > 0

    def _asked(self, options: Options, n: int) -> Options:
        """Return the options of a fit to n rows: from scratch there is no model to harm, and few rows judge nothing."""
        share = self.validation_fraction
        if self.estimator is None and share * n < LEAST_HELD_OUT:
            share = 0.0
        options = replace(options, guard=share, subpopulations=self._subpopulations(n, share))
        # a prior and folds count rows, to which weights are not equal
        if self.estimator is not None or share > 0.0 or isinstance(self.subpopulations, Private):
            return options
        step = 1.0 if self.step is None and self.solver == "block" else self.step
        return replace(options, alpha=ALPHA if self.alpha is None else self.alpha, step=step)

    def _subpopulations(self, n: int, share: float) -> Any:
        """Return the class given, or trees with nodes that suit a small sample, boosted if guarded.

        A base model on few rows is recalibrated for everyone together: trees would overfit.
        """
        if self.subpopulations is not None:
            return read_class(self.subpopulations)
        if self.estimator is not None and n < LEAST_FOR_TREES:
            return Groups([])
        boosted = BOOSTED if share > 0 else {}
        return Trees(min_mass=min(30, max(1, n // 20)), geometry=self.geometry or "mirror", **boosted)


class MulticalibratedClassifier(ClassifierMixin, _Recalibrated):  # type: ignore[misc]
    """A classifier whose probabilities are multicalibrated on many overlapping subpopulations.

    Parameters
    ----------
    estimator : None learns from scratch, starting uniform; a `FrozenEstimator(model)` is recalibrated on all rows
        given; an unfitted classifier is fitted on one part of the rows and recalibrated on the other, or, with `cv`,
        cross-fitted on all of them.
    notion, subpopulations, alpha, solver, geometry, step, max_updates, progress : as in `lowcal.multicalibrate`. A base
        model with all of these at their defaults is recalibrated as `lowcal.recalibrate` does, by what cross-validation
        chooses. Otherwise `subpopulations=None` is `Trees` with boosted sums on every kind of X (everyone together
        where a base model has a calibration set of fewer than 50 rows).
    cv : None splits the rows once. A number of folds, or a splitter of scikit-learn, fits a base model outside every
        fold and recalibrates what these predict for the rows that they have not seen, so that all rows are used for
        both; predictions are the mean of the recalibrated models. These are not left as they are: without a notion, a
        class or an alpha, from 100 rows on, they begin with Platt scaling (the line of several classes). Better on few
        rows, and that many times the work.
    validation_fraction : share of the calibration set that each fold holds out to choose on; 0, or a share of fewer
        than 20 rows without a base model: everything is fitted to all rows.
    calibration_fraction : share of all rows that an unfitted base model leaves for recalibration, without `cv`.
    random_state : seed of the splits.

    Attributes
    ----------
    classes_, predictor_, status_, history_, n_updates_, n_oracle_calls_, fit_
    estimator_ : the fitted base model; with `cv` the list of those of the folds.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> base = make_pipeline(StandardScaler(), LogisticRegression())
    >>> model = MulticalibratedClassifier(base, alpha=0.05, random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape, model.status_.value in ("reached", "patience")
    ((569, 2), True)
    """

    def _learn_outcomes(self, every: _TrainingRows) -> NDArray[np.intp]:
        """Learn the classes; return their codes, by which rows are split."""
        self.classes_, codes = np.unique(every.y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInput(f"Classifier can't train when only one class is present: {self.classes_[0]!r}.")
        return np.asarray(codes)

    def _outcomes(self, part: _TrainingRows, n: int) -> tuple[NDArray[np.intp], range]:
        labels = np.unique(part.counted)
        if len(labels) == 1:
            where = "y" if len(part.y) == n else "The part of y that is kept for recalibration (calibration_fraction)"
            among = "" if part.weight is None else " in the rows with weight"
            raise InvalidInput(
                f"{where} holds one class only{among}: {labels[0]!r}. Calibration needs at least two; give more rows."
            )
        return np.searchsorted(self.classes_, part.y), range(len(self.classes_))

    def _remember(self, every: _TrainingRows) -> None:
        """Leave a sketch of all rows given, those of the base model too, so that an audit on them can warn."""
        rows = sketch_rows(len(every.y))
        p = self._calibrated(_safe_indexing(every.X, rows))
        y = np.eye(len(self.classes_))[np.searchsorted(self.classes_, every.y[rows])]
        remember(len(every.y), *((y[:, [1]], p[:, [1]]) if len(self.classes_) == 2 else (y, p)))

    def _start(self, model: Any, X: Any) -> FloatArray:
        """Return a base model's probabilities, one column for each class; uniform without a model."""
        n, n_classes = X.shape[0], len(self.classes_)
        if model is None:
            return np.full((n, n_classes), 1.0 / n_classes)
        p = _probabilities(model, X)
        known = getattr(model, "classes_", self.classes_)
        if len(known) == n_classes and np.array_equal(known, self.classes_):
            return p
        place = {c: k for k, c in enumerate(self.classes_)}
        strange = [c for c in known if c not in place]
        if strange:
            raise InvalidInput(
                f"The base model predicts class {strange[0]!r}, which y does not hold. "
                "Recalibrate it on rows that hold all its classes."
            )
        wide = np.zeros((n, n_classes))
        wide[:, [place[c] for c in known]] = p
        return wide

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the calibrated probabilities, one column for each of `classes_`."""
        return self._calibrated(X)

    def staged_predict_proba(self, X: Any) -> Iterator[FloatArray]:
        """Yield the probabilities after each update."""
        return self._staged(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])


@dataclass(eq=False, repr=False)
class MulticalibratedRegressor(RegressorMixin, _Recalibrated):  # type: ignore[misc]
    """A regressor for outcomes in a bounded range, recalibrated on many overlapping subpopulations (spec 10.iii).

    Outcomes and predictions are brought to [0, 1], recalibrated there, and brought back.

    Parameters
    ----------
    bounds : (low, high), the range of the outcome; None takes it from the rows to fit.
    others : as in `MulticalibratedClassifier`.

    Attributes
    ----------
    bounds_, predictor_, status_, history_, n_updates_, n_oracle_calls_, estimator_, fit_ : as there.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MulticalibratedRegressor(Ridge(), alpha=0.05, random_state=0).fit(X, y)
    >>> model.predict(X).shape
    (442,)
    """

    _: KW_ONLY
    bounds: Any = None

    def _learn_outcomes(self, every: _TrainingRows) -> None:
        self.bounds_ = self._read_bounds(every.counted)

    def _outcomes(self, part: _TrainingRows, n: int) -> tuple[FloatArray, None]:
        unit = self._to_unit(part.y)
        return np.column_stack([1.0 - unit, unit]), None

    def _read_bounds(self, y: FloatArray) -> tuple[float, float]:
        low, high = (float(y.min()), float(y.max())) if self.bounds is None else _bounds(self.bounds)
        outside = (y < low) | (y > high)
        if outside.any():
            row = int(outside.argmax())
            raise InvalidInput(f"y is {y[row]} in row {row}, outside the bounds ({low:g}, {high:g}). Widen bounds=.")
        return low, high if high > low else low + 1.0

    def _to_unit(self, y: FloatArray) -> FloatArray:
        low, high = self.bounds_
        return np.clip((np.asarray(y, dtype=np.float64) - low) / (high - low), 0.0, 1.0)

    def _start(self, model: Any, X: Any) -> FloatArray:
        if model is None:
            return np.full(X.shape[0], 0.5)
        return self._to_unit(model.predict(X))

    def predict(self, X: Any) -> FloatArray:
        """Return the calibrated predictions, in the range of the outcome."""
        return self._from_unit(self._calibrated(X))

    def staged_predict(self, X: Any) -> Iterator[FloatArray]:
        """Yield the predictions after each update."""
        return map(self._from_unit, self._staged(X))

    def _from_unit(self, p: FloatArray) -> FloatArray:
        low, high = self.bounds_
        return low + (high - low) * p


def _mean(predictions: Iterable[FloatArray]) -> FloatArray:
    """Return the mean of predictions, which are exactly those of a single model."""
    return np.asarray(np.mean(list(predictions), axis=0))


def _bounds(given: Any) -> tuple[float, float]:
    """Return the two ends of a range."""
    try:
        low, high = (float(end) for end in given)
    except (TypeError, ValueError):
        low, high = np.nan, np.nan
    if not -np.inf < low < high < np.inf:
        raise InvalidInput(f"bounds must be (low, high), two numbers with low < high, but {given!r} was given.")
    return low, high


def _is_frame(X: Any) -> bool:
    """Whether X is a data frame that narwhals knows: its columns may hold anything."""
    if isinstance(X, np.ndarray | list | tuple) or sparse.issparse(X):
        return False
    import narwhals.stable.v2 as nw
    from narwhals.exceptions import DuplicateError

    try:
        return isinstance(nw.from_native(X, pass_through=True), nw.DataFrame)
    except DuplicateError as error:
        raise InvalidInput(f"X names a column more than once: {error}") from error


def _read_y(y: ArrayLike, X: Any, is_numeric: bool) -> NDArray[Any]:
    """Return labels or, for a regressor, numbers."""
    if y is None:
        raise InvalidInput("This estimator requires y to be passed, but the target y is None.")
    checked = np.asarray(check_outcome(y, multi_output=False, y_numeric=is_numeric))
    if is_numeric and checked.dtype.kind not in "biuf":
        raise InvalidInput(f"y holds {checked[0]!r}, but a regressor needs numbers. Convert y, or use a classifier.")
    check_consistent_length(X, checked)
    if not is_numeric:
        check_classification_targets(checked)
    return checked


def _probabilities(model: Any, X: Any) -> FloatArray:
    """Return predict_proba, or the squashed decision function of a model that has none."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(X), dtype=np.float64)
    if not hasattr(model, "decision_function"):
        raise InvalidInput(f"{model!r} has neither predict_proba nor decision_function. Give a classifier that has.")
    score = np.asarray(model.decision_function(X), dtype=np.float64)
    return np.column_stack([expit(-score), expit(score)]) if score.ndim == 1 else np.asarray(softmax(score, axis=1))


class MissingBase(BaseEstimator):  # type: ignore[misc]
    """Stands for a base model that was not saved: predicting raises an error that says what to do."""

    def __init__(self, name: str = "a model") -> None:
        self.name = name

    def predict(self, X: Any, y: Any = None) -> NoReturn:
        """Refuse."""
        raise InvalidInput(
            f"This model was saved without its base model ({self.name}), which is not lowcal's. Give it when loading, "
            "lowcal.load(path, estimator=base), or recalibrate its probabilities yourself: model.predictor_(p, X)."
        )

    fit = predict_proba = predict

    def __sklearn_tags__(self) -> Tags:
        """Let every X through: what is wrong is not X."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags
