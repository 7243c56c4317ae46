# Each verb needs Python 3.11 or 3.12 and a C compiler, nothing else: the first one run makes a virtual environment and
# installs requirements/dev.txt into it. To use an interpreter that has everything already, such as one with a GPU build
# of PyTorch, name it, and nothing is installed: `make test PY=python3`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help reproduce test lint paper

PYTHON ?= python3
VENV ?= .venv
ifndef PY
PY := $(VENV)/bin/python
ready := $(VENV)/.ready
endif

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' Makefile | expand -t 18

reproduce: $(ready) ## measure what suits this machine, then build figures, tables and the paper
	$(PY) -m experiments.reproduce

# Two processes, because one with Triton's interpreter cannot compile; tests/conftest.py says more.
test: $(ready) ## run the tests, and again with kernels in Triton's interpreter those that compute
	@mkdir -p build; failed=0; \
	env -u TRITON_INTERPRET $(PY) -m pytest -n 2 | tee build/test-all.log || failed=1; \
	TRITON_INTERPRET=1 $(PY) -m pytest -n 2 -m "device or interpreter" | tee build/test-interpreter.log || failed=1; \
	echo "all tests:      $$(tail -n 1 build/test-all.log)"; \
	echo "in interpreter: $$(tail -n 1 build/test-interpreter.log)"; \
	exit $$failed

lint: $(ready) ## check style, types and who imports whom
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

paper: $(ready) ## build figures, tables, numbers and the PDF from the stored results
	$(PY) -m paper

$(VENV)/.ready: requirements/dev.txt
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 12) else \
	  'Expected Python 3.11 or 3.12, got %d.%d: name one, for example make PYTHON=python3.12.' % v)"
	@echo "Installing requirements/dev.txt into $(VENV): once, and some minutes where PyTorch is a GPU build."
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --requirement requirements/dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
