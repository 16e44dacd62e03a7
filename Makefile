# `make demo` and `make test` need Python 3.11 or later with pip and venv, and install everything else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

OLDEST := $(VENV)-oldest
OLDEST_TESTS := dataframes or lists_of_indices or test_labels or categories or test_cli

PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal
LONG := slow or faults or notebook

.PHONY: demo test test-all test-oldest coverage lint soak bench bench-guard notebooks clean

demo: $(VENV)/installed
	$(BIN)/oocpeg demo --folder demo

# What guards correctness, in five minutes on two cores; `test-all` runs the other tests.
test: lint $(VENV)/installed-dev
	$(PYTEST) -m 'not ($(LONG))'

test-all: $(VENV)/installed-dev
	$(PYTEST) -m '$(LONG)'
	$(MAKE) bench-guard

# Both, with the branches that they take: twice as slow.
coverage: $(VENV)/installed-dev
	$(PYTEST) --cov --cov-report=term

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The lowest versions that pyproject.toml allows, with the newest versions of indirect dependencies. Deprecation warnings
# are not errors there, because old packages use deprecated features of new ones.
test-oldest: $(OLDEST)/installed
	$(OLDEST)/bin/python scripts/smoke.py
	$(OLDEST)/bin/python -m pytest -q -W ignore::DeprecationWarning -k '$(OLDEST_TESTS)' \
		tests/integration/test_cli.py tests/unit/readers/test_tables.py tests/integration/test_scoring_dask.py

soak: $(VENV)/installed-dev
	OOCPEG_SOAK=1 nice -n 10 $(BIN)/python -m pytest -s tests/faults tests/integration/test_true_bounds.py

notebooks: $(VENV)/installed-dev
	$(BIN)/python scripts/render_notebooks.py

bench: $(VENV)/installed-bench
	for script in scripts/bench_*.py; do $(BIN)/python $$script || exit 1; done

# Hot paths of the package, compared with scripts/bench_guard.json.
bench-guard: $(VENV)/installed-dev
	$(BIN)/python scripts/bench_guard.py

$(VENV)/created:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/installed: pyproject.toml constraints.txt $(VENV)/created
	$(PIP) --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/installed-bench: $(VENV)/installed-dev
	$(PIP) --editable '.[bench]'
	touch $@

$(OLDEST)/installed: pyproject.toml scripts/lower_bounds.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the oldest versions need Python 3.11; set PYTHON=...")'
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python scripts/lower_bounds.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt \
		--editable '.[distributed]' 'dask[array,dataframe]' hypothesis pandas polars pytest scikit-learn sparse
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) demo build dist
