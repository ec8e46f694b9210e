# `make quickstart` and `make test` do all the set-up themselves; `make help` lists the rest.
PYTHON ?= python3
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 600
FUZZ_JOBS ?= 2

# Each process would compile what it imports where this is set.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check -qq install --constraint constraints.txt
FACTS := constraints.txt pyproject.toml setup.py
MERMAID_VERSION := 11.17.2
MERMAID := $(VENV)/mermaid/node_modules/mermaid/dist/mermaid.min.js
# What has changed since: else each process of the tests would compile it for itself.
COMPILE := $(BIN)/python -m headrace.stages.library.warm >/dev/null & $(BIN)/python -c 'import headrace.loader.batch.kernels'; wait

DAEMONS := slurmctld slurmd munged sshd
TESTS := $(BIN)/python -m pytest -m "not slow and not trainers" -n 3 --durations 25
RUNS := tests/run tests/live tests/hosts
HOUSE := $(BIN)/python -m pytest -q -m "not slow" tests/house

.DEFAULT_GOAL := help
.PHONY: help quickstart wheels docs man screens codes test runs suite check types walls mutants kill fuzz search trainers peers launches chaos recovery format protos diagrams reference clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1@\2/p' $(MAKEFILE_LIST) | awk -F@ '{ printf "%-18s %s\n", $$1, $$2 }'

quickstart: $(VENV)/.quickstart  ## the main job on text that is on this machine, without torch, in about two minutes
	@$(BIN)/headrace quickstart

