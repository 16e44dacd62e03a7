# `make demo` and `make test` need Python 3.11 or later with pip and venv; they do the rest themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint pytest soak bench notebooks clean

demo: $(VENV)/installed
	$(BIN)/oocpeg demo --folder demo

test: lint pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: $(VENV)/installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --cov --cov-report=term

soak: $(VENV)/installed-dev
	OOCPEG_SOAK=1 nice -n 10 $(BIN)/python -m pytest -s tests/faults tests/test_true_bounds.py

notebooks: $(VENV)/installed-dev
	$(BIN)/python scripts/render_notebooks.py

bench: $(VENV)/installed-bench
	for script in scripts/bench_*.py; do $(BIN)/python $$script || exit 1; done

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

clean:
	rm -rf $(VENV) demo build dist
