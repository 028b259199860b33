# make quickstart   the main job on an embedded default, offline after installation
# make test         style, types and every test, in an environment of its own
# make test-fast    the tests of mathematics, data and methods, for the edit loop
# make wheel        the wheel, run by uvx and by pipx with its declared dependencies only: a short distil, the version
# make docs         the documentation site, into site/; strict, and offline after the first time
# make coverage     the tests again with the lines of src that they run
# make clients      every script of examples/clients in an environment of its own; LLAMA_CPP=folder adds llama.cpp
# make lock         write requirements/lock.txt from the current environment

PYTHON ?= python3
VENV   := .venv
PIP    := $(VENV)/bin/pip install --quiet --disable-pip-version-check

# Byte code of src and tests is kept for the next process, also where the environment forbids it
export PYTHONDONTWRITEBYTECODE =

.PHONY: quickstart docs test test-fast wheel coverage clients check format lock clean

quickstart: $(VENV)/quickstart
	$(VENV)/bin/distilvec quickstart

# Without KaTeX (npm) the tests of the site are skipped
test: $(VENV)/dev .compat/installed .stores/installed check
	-$(MAKE) --no-print-directory .katex/installed
	DISTILVEC_REQUIRE_COMPAT=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist worksteal --durations=15 -rs

# tests/e2e/test_readme.py runs the guide's commands from a wheel, in the environment of the tests. Here a dependency that
# only the tests' packages bring would be missing: uvx and pipx make environments of their own.
wheel: $(VENV)/pip
	rm -rf dist .wheel
	$(VENV)/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv .wheel
	.wheel/bin/pip install --quiet --disable-pip-version-check uv pipx
	cd .wheel && DISTILVEC_CACHE=cache UV_FIND_LINKS="$$PIP_FIND_LINKS" bin/uvx --python bin/python -c ../requirements/lock.txt \
		--from "$$(ls ../dist/*.whl)[quickstart]" distilvec distill all-MiniLM-L6-v2 python-docstrings --layers 2 --out run \
		corpus.sources.0.limit=300 train.max_steps=10
	cd .wheel && PIPX_HOME=pipx UV_FIND_LINKS="$$PIP_FIND_LINKS" bin/pipx run --python $(CURDIR)/.wheel/bin/python \
		--pip-args="-c $(CURDIR)/requirements/lock.txt" --spec "$$(ls $(CURDIR)/dist/*.whl)[quickstart]" distilvec --version

docs: $(VENV)/dev .katex/installed
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

# The tracer makes the tests take two thirds more time: CI runs this beside `make test`
coverage: $(VENV)/dev .stores/installed
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered

test-fast: $(VENV)/dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist worksteal -m "not slow" tests/core tests/config tests/data tests/losses tests/methods tests/alignment

clients: $(VENV)/dev
	$(VENV)/bin/python -m experiments.clients --json results/clients.json $(if $(LLAMA_CPP),--llama-cpp $(LLAMA_CPP))

check: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

format: $(VENV)/dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"
	touch $@

$(VENV)/quickstart: $(VENV)/pip pyproject.toml requirements/lock.txt
	$(PIP) -c requirements/lock.txt -e ".[quickstart]"
	touch $@

$(VENV)/dev: $(VENV)/pip pyproject.toml requirements/lock.txt
	$(PIP) -c requirements/lock.txt -e ".[all]" --group dev
	touch $@ $(VENV)/quickstart

# sentence-transformers 5.1.2 beside the current one: saved students must load in both
.compat/installed: requirements/compat.txt | $(VENV)/pip
	rm -rf .compat
	$(PIP) --target .compat --no-deps -r requirements/compat.txt
	touch $@

# Packages of stores whose pins are not those of the development environment: the tests write indexes with them
.stores/installed: requirements/stores.txt | $(VENV)/pip
	rm -rf .stores
	$(PIP) --target .stores --no-deps -r requirements/stores.txt
	touch $@

# KaTeX sets the equations while the site is built; its style sheet and fonts are copied into the site
.katex/installed: requirements/katex.sha512
	rm -rf .katex && mkdir .katex
	cd .katex && npm pack --silent --ignore-scripts katex@0.19.1 iframe-worker@1.0.4 >/dev/null && sha512sum --quiet --check ../$<
	cd .katex && tar xzf katex-0.19.1.tgz --strip-components=2 package/dist && rm katex-0.19.1.tgz
	cd .katex && mkdir iframe-worker && tar xzf iframe-worker-1.0.4.tgz -C iframe-worker --strip-components=2 package/shim
	rm .katex/iframe-worker-1.0.4.tgz
	touch $@

lock:
	$(VENV)/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements/lock.txt

clean:
	rm -rf $(VENV) .wheel .compat .stores .katex site .pytest_cache .mypy_cache .ruff_cache dist
