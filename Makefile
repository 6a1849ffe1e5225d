# `make` lists the verbs. Everything runs in .venv, which make builds and keeps up to date.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Modules, and tests as pytest rewrites them, are compiled once and not again by every process.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PYTEST_ARGS ?= -n 3 --dist loadscope --no-loadscope-reorder
DEMO_CMD = .venv/bin/python examples/quickstart.py

PIP := .venv/bin/python -m pip --disable-pip-version-check -qq

.PHONY: help install demo check test lint format docs clean

help: ## List these verbs
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

install: .venv/.installed ## Build .venv, or bring it up to date

demo: .venv/.installed ## Train a first federation
	@$(DEMO_CMD)

# One thread per process: the tests of two workers with two threads each take several times as long on two cores.
check test: export OMP_NUM_THREADS ?= 1
check: lint ## While at work: style, types, and the quick tests
	@.venv/bin/pytest ./tests -m 'not slow' $(PYTEST_ARGS)

test: .venv/.installed ## Check style and types, and beside them run the tests and the docstrings' examples (PYTEST_ARGS="-k fedavg")
	@$(MAKE) --no-print-directory --jobs 2 lint tests

.PHONY: tests
tests: .venv/.installed
	@.venv/bin/pytest ./tests --pyargs flgraph --doctest-modules $(PYTEST_ARGS)

lint: .venv/.installed ## Check style and types
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --check --quiet
	@.venv/bin/mypy --no-error-summary flgraph benchmarks

format: .venv/.installed ## Format, and mend what ruff can mend
	@.venv/bin/ruff check --quiet --fix-only
	@.venv/bin/ruff format --quiet

docs: .venv/.installed ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

clean: ## Remove .venv, the site and caches; runs/ stays
	@rm -rf .venv site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The pinned versions come first: a range would let pip take a newer torch with gigabytes of CUDA libraries. Two processes
# unpack them; then pip checks them against pyproject.toml. The pip that comes with Python 3.11 takes twice as long as its
# own successor. Modules are compiled when imported.
.venv/.installed: pyproject.toml constraints.txt
	@echo "Installing flgraph and its tools into .venv (a few minutes the first time)"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@$(PIP) install --constraint constraints.txt --upgrade pip
	@grep == constraints.txt | xargs -P 2 -n 28 $(PIP) install --no-compile --no-deps
	@$(PIP) install --no-compile --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@
