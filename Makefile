# Each verb needs Python 3.11 or 3.12 and a C compiler, nothing else: the first one run makes a virtual environment and
# installs requirements/dev.txt into it. To use an interpreter that has everything already, such as one with a GPU build
# of PyTorch, name it, and nothing is installed: `make test PY=python3`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help reproduce test lint paper readme

PYTHON ?= python3
VENV ?= .venv
ifndef PY
PY := $(VENV)/bin/python
ready := $(VENV)/.ready
endif

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' Makefile | expand -t 18

reproduce: $(ready) ## measure what suits this machine, then build figures, tables and the paper; GPUS=2: on two GPUs
	$(PY) -m experiments.reproduce $(if $(GPUS),--gpus $(GPUS))

# One process with Triton's interpreter, which cannot compile, and one without; tests/conftest.py says more. Kernels are
# compiled by the Triton that is there and, where that is another, by the oldest, which only a process of its own sees.
oldest := $(shell sed -n 's/^triton==//p' requirements/codegen.txt)
has_oldest = $(PY) -c "import sys, triton._C.libtriton; sys.exit(triton.__version__ != '$(oldest)')" 2>/dev/null
# The runs import the same modules: what one has compiled the next finds, also where bytecode is not kept as a rule.
test: export PYTHONDONTWRITEBYTECODE =
test: export older = $(CURDIR)/build/triton-$(oldest)
test: $(ready) ## run the tests, again in Triton's interpreter those that compute, and compile with the oldest Triton
	@mkdir -p build; failed=0; \
	env -u TRITON_INTERPRET $(PY) -m pytest -n 2 | tee build/test-all.log || failed=1; \
	TRITON_INTERPRET=1 $(PY) -m pytest -n 2 -m "device or interpreter" | tee build/test-interpreter.log || failed=1; \
	if $(has_oldest); then \
	  echo "among all tests, which have it" > build/test-codegen.log; \
	elif PYTHONPATH="$$older" $(has_oldest) || { rm -rf "$$older" && $(PY) -m pip install --quiet --no-deps \
	  --target "$$older" --requirement requirements/codegen.txt && PYTHONPATH="$$older" $(has_oldest); }; then \
	  PYTHONPATH="$$older" env -u TRITON_INTERPRET $(PY) -m pytest -n 2 -m codegen | tee build/test-codegen.log || failed=1; \
	else \
	  echo "could not be installed" > build/test-codegen.log; failed=1; \
	fi; \
	echo "all tests:      $$(tail -n 1 build/test-all.log)"; \
	echo "in interpreter: $$(tail -n 1 build/test-interpreter.log)"; \
	echo "Triton $(oldest):   $$(tail -n 1 build/test-codegen.log)"; \
	exit $$failed

lint: $(ready) ## check style, types and who imports whom
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)
	$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

paper: $(ready) ## build figures, tables, numbers and the PDF from the stored results
	$(PY) -m paper

readme: $(ready) ## write the picture and the table of README.md from the stored results
	$(PY) -m paper.readme

$(VENV)/.ready: requirements/dev.txt
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 12) else \
	  'Expected Python 3.11 or 3.12, got %d.%d: name one, for example make PYTHON=python3.12.' % v)"
	@echo "Installing requirements/dev.txt into $(VENV): once, and some minutes where PyTorch is a GPU build."
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --requirement requirements/dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
