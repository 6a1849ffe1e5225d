# `make` lists the verbs. Everything runs in .venv, which make builds and keeps up to date.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
PYTEST_ARGS ?= -n 2 --dist loadscope --no-loadscope-reorder
DEMO_CMD = .venv/bin/python examples/quickstart.py

PIP := .venv/bin/python -m pip --disable-pip-version-check -qq
EDITABLE := --no-build-isolation --config-settings editable_mode=strict --editable
TORCH := $(shell grep '^torch==' constraints.txt)
SETUPTOOLS := $(shell grep '^setuptools==' constraints.txt)

.PHONY: help install demo test lint format clean FORCE

help: ## List these verbs
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

install: build/.linked ## Build .venv, or bring it up to date

demo: build/.linked ## Train a first federation
	@$(DEMO_CMD)

# One thread per process: the tests of two workers with two threads each take several times as long on two cores.
test: export OMP_NUM_THREADS ?= 1
test: lint ## Check style and types, then run the tests and the docstrings' examples (PYTEST_ARGS="-k fedavg")
	@.venv/bin/pytest ./tests --pyargs flgraph --doctest-modules $(PYTEST_ARGS)

# mypy knows no package-dir, so it runs where the editable install has laid the package out as users get it.
lint: build/.linked ## Check style and types
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --check --quiet
	@cd build/__editable__.flgraph-* && $(CURDIR)/.venv/bin/mypy --config-file $(CURDIR)/pyproject.toml \
		--cache-dir $(CURDIR)/.mypy_cache --no-error-summary -p flgraph | sed 's#^flgraph/callbacks/#callbacks/#'

format: build/.linked ## Format, and mend what ruff can mend
	@.venv/bin/ruff check --quiet --fix-only
	@.venv/bin/ruff format --quiet

clean: ## Remove .venv, builds and caches; runs/ stays
	@rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and exactly: a range would let pip take a newer build with gigabytes of CUDA libraries.
.venv/.installed: pyproject.toml constraints.txt
	@echo "Installing flgraph and its tools into .venv (a few minutes the first time)"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@$(PIP) install $(TORCH) $(SETUPTOOLS) --constraint constraints.txt
	@rm -rf build/__editable__.*
	@$(PIP) install --constraint constraints.txt $(EDITABLE) '.[dev]'
	@touch $@

# A strict editable install is a folder of links, one per file, in build/: a file that comes or goes needs it laid out
# again. build/.sources lists the files and changes only when the list does.
build/.sources: FORCE | .venv/.installed
	@mkdir -p build
	@find flgraph callbacks configs -type f ! -path '*/__pycache__/*' ! -name '.*' | LC_ALL=C sort > $@.new
	@if cmp --silent $@.new $@; then rm $@.new; else mv $@.new $@; fi

build/.linked: .venv/.installed build/.sources
	@$(PIP) install --no-deps $(EDITABLE) .
	@touch $@
