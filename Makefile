# make evals ARGS="…"   run the evals (anything pytest takes)
# make test  ARGS="…"   lint, then the project's own tests, on up to four cores; ARGS=-n0: one after the other, in one process
# make test-fast        the tests that need no engine and no browser: about a minute
# make newest ARGS="…"  make test with the newest versions of everything that pyproject.toml allows, in .venv-newest
# make max  ARGS="…"    the tests of MAX, in .venv-max: it needs an older transformers than all else; its first start compiles for minutes
# make lint             ruff and mypy
# make docs             docs/ as a site, in site/: it opens from disk and loads nothing from the network
# make format           let ruff rewrite the sources
#
# Needs Python 3.10 or newer with pip, make and git; nothing has to be activated. The first call creates .venv and installs
# into it (minutes; 4.8 GB with vLLM for the CPU, 7.1 GB with torch from PyPI); later calls do so only after pyproject.toml or
# the constraints changed.
# vLLM is left out, and a line says so, for Python 3.10 and where pip finds no CPU build of torch.
#
# PYTHON=python3.12     another interpreter for a new .venv
# ARGS="…"              arguments for pytest
# TORCH_CPU_INDEX=URL   PyTorch's index of CPU wheels, for where pip as configured does not find torch's CPU build

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
TORCH_CPU_INDEX ?=
NEWEST ?=
MAX_VENV ?= .venv-max
DOCS_VENV ?= .venv-docs

KIND := $(if $(shell nvidia-smi -L 2>/dev/null),gpu,cpu)
STAMP := $(VENV)/.installed-$(KIND)

# So that tools which packages start by name (ninja) are found without an activated environment.
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: help install evals test test-fast newest max lint docs format

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

install: $(STAMP)

$(STAMP): pyproject.toml $(wildcard constraints*.txt) .ci/make_environment.sh
	@TORCH_CPU_INDEX='$(TORCH_CPU_INDEX)' NEWEST='$(NEWEST)' .ci/make_environment.sh $(PYTHON) $(VENV) $(KIND)

evals: $(STAMP)
	@cat $(STAMP)
	$(VENV)/bin/python -m pytest evals $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# A worker more than there are cores, up to four (tests/conftest.py): with more, all others wait for the one that has vLLM. Compiled
# modules are kept, whatever the environment says: hundreds of processes import the package, each would compile it.
test: lint
	@cat $(STAMP)
	env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest tests -n auto --dist loadfile --timeout=900 $(ARGS)

test-fast: $(STAMP)
	env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest tests --fast -n logical --maxprocesses 4 --dist loadfile --timeout=300 $(ARGS)

newest:
	$(MAKE) test VENV=.venv-newest NEWEST=yes

# torch makes the tests' checkpoint and says what is right; MAX itself needs none.
$(MAX_VENV)/.installed: pyproject.toml constraints-max.txt
	[ -x $(MAX_VENV)/bin/python ] || $(PYTHON) -m venv $(MAX_VENV)
	$(MAX_VENV)/bin/python -m pip install --quiet $(if $(TORCH_CPU_INDEX),--extra-index-url $(TORCH_CPU_INDEX)) \
	    -c constraints-max.txt -e '.[max]' torch hypothesis pytest-timeout
	touch $@

max: $(MAX_VENV)/.installed
	$(MAX_VENV)/bin/python -m pytest -n0 --timeout=1800 tests/backends/max tests/backends/openai/test_openai_on_max.py tests/contract \
	    -k 'test_backend.py or on_max or [max' $(ARGS)

# In an environment of its own, which takes seconds. --strict: a broken link fails.
$(DOCS_VENV)/.installed: constraints.txt
	[ -x $(DOCS_VENV)/bin/python ] || $(PYTHON) -m venv $(DOCS_VENV) || { $(PYTHON) -m venv --clear --without-pip $(DOCS_VENV) \
	    && $(PYTHON) -m pip --python $(DOCS_VENV)/bin/python install --quiet pip; }
	$(DOCS_VENV)/bin/python -m pip install --quiet -c constraints.txt mkdocs-material
	touch $@

docs: $(DOCS_VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
