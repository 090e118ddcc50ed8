# Everything runs in .venv, made on first use. `make demo` needs only what `make install` brings;
# tests also need the extras, and system packages, which are installed where that asks nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
EXTRAS := dev,tensorboard,lightning,accelerate,wandb,mlflow,parquet,datasets,mpi,cluster,notebook,docs
# half of a test's time is waiting, so two run at once; those of a file share what is made for them
RUN := $(if $(COVERAGE),$(BIN)/coverage run,$(BIN)/python)
PYTEST := $(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# what a bare machine lacks; tests that need it are skipped there
LACKING := sshd ssh ssh-keygen ip tc chromium docker docker-compose
# not the files where one test or two of many need a network: these skip as all the others do
CONCERNED = $(shell grep -rlE 'namespaces|sshd|ssh_nodes|twins|browser|ssh-keygen|docker' \
	tests --include='test_*.py' | grep -vE 'training_runs|split_runs|lifecycle|test_rpc|test_bench')

.PHONY: demo test test-long test-all test-bare test-floors soak coverage coverage-report \
	check lint dist install install-dev format labs bench docs clean

demo: install
	$(BIN)/drumline train examples/demo.yaml

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing into $(VENV) (torch is large: this takes a minute or two)"
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing into $(VENV), with what the tests need"
	$(PIP) -e '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.installed

# the quick tests: those that take longer are marked slow and run by test-long
test: install-dev
	@scripts/system-packages
	$(PYTEST)

test-long: install-dev
	@scripts/system-packages
	$(PYTEST) -m slow

test-all: test test-long

# make test, at least 90 % of the lines run by it in any process
coverage: install-dev
	rm -rf .coverage-data
	$(MAKE) test COVERAGE=1
	$(MAKE) coverage-report

coverage-report: install-dev
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# as on a bare machine, the tests that this may concern: each passes or is skipped
test-bare: install-dev
	env -u CI scripts/without $(LACKING) -- $(PYTEST) $(CONCERNED)

# the oldest versions that pyproject.toml allows, in an environment of their own
test-floors: install-dev
	$(BIN)/python scripts/test_floors.py

# PyTorch's own suite for backends on shm and mpi, compared with gloo: about 20 minutes
soak: install-dev
	$(BIN)/python tests/comm/peer_suite.py shm mpi --ranks 2 3 4

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

# what is uploaded to a package index
dist: install-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

labs: install
	for lab in 1 2 3 4; do $(BIN)/drumline lab run $$lab || exit $$?; done

bench: install-dev
	$(BIN)/python benchmarks/run_all.py

# The variable silences a banner about MkDocs' future that is printed on every build.
docs: install-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the documentation is in site/: open site/index.html"

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage-data .venv-floors
