# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types clean

$(BIN)/activate:
	$(PYTHON) -m venv $(VENV)

# A stamp per set of extras: made again when what is installed may have changed.
$(VENV)/demo.stamp: $(BIN)/activate pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[demo]'
	touch $@

$(VENV)/test.stamp: $(BIN)/activate pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[test]'
	touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/kprune demo demo

test: $(VENV)/test.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.stamp
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo
