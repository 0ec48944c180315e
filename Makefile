# Everything a developer or a machine runs. Needs python3.11 or newer, pip and make; the rest is set up in .venv.
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: demo test test-integration test-slow test-lowest sanitize-card lint bench reproduce docs dist clean help

help:
	@echo "make demo              set up and run lowcal on built-in data"
	@echo "make test              set up, then lint, type-check and test: the first stage of CI (COVERAGE=95 asks for 95%)"
	@echo "make test-integration  processes, documentation, compiled kernels, a browser: the second stage of CI"
	@echo "make test-slow         the long checks"
	@echo "make sanitize-card     look for data races and stray reads in the kernels of graphics cards, without a card"
	@echo "make test-lowest       the core tests with the lowest versions that pyproject.toml allows"
	@echo "make lint              format check, lint and types only"
	@echo "make docs              run the examples and build the documentation in docs/_build; warnings are errors"
	@echo "make bench             measure; prints ratios taken in one run"
	@echo "make reproduce         compute the paper's figures, tables and examples in results/ (OUT=... for another folder)"
	@echo "make dist              build the wheel and the source distribution, and check them"
	@echo "make clean             remove .venv and all caches"

.venv/.base: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[plot,report,cli]"
	@touch .venv/.base

.venv/.dev: .venv/.base
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch .venv/.dev

demo: .venv/.base
	$(PY) -m lowcal demo

lint: .venv/.dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy --num-workers 2

# one BLAS thread for each test worker: two that spin on the same two cores are many times slower
test test-integration test-slow: export OPENBLAS_NUM_THREADS = 1
test test-integration test-slow: export OMP_NUM_THREADS = 1

# worksteal leaves the tests of a file, which share what they build, on one worker
PYTEST := $(PY) -m pytest -n 2 --dist worksteal
# tests take half as long again with coverage: CI asks for it, by COVERAGE=95, and the first stage reaches it alone
COVER = $(if $(COVERAGE),--cov --cov-report=term --cov-fail-under=$(COVERAGE))

test: lint
	$(PYTEST) $(COVER) -m "not integration and not slow"

test-integration: .venv/.dev
	$(PYTEST) -m "integration and not slow" tests

test-slow: .venv/.dev
	$(PYTEST) -m slow tests

# kernels of graphics cards, compiled for the processor and watched by gcc's sanitizers; reports are printed, and are errors
sanitize-card: .venv/.dev
	$(PY) tests/sanitize_card.py address
	$(PY) tests/sanitize_card.py thread

# every "package>=version" of the core and of these extras becomes "package==version"; needs a Python that has such wheels (3.11, 3.12)
LOWEST := narwhals numpy scikit-learn scipy pandas polars pyarrow jinja2 matplotlib numba onnx onnxruntime tqdm
.venv-lowest/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python tests/lowest.py $(LOWEST) > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-lowest/constraints.txt --editable . \
	  $(LOWEST) hypothesis pytest
	@touch .venv-lowest/.ready

CORE := tests/data/test_frames.py tests/data/test_inputs.py tests/notions/test_vectors.py tests/subpopulations/test_cut_points.py \
  tests/persistence/test_export.py tests/persistence/test_golden.py tests/persistence/test_round_trip.py \
  tests/auditing/test_audit.py tests/test_estimators.py
test-lowest: export OPENBLAS_NUM_THREADS = 1
test-lowest: .venv-lowest/.ready
	.venv-lowest/bin/python -m pytest -q -m "not integration and not slow" -W default $(CORE)

dist: .venv/.base
	$(PY) -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist
	$(PY) -m build
	$(PY) -m twine check --strict dist/*

# peers (pip install ".[peers]") are left out, with a sentence, where they are not installed
bench: .venv/.dev
	$(PY) benchmarks/rounds.py
	$(PY) benchmarks/smooth.py
	$(PY) benchmarks/audit.py
	$(PY) benchmarks/engines.py
	$(PY) benchmarks/scale.py
	$(PY) benchmarks/run.py

# networks are trained by torch where it is installed (pip install ".[experiments]"), else by scikit-learn
OUT ?= results
reproduce: .venv/.base
	$(PY) -m experiments all --progress --out $(OUT)

.venv/.docs: .venv/.base
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch .venv/.docs

# examples whose data or packages are missing keep their committed pages
docs: .venv/.docs
	$(PY) docs/gallery.py
	$(PY) -m sphinx -q -W --keep-going -b html docs docs/_build

clean:
	rm -rf docs/_build tests/browser/node_modules .venv .venv-lowest .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* build dist
