# Each target sets up what it needs on first use; Python >= 3.11 and make are enough.
# A torch that PYTHON can import is used as it is, otherwise the one below is installed. For a small, CPU-only one:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo
TORCH := torch==2.13.0
PEER := nvidia-resiliency-ext==0.4.1
VENV ?= .venv
PEER_VENV ?= .venv-peer
DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
unexport PYTHONDONTWRITEBYTECODE	# the tests start thousands of interpreters

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,python3 python python3.13 python3.12 python3.11,$(shell $(p) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(p))))
PY := $(VENV)/bin/python
INSTALL := -m pip install --quiet --disable-pip-version-check
PIP_WITH_GROUPS := pip>=25.1

IMPORT_TORCH := import torch; v = torch.__version__.split("."); assert (int(v[0]), int(v[1])) >= (2, 6)
PACKAGES_PATH := import sysconfig; print(sysconfig.get_path("purelib"))
# Lines of a .pth file. `venv --system-site-packages` would not see the torch of a virtual environment that is active.
SHARE_PACKAGES := import sys; print(*(f"import site; site.addsitedir({p!r})" for p in sys.path if p.endswith("-packages")), sep="\n")
TORCH_AS_FOUND := from importlib.metadata import version; print("torch==" + version("torch"))

# The parts of `make test`, three of which run at a time. The tests of jobs mostly wait: SIDE_BY_SIDE files of them, and
# of whole products, run at a time, those of products first, which take longest, and the documents, beside what only
# computes, at a lower priority: that is left for both cores in the end.
SIDE_BY_SIDE ?= 4
PURE := $(wildcard tests/unit tests/sim)
DOCUMENTS := $(wildcard tests/docs tests/package)
JOBS := $(filter-out %/__pycache__ tests/benchmarks $(PURE) $(DOCUMENTS),$(patsubst %/,%,$(wildcard tests/*/)))
SKIPS := $(filter --only-listed-skips,$(PYTEST_ARGS))
SELECTION := $(filter-out --only-listed-skips,$(PYTEST_ARGS))
PART = -m pytest --quiet --durations=10 $(SKIPS) --part=
# What only computes waits for the others; a test of it may take that long until its stacks are written and it ends.
PATIENT = -o faulthandler_timeout=1500

.DEFAULT_GOAL := help
.PHONY: help demo demo-launcher demo-lightning demo-megatron test test-all test-selection test-parts test-jobs test-searches test-documents coverage check bench bench-peer bench-attribution docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## train a small model, break it on purpose, watch it recover (DEMO_ARGS=--play: break it yourself; --help)
	@$(PY) examples/inprocess/demo.py $(DEMO_ARGS)

demo-launcher: $(VENV)/.installed ## the same with launchers: lose ranks, and a node; beside torchrun (DEMO_ARGS=--help)
	@$(PY) examples/launcher/demo.py $(DEMO_ARGS)

demo-lightning: $(VENV)/.integrations ## the same with PyTorch Lightning: one strategy, one callback
	@$(PY) examples/lightning/demo.py $(DEMO_ARGS)

demo-megatron: $(VENV)/.integrations ## the same with megatron-core: TP=2 and DP=2
	@$(PY) examples/megatron/demo.py $(DEMO_ARGS)

test: $(if $(SELECTION),test-selection,test-parts) ## every test but the long ones (PYTEST_ARGS="-k name")

test-all: coverage ## every test, for the night
	@NVRX_TEST_WHOLE_END=1 $(PY) -m pytest -m "" $(PYTEST_ARGS)

test-selection: $(VENV)/.integrations
	@$(PY) -m pytest $(PYTEST_ARGS)

test-parts: $(VENV)/.integrations
	@echo "4 parts, 3 at a time: jobs and products, units and simulations, documents, searches. Some 20 minutes on 2 cores."
	@echo "Each part tells how far it is, and at its end its failures and its 10 slowest tests."
	@$(MAKE) --no-print-directory --keep-going --jobs=3 test-jobs coverage test-documents test-searches

# The folder of the tests is named in the paths of sockets, which are short.
test-jobs:
	@folder=$$(mktemp -d) && $(PY) $(PART)"jobs and products" --numprocesses=$(SIDE_BY_SIDE) --dist=loadfile \
	  --no-loadscope-reorder --basetemp=$$folder $(JOBS) && rm -rf $$folder

test-searches:
	@nice $(PY) $(PART)searches $(PATIENT) -m "exhaustive and not nightly" tests/sim

test-documents:
	@$(PY) $(PART)documents $(DOCUMENTS)

coverage: $(VENV)/.integrations ## the pure modules: every branch taken by unit tests and simulations
	@nice $(PY) -m coverage run $(PART)"units and simulations" $(PATIENT) -m "not exhaustive and not nightly" $(PURE)
	@$(PY) -m coverage report

check: $(VENV)/.integrations ## ruff, mypy, import contracts
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
	@PYTHONPATH=integrations:launcher $(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

bench: $(VENV)/.installed ## how fast it recovers, and what it costs meanwhile
	@$(PY) tests/benchmarks/bench.py $(BENCH_ARGS)

bench-peer: $(VENV)/.installed $(PEER_VENV)/.installed ## the same and the launchers (P8, P9b) beside nvidia-resiliency-ext
	@$(PY) tests/benchmarks/bench.py --peer $(PEER_VENV)/bin/python $(BENCH_ARGS)
	@$(if $(BENCH_ARGS),,$(PY) tests/benchmarks/launchers.py --peer $(PEER_VENV)/bin/python)

bench-attribution: $(VENV)/.installed ## how well nvrx-why names what has failed, on logs that its rules were not written by
	@$(PY) tests/benchmarks/attribution.py --megabytes 32 $(BENCH_ARGS)

docs: $(VENV)/.integrations ## the documents as a site in build/site, with every code block tried
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@$(PY) -m pytest tests/docs $(PYTEST_ARGS)
	@echo "read it: $(PY) -m http.server --directory build/site (its search needs a server)"

clean: ## remove caches and builds; the environments stay
	@rm -rf build dist .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find nvrx_core tests examples integrations launcher -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/.installed: pyproject.toml
	$(call create_environment,$(VENV))
	@$(PY) -c '$(IMPORT_TORCH)' 2>/dev/null \
	|| { $(PYTHON) -c '$(IMPORT_TORCH)' 2>/dev/null \
	     && $(PYTHON) -c '$(SHARE_PACKAGES)' > "$$($(PY) -c '$(PACKAGES_PATH)')/torch_as_found.pth" \
	     && $(PY) -c '$(IMPORT_TORCH)' 2>/dev/null; } \
	|| { echo "installing $(TORCH)"; $(PY) $(INSTALL) $(TORCH); }
	@$(PY) -c '$(TORCH_AS_FOUND)' > $(VENV)/constraints.txt
	@$(PY) $(INSTALL) '$(PIP_WITH_GROUPS)'
	@echo "installing nvrx, and what its tests and documents need"
	@$(PY) $(INSTALL) --constraint $(VENV)/constraints.txt --editable . --group dev
	@touch $@

# Lightning and Megatron, for the targets that need them.
$(VENV)/.integrations: $(VENV)/.installed
	@echo "installing Lightning and Megatron"
	@$(PY) $(INSTALL) --constraint $(VENV)/constraints.txt --group integrations
	@touch $@

$(PEER_VENV)/.installed:
	$(call create_environment,$(PEER_VENV))
	@$(PEER_VENV)/bin/python $(INSTALL) $(TORCH) $(PEER) numpy
	@touch $@

define create_environment
$(if $(PYTHON),,$(error no Python >= 3.11 found: make PYTHON=/path/to/python))
@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { echo "creating $(1)"; $(PYTHON) -m venv $(1); }
endef
