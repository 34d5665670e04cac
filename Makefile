# One set-up, a few words. `make` lists them.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
# One more than CI has cores, as tests often wait. The order of the files is that of tests/conftest.py.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder
RAY := tests/ray tests/rllib src/envfleet/rllib src/envfleet/workers/transports/ray
# Tests of the fleet that use torch or Stable-Baselines3, which the light set-up does not have.
HEAVY := $(addprefix --ignore=tests/unit/fleet/test_,fleet_released.py fleet_vector_rewards.py infos.py \
	layout_actions.py leaves.py rollout_advantages.py)
# The newest Python that is tested, also where pyenv hides it.
NEWEST ?= $(shell for one in python3.13 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.13*/bin/python3.13; do \
	$$one -c '' 2> /dev/null && echo $$one && break; done)
VERSIONS := tests/unit/fleet tests/unit/adapters tests/unit/testing/test_conformance.py tests/unit/test_make.py \
	tests/unit/transforms tests/unit/envs/test_toy_text.py tests/fault/test_interrupts.py
NEWEST_PIP := .venv-newest/bin/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test quick programs light newest versions lint types imports docs bytecode check bench thirdparty clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## Train a hockey player for a minute, and see what it has learned
	@$(BIN)/envfleet demo

# Those with Ray wait much and go beside the others, apart: processes cannot fork safely once Ray was in them.
test: $(READY) programs ## Run all tests
	@log=$$(mktemp); failed=0; trap 'rm -f $$log' EXIT; \
	$(BIN)/pytest $(RAY) > $$log 2>&1 & ray=$$!; \
	$(PYTEST) $(addprefix --ignore=,$(RAY)) || failed=$$?; \
	wait $$ray || failed=$$?; cat $$log; exit $$failed

# What most changes of the fleet would break; every module is tested by `make test`.
quick: $(READY) ## Check style, and test the heart of the fleet (less than a minute)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/pytest -n 3 --dist worksteal -k "not same_step and not disabled and not without_copies and not auto" \
		tests/unit/fleet tests/unit/test_make.py tests/unit/workers/test_memory.py \
		tests/unit/workers/test_replay.py tests/conformance/test_backends.py tests/fault/test_raising.py \
		tests/fault/test_deaths.py

programs:
	@tests/service/programs.sh

lint: $(READY) ## Check format and style
	@echo "lint"
	@$(BIN)/ruff format --quiet --check . || { echo "to mend: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .

# What needs neither torch nor Ray: the fleet, its workers, kernels. Six times smaller and faster than the whole set-up.
light: ## Set up .venv-light for work on the fleet (0.6 GB), and test what it covers
	@test -d .venv-light || $(PYTHON) -m venv .venv-light
	@.venv-light/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[light]'
	@.venv-light/bin/python -m pytest $(HEAVY) \
		tests/unit/fleet tests/unit/workers tests/fault/test_raising.py tests/fault/test_deaths.py

.venv-newest:
	@test -n "$(NEWEST)" || { echo "no Python 3.13: uv python install 3.13, or make newest NEWEST=PATH"; exit 1; }
	@$(NEWEST) -m venv .venv-newest

newest: .venv-newest ## Test the fleet on Python 3.13 with the newest Gymnasium, NumPy and Stable-Baselines3
	@$(NEWEST_PIP) --upgrade --upgrade-strategy eager --editable '.[light,serve]' \
		ale-py envpool stable-baselines3 torchrl
	@.venv-newest/bin/python -m pytest -n 3 --dist loadfile $(VERSIONS) \
		tests/unit/workers tests/conformance tests/fault

# The part of it that depends on versions most, without torch. CI runs it where there is a Python 3.13, so these are pins.
versions: $(if $(NEWEST),.venv-newest) ## Test what depends on versions on Python 3.13 with Gymnasium 1.4 and NumPy 2.5
ifeq ($(NEWEST),)
	@echo "left out: tests with the newest versions, as there is no Python 3.13"
else
	@sed '/^gymnasium==/d; /^numpy==/d' constraints.txt > .venv-newest/pins
	@$(NEWEST_PIP) --constraint .venv-newest/pins --editable '.[light]' gymnasium==1.4.0 numpy==2.5.5
	@.venv-newest/bin/python -m pytest -n 3 --dist loadfile -k "not envpool and not stable_baselines" \
		--ignore-glob='*sb3*' $(HEAVY) $(VERSIONS)
endif

types: $(READY) ## Check types
	@echo "types"
	@$(BIN)/mypy --num-workers auto

imports: $(READY) ## Check that imports run one way
	@echo "imports"
	@$(BIN)/lint-imports --no-logo

docs: $(READY) ## Build the documentation into site/
	@echo "docs"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would hide the warnings from --strict

# Tests import a fifth of what is installed. Their processes begin together, and each would compile all that it imports.
bytecode: $(READY)
	@echo "bytecode"
	@found=$$($(BIN)/pytest --collect-only -qq) || { echo "$$found"; exit 1; }

# Two jobs: the set-up often waits for the network, and not all that checks types can run at once. The longest go first.
check: ## Everything CI runs
	@$(MAKE) --no-print-directory --jobs 2 $(READY) programs
	@$(MAKE) --no-print-directory --jobs 2 --output-sync bytecode types docs imports lint
	@$(MAKE) --no-print-directory test

bench: $(READY) ## Compare fleets and kernels with their peers (20 minutes)
	@$(BIN)/python -m benchmarks fleet kernels --json build/benchmarks.json --plot build/benchmarks.png

# An environment of its own, since these packages need older versions of others.
thirdparty: ## Compare fleets of other packages' environments with Gymnasium (15 minutes)
	@test -d .venv-third-party || $(PYTHON) -m venv .venv-third-party
	@.venv-third-party/bin/python -m pip install -qq --disable-pip-version-check --editable . \
		--requirement tests/third_party/requirements.txt
	@.venv-third-party/bin/python -m pytest --confcutdir tests/third_party -m third_party tests/third_party

clean: ## Remove .venv and everything built
	rm -rf .venv .venv-light .venv-newest .venv-third-party site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# pip goes in first, as the one that Python brings takes twice as long; hatchling, so that the package is built by a
# known version too. Then all pins, by two processes that look for no dependencies, and last whatever is still missing.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("envfleet needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another: make PYTHON=python3.11" % v[:2])'
	@echo "setting up .venv (one to three minutes, once)"
	@$(PYTHON) -m venv .venv
	@$(PIP) pip hatchling editables
	@sed '/^#/d; /^pip==/d' constraints.txt | xargs -P 2 -n 46 $(PIP) --no-compile --no-deps
	@$(PIP) --no-compile --no-build-isolation --editable '.[dev]'
	@touch $@
