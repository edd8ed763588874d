# Everything runs in .venv, which every target makes when it is missing and renews when its inputs changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
# a process for each core and a thread for each process: most tests are too small to share cores
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile
SMALL ?= .cache/reproduce-small

.PHONY: help test test-slow lint types bench docs studies reproduce reproduce-small demo example clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

test: lint types ## lint, types and all tests but the slow ones
	$(PYTEST) -m 'not slow'

test-slow: $(READY) ## the slow tests
	$(PYTEST) -m slow

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
	$(MAKE) docs

# DEVICE=cuda: images take a GPU about an hour with training, and a CPU days; texts, few points and tables a CPU some hours
reproduce: $(READY) ## the records of studies of networks on the real data sets (BURNISH_DATA, or a download), all of them anew; then the pages
	for dataset in fashion-mnist cifar-10 cifar-100; do for protocol in paper ours; do \
		for name in image-calibration ood shift few-vs-many flow-from-prior marginals correlation; do \
			test -e results/images/$$name-$$dataset-$$protocol.json || continue; \
			$(BIN)/burnish study $$name --dataset $$dataset --protocol $$protocol --device $(or $(DEVICE),cpu) \
				--work .cache/work --out results/images || exit 1; \
		done; done; done
	for dataset in 20-newsgroups sst-binary sst-fine trec-coarse trec-fine; do for protocol in paper ours; do \
		$(BIN)/burnish study text --dataset $$dataset --protocol $$protocol --work .cache/work --out results/texts || exit 1; \
	done; done
	for dataset in fashion-mnist cifar-10 20-newsgroups; do \
		$(BIN)/burnish study few-shot --dataset $$dataset --device $(or $(DEVICE),cpu) --work .cache/work --out results || exit 1; \
	done
	for name in all-layer costs; do \
		$(BIN)/burnish study $$name --device $(or $(DEVICE),cpu) --work .cache/work --out results || exit 1; \
	done
	$(BIN)/burnish study tabular --work .cache/work --out results
	$(MAKE) docs

# one lane after another for each data set and protocol, two at a time
reproduce-small: $(READY) ## the studies of networks at a small scale, on made data: records, tables and figures, in less than five minutes
	$(MAKE) --jobs 2 small-fashion-mnist-paper small-cifar-100-paper small-fashion-mnist-ours small-cifar-10-ours \
		small-trec-coarse-paper small-sst-binary-ours small-parts

small-parts: $(READY)
	for name in 'few-shot --dataset cifar-10' tabular costs all-layer; do \
		OMP_NUM_THREADS=1 $(BIN)/burnish study $$name --small --out $(SMALL) || exit 1; \
	done

small-%: $(READY)
	protocol=$(lastword $(subst -, ,$*)); dataset=$(patsubst %-$(lastword $(subst -, ,$*)),%,$*); \
	case $$dataset in \
		fashion-mnist) names='image-calibration ood shift few-vs-many flow-from-prior marginals correlation';; \
		cifar-*) names='image-calibration ood shift';; \
		*) names=text;; \
	esac; \
	for name in $$names; do \
		OMP_NUM_THREADS=1 $(BIN)/burnish study $$name --small --dataset $$dataset --protocol $$protocol --out $(SMALL) || exit 1; \
	done

docs: $(READY) ## tables and figures of README and docs from the records in results/, none of which may be missing or outdated
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/figures.py

demo: $(READY) ## train on scikit-learn's digits, refine, compare, write a report and say where it is
	$(BIN)/burnish demo --out .cache/demo

example: $(READY) ## a two-dimensional posterior against its grid: a table and a picture
	$(BIN)/python examples/two_dimensions.py

clean: ## remove the environment and all caches
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
