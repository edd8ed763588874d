# Everything runs in .venv, which every target makes when it is missing and renews when its inputs changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help test test-slow lint types bench pages studies demo example clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

test: lint types ## lint, types and all tests but the slow ones
	$(BIN)/python -m pytest -m 'not slow'

test-slow: $(READY) ## the slow tests
	$(BIN)/python -m pytest -m slow

lint: $(READY) ## ruff: style, imports, docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

bench: $(READY) ## refinement on Fashion-MNIST, against the paper's protocol and against temperature scaling (BURNISH_DATA, or a download)
	$(BIN)/python benchmarks/refinement.py
	$(BIN)/python benchmarks/refine.py

studies: $(READY) ## the four studies of docs/studies.md: records, tables and figures, in about ten minutes
	for name in logistic-integral linearised-vs-mc mpa-vs-mc toy-logistic; do \
		$(BIN)/burnish study $$name --out .cache/studies && cp .cache/studies/$$name.json results/study-$$name.json || exit 1; \
	done
	$(MAKE) pages

pages: $(READY) ## tables and figures of README and docs from the records in results/
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/figures.py

demo: $(READY) ## train on scikit-learn's digits, refine, compare, write a report and say where it is
	$(BIN)/burnish demo --out .cache/demo

example: $(READY) ## a two-dimensional posterior against its grid: a table and a picture
	$(BIN)/python examples/two_dimensions.py

clean: ## remove the environment and all caches
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
