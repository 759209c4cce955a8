# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all quick lint types docs clean

$(BIN)/activate:
	$(PYTHON) -m venv $(VENV)

# A stamp per set of extras: made again when what is installed may have changed.
$(VENV)/demo.stamp: $(BIN)/activate pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[demo]'
	touch $@

$(VENV)/test.stamp: $(BIN)/activate pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/docs.stamp: $(BIN)/activate pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/kprune demo demo

test: $(VENV)/test.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

# Also the slow tests, which repeat checked paths.
test-all: $(VENV)/test.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m ""

# Under a minute on two cores: no command line, no exported graphs, no whole runs.
QUICK := tests/test_layout.py tests/test_config.py tests/maths tests/models tests/data tests/evaluation tests/report \
	$(filter-out tests/pruning/test_journal.py tests/pruning/test_pruner.py tests/pruning/test_measurement.py, \
	$(wildcard tests/pruning/test_*.py))

quick: $(VENV)/test.stamp
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not real and not slow" $(QUICK)

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.stamp
	$(BIN)/mypy

# The site is in site/; a link or an anchor that leads nowhere is an error.
docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) demo site
