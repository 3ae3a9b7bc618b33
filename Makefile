# `make demo` and `make test` work on a fresh machine: each creates .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all coverage lint docs matrix instruction-sets busy waiting hooks figures mutants stations experiments full clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group test --group lint --group docs
	touch $@

demo: .venv/installed
	$(BIN)/forethought train --demo --out runs/demo --overwrite

# Workers run torch on one thread each: more only makes them fight over the cores. What pytest compiled
# is kept: half the time of collecting tests is making it anew.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal

# What starts processes, or waits for threads.
BUSY := tests/holders tests/exchange tests/jobs/test_gossip_peer.py \
  tests/jobs/test_federate_network.py tests/training/test_together.py tests/training/test_resume.py

# The quick tests, a few minutes on two cores; it says how many were left out.
test: .venv/installed-test
	$(PYTEST) -m "not slow"

# Every test, and every fault that the audit is to find.
test-all: .venv/installed-test
	$(BIN)/forethought audit --self-test
	$(PYTEST)

# The quick tests with the share of lines that ran; below the floor in pyproject.toml it fails.
coverage: .venv/installed-test
	$(PYTEST) -m "not slow" --cov --cov-report=term

# The slow tests but for those that `make waiting` runs, and for repeated ones.
slow: .venv/installed-test
	$(PYTEST) -m "slow and not repeated" $(addprefix --ignore=,$(BUSY))

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/mutants.py --bound
	$(BIN)/python tools/options.py --check
	$(BIN)/python tools/papers.py --check

# The site, in build/site; a broken link or reference is an error.
docs: .venv/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Every supported Python that is on this machine; ALL=1 runs the rooms that need torch as well.
matrix:
	$(PYTHON) .ci/matrix.py $(if $(ALL),--all)

# The rooms that touch kernels under other processors' instructions: SETS="default avx2 own".
instruction-sets: .venv/installed-test
	$(BIN)/python .ci/instruction_sets.py $(SETS)

# The tests that start processes, or wait for threads, beside a spinning process for each core.
busy: .venv/installed-test
	.ci/busy env $(PYTEST) -p no:cacheprovider $(BUSY)

# The slow ones of them, beside nothing of its own; `make test` has the others.
waiting: .venv/installed-test
	$(PYTEST) -m "slow and not repeated" -p no:cacheprovider $(BUSY)

# Every figure of README and docs that a committed result holds, against that result.
figures: .venv/installed-test
	$(BIN)/python -m pytest -q -p no:cacheprovider .ci/figures

# One change at a time that soundness hangs on: a test must fail. WORDS="radius" takes those with it.
mutants: .venv/installed-test
	$(BIN)/python .ci/mutants.py $(WORDS)

# Files and functions that a value passes on its way, and the size of it all, beside their ceilings.
stations: .venv/installed-test
	$(BIN)/python .ci/stations.py --check

# Run ruff, mypy and the layers before every commit.
hooks: .venv/installed-test
	$(BIN)/pre-commit install

# The small presets of every experiment, one after the other. DATA is the folder with the data sets.
DATA ?= ../shared/data
experiments: export FORETHOUGHT_DATA := $(DATA)
experiments: .venv/installed
	set -e; for script in experiments/proactive_dp/tables.py \
	  experiments/proactive_dp/logistic_regression.py experiments/proactive_dp/lenet.py \
	  experiments/proactive_dp/utility_graph.py experiments/*/run.py; do \
	  echo "$$script"; $(BIN)/python $$script; done

# Everything at its full size, the shortest first: `make full HOURS=10` runs what fits and lists the
# rest, `make full ESTIMATE=--estimate` says how long each takes. Without either: years.
full: .venv/installed
	$(BIN)/python experiments/full.py --data $(DATA) $(ESTIMATE) $(if $(HOURS),--hours $(HOURS))

clean:
	rm -rf .venv runs
