# `make demo` and `make test` work on a fresh machine: each creates .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint experiments clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group test --group lint
	touch $@

demo: .venv/installed
	$(BIN)/forethought train --demo --out runs/demo --overwrite

# Workers run torch on one thread each: more only makes them fight over the cores.
test: .venv/installed-test
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The small presets of every experiment, one after the other. DATA is the folder with the data sets.
DATA ?= ../shared/data
experiments: export FORETHOUGHT_DATA := $(DATA)
experiments: .venv/installed
	set -e; for script in experiments/proactive_dp/tables.py \
	  experiments/proactive_dp/logistic_regression.py experiments/proactive_dp/lenet.py \
	  experiments/proactive_dp/utility_graph.py experiments/*/run.py; do \
	  echo "$$script"; $(BIN)/python $$script; done

clean:
	rm -rf .venv runs