wheels: man  ## dist/: the sdist and the wheel of headrace with man pages and compiled loops, and the wheel of headrace-loader
	@$(INSTALL) build
	@rm -rf dist build/lib wheels/loader/build
	@echo "compiling the loops (a minute or two)"
	@$(BIN)/python -m headrace.stages.text.machine.build build/loops >/dev/null
	@$(BIN)/python -m build --quiet --sdist --outdir dist .
	@HEADRACE_LOOPS=1 $(BIN)/python -m build --quiet --wheel --outdir dist .
	@$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist wheels/loader
	@rm -rf build/lib wheels/loader/build
	@ls dist/*

docs: $(VENV)/.docs man  ## build/site: the docs as a site, built without a network; a link that leads nowhere fails
	@NO_MKDOCS_2_WARNING=1 MERMAID=$(MERMAID) $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

man: $(VENV)/.installed  ## man/: a page of each command, from what --help says; `man -M man headrace-run` shows one
	@$(BIN)/python -m headrace.cli.manual man/man1

screens: $(VENV)/.docs  ## docs/screens: what the terminal and the page show; needs Chromium
	$(BIN)/python -m tests.kits.page.screens docs/screens

test: $(VENV)/.dev  ## every test but whole runs and the long suites, in three processes
	@$(COMPILE)
	$(TESTS) $(RUNS:%=--ignore %) $(PYTEST_ARGS)

runs: $(VENV)/.dev  ## whole runs and clusters of real processes, most of them with deaths
	@$(COMPILE)
	$(TESTS) $(RUNS) $(PYTEST_ARGS)

suite: $(VENV)/.dev  ## both at once, as .ci/run has them
	@$(COMPILE)
	$(TESTS) $(PYTEST_ARGS)

check: $(VENV)/.dev  ## ruff, mypy, pyright and the walls between the folders
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory --jobs --output-sync types walls

types:
	$(BIN)/pyright -p .typing --pythonpath $(BIN)/python

walls:
	$(BIN)/mypy
	$(HOUSE)

mutants: $(VENV)/.dev  ## 200 changes of the cores, one at a time, and whether a test or the simulator notices; half an hour
	$(BIN)/python -m tests.mutants.mutate

kill: $(VENV)/.dev  ## the long suites: all seeds of the kills, and what is marked slow
	$(BIN)/python -m pytest -m "slow or kill" $(PYTEST_ARGS)

codes: $(VENV)/.dev  ## tokens against those of tokenizers, on every code point of Unicode in four contexts
	$(BIN)/python -m pytest -m slow -k every_code_point tests/stages/tokenizer/test_engine_choice.py $(PYTEST_ARGS)

fuzz: $(VENV)/.dev  ## every decoder under a fuzzer for FUZZ_SECONDS (600) in all sessions, FUZZ_JOBS at a time (2); a session may be ended
	$(BIN)/python -m tests.fuzz.run all --campaign benchmarks/results/fuzz.json --seconds $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS)

search: $(VENV)/.dev  ## the property tests on fresh examples, ten times as many as the suite's
	$(BIN)/python -m pytest -m "not slow and not trainers" --hypothesis-profile=search $$(grep -rlE '^(from|import) hypothesis' tests --include='test_*.py') $(PYTEST_ARGS)

trainers: $(VENV)/.trainers  ## Lightning, transformers, TRL, Accelerate, torchtitan, Megatron and torch's checkpoints, killed and resumed
	$(BIN)/python -m pytest -m trainers $(PYTEST_ARGS)

peers: $(VENV)/.dev .peers/.made  ## datatrove and Ray Data in an environment of their own (.peers), with Headrace's stages
	HEADRACE_TEST_PEERS_PYTHON=$(CURDIR)/.peers/bin/python $(BIN)/python -m pytest tests/stages/interop $(PYTEST_ARGS)

launches: $(VENV)/.dev .peers/.made  ## launches on real Slurm, ssh and Ray that lose a node, and the schema of Kubernetes; as root, with the daemons of DAEMONS installed
	@for name in $(DAEMONS); do PATH=/usr/sbin:/usr/bin command -v $$name >/dev/null || \
		{ echo "$$name is not installed; Debian: apt install slurmctld slurmd slurm-client munge openssh-server" >&2; exit 1; }; done
	HEADRACE_TEST_RAY_PYTHON=$(CURDIR)/.peers/bin/python HEADRACE_TEST_KUBERNETES_PYTHON=$(CURDIR)/.peers/bin/python \
		$(BIN)/python -m pytest -m slow tests/client/launch $(PYTEST_ARGS)

chaos: $(VENV)/.dev  ## the example scenarios of headrace chaos run, each against a run without faults
	$(BIN)/python -m pytest -m slow tests/live $(PYTEST_ARGS)

recovery: $(VENV)/.dev  ## 200 seeded runs that lose tasks, workers and controllers; ten minutes
	$(BIN)/python benchmarks/recovery.py --seeds 200

format: $(VENV)/.dev  ## put imports and layout in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(VENV)/.dev  ## the stubs of protos/control.proto
	$(BIN)/python -m grpc_tools.protoc -Iheadrace/protos=protos --python_out=.typing --pyi_out=.typing \
		--grpc_python_out=.typing headrace/protos/control.proto

diagrams: $(VENV)/.dev  ## the state diagrams of docs, from the transition tables
	$(BIN)/python -m headrace.cli.diagrams docs/architecture.md docs/guide/dedup.md docs/design/dedup-index.md \
		docs/design/surgery.md docs/design/scaling.md docs/design/queues.md

reference: $(VENV)/.dev  ## docs/reference/commands.md, from what --help says
	$(BIN)/python -m headrace.cli.manual docs/reference/commands.md

clean:  ## remove .venv and what the tools keep; ./data stays
	rm -rf $(VENV) .peers build dist man headrace.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# The stamps below make the set-up happen once, and again when a pin or the packaging changes.

$(VENV)/.made:
	@test "$$(uname -s)" = Linux || { echo "headrace runs on Linux only (shared memory, futex, memfd); this is $$(uname -s)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "headrace needs Python 3.11 or later and '$(PYTHON)' is not; name one that is: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "'$(PYTHON)' has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made $(FACTS)
	@echo "installing headrace and what it needs into $(VENV) (once; about a minute)"
	@$(INSTALL) -e .
	@touch $@

# The site fetches nothing from others when it is built or read: the library that draws diagrams comes with it.
$(VENV)/.docs: $(VENV)/.installed mkdocs.yml
	@echo "installing what builds the site into $(VENV) (once)"
	@$(INSTALL) -e '.[docs]'
	@npm install --silent --ignore-scripts --no-audit --no-fund --prefix $(VENV)/mermaid mermaid@$(MERMAID_VERSION)
	@touch $@

$(VENV)/.quickstart: $(VENV)/.installed
	@echo "compiling the filters (once; about half a minute)"
	@$(BIN)/python -m headrace.stages.library.warm >/dev/null
	@touch $@

# Byte code is made of what is imported: of all, it would take three minutes.
# torch first and by itself: where a CPU build lies behind the pin it is taken, and the rest finds it there.
$(VENV)/.dev: $(VENV)/.made $(FACTS) tests/kits/inputs/readers.py
	@echo "installing torch into $(VENV) (once)"
	@$(INSTALL) --no-compile torch==2.13.0
	@echo "installing headrace, its tests and its checkers into $(VENV) (once; a minute or two)"
	@$(INSTALL) --no-compile -e '.[dev,loader]'
	@$(BIN)/python tests/kits/inputs/readers.py
	@echo "compiling the filters (once; about half a minute)"
	@$(BIN)/python -m headrace.stages.library.warm >/dev/null
	@touch $@

# datatrove wants xxhash below 4.
.peers/.made: $(FACTS)
	@echo "installing datatrove, Ray and the schema of Kubernetes into .peers (once; a minute or two)"
	@$(PYTHON) -m venv .peers
	@grep -v '^xxhash==' constraints.txt >.peers/constraints.txt
	@.peers/bin/python -m pip --disable-pip-version-check -qq install --constraint .peers/constraints.txt -e . 'datatrove>=0.10,<0.11' 'xxhash<4' 'ray[data]>=2.50,<3' spacy nltk regex kubernetes-validate
	@touch $@

$(VENV)/.trainers: $(VENV)/.dev
	@echo "installing the trainers of others into $(VENV) (once)"
	@$(INSTALL) -e '.[trainers]'
	@$(INSTALL) --no-deps docstring-parser megatron-core spmd-types torchtitan typeguard tyro
	@touch $@
