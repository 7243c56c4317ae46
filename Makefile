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

# Two processes, because a process with Triton's interpreter cannot compile. A GPU repeats the device tests.
test: $(ready) ## run the tests: kernels in Triton's interpreter, code generation, and the GPU where there is one
	@mkdir -p build; failed=0; marked=codegen; \
	if $(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then marked="codegen or gpu or device"; fi; \
	TRITON_INTERPRET=1 $(PY) -m pytest -n 2 -m "not codegen" | tee build/test-interpreted.log || failed=1; \
	env -u TRITON_INTERPRET $(PY) -m pytest -n 2 -m "$$marked" | tee build/test-compiled.log || failed=1; \
	for log in interpreted compiled; do echo "kernels $$log: $$(tail -n 1 build/test-$$log.log)"; done; \
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
