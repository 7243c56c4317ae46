# Two commands need nothing but Python 3.11 or 3.12 and a C compiler: `make reproduce` and `make test`.
# They make a virtual environment of their own. To use an interpreter that has everything already, such as one with a
# GPU build of PyTorch, name it, and nothing is installed: `make test PY=python3`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help reproduce test lint paper

PYTHON ?= python3
VENV ?= .venv
ifdef PY
ready :=
else
PY := $(VENV)/bin/python
ready := $(VENV)/.ready
endif

# The second test process compiles ahead of time; where there is a GPU it also repeats the device tests on it.
compiled := $(if $(shell nvidia-smi -L 2>/dev/null),codegen or gpu or device,codegen)

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 20

reproduce: $(ready) ## measure what suits this machine, then build figures, tables and the paper
	$(PY) -m experiments.reproduce

test: $(ready) ## run the tests: kernels in Triton's interpreter, code generation, and the GPU where there is one
	@mkdir -p build; failed=0
	TRITON_INTERPRET=1 $(PY) -m pytest -n 2 -m "not codegen" 2>&1 | tee build/test-interpreted.log || failed=1
	$(PY) -m pytest -n 2 -m "$(compiled)" 2>&1 | tee build/test-compiled.log || failed=1
	echo "kernels interpreted: $$(tail -n 1 build/test-interpreted.log)"
	echo "kernels compiled:    $$(tail -n 1 build/test-compiled.log)"
	exit $$failed

lint: $(ready) ## style, types and import rules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright
	$(PY) -c "from importlinter.cli import lint_imports_command as main; main()"

paper: $(ready) ## build figures, tables, numbers and the PDF from the stored results
	$(PY) -m paper

$(VENV)/.ready: requirements/dev.txt
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 12) else \
	  'expected Python 3.11 or 3.12, got %d.%d; name one, for example: make PYTHON=python3.12' % v)"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --requirement requirements/dev.txt
	$(VENV)/bin/python -m pip install --no-deps --no-build-isolation --editable .
	touch $@
