# Everything runs in .venv, made on first use. `make demo` needs only what `make install` brings;
# `make test` and `make check` also install the extras that the tests use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# half of a test's time is waiting: two at once, those that make simulated networks after each other
TESTS := $(BIN)/pytest -n 2
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test soak check lint install install-dev format labs bench docs clean

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
	$(PIP) -e '.[dev,lightning,accelerate,mpi,cluster,notebook,docs]'
	@touch $@ $(VENV)/.installed

test: install-dev
	$(TESTS)

soak: install-dev
	$(TESTS) -m 'soak or not soak'

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

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
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
