# make lab opens the laboratory, make test checks it. Both need only Python 3.11 or newer and make.

VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# A file a process, in their order: the pages in a browser come first, and wait while the others work. A process that
# crashes is not started again: pytest-xdist would run its file once more, and crash once more.
PYTEST = $(BIN)/python -m pytest --numprocesses=logical --dist=loadfile --no-loadscope-reorder --max-worker-restart=0
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

help:           ## Say what can be made.
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 14

lab: $(VENV)/lab.stamp           ## Open JupyterLab on copies of the notebooks, in work, that no update overwrites.
	$(BIN)/python -m tools.open_lab

test: lint $(VENV)/test.stamp    ## Check style, types, arrows, examples, every room and notebook: before each commit.
	$(PYTEST) --doctest-modules --doctest-glob="*.md" parlab docs/toolbox.md
	$(PYTEST) -m "not slow"

test-all: $(VENV)/test.stamp     ## Check the rest: every lesson in a browser and as on a GPU, marking, signals, engines.
	$(PYTEST) -m slow tests

newest: BIN := build/newest/$(notdir $(BIN))
newest:         ## Check the same with the newest versions of all libraries, in a venv of its own.
	$(PYTHON) -m venv build/newest
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable ".[lab,test]"
	$(PYTEST) -m "not slow"

lint: $(VENV)/test.stamp         ## Check style, types, and the arrows between the rooms.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/lab.stamp         ## Measure speed; ONLY=world runs one benchmark.
	$(BIN)/python -m benchmarks $(ONLY)

book: $(VENV)/test.stamp         ## Build the reading edition, to be opened in a browser without a server.
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/book
	@echo "Open build/book/index.html; for excerpts in the search: python -m http.server --directory build/book"

LITE = $(BIN)/python -m tools.lite $(if $(PYODIDE),--pyodide $(PYODIDE)) $(if $(filter no,$(SOLUTIONS)),--no-solutions)

lite: $(VENV)/test.stamp         ## Build the edition that runs in a browser; PYODIDE=folder serves Pyodide, SOLUTIONS=no.
	$(LITE)

lite-serve:     ## Serve it on this machine, at http://localhost:8000.
	$(PYTHON) -m http.server --bind 127.0.0.1 --directory build/lite

site: $(VENV)/test.stamp         ## Build both as one site, in build/site: pages to read, each with a button that runs it.
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -d build/doctrees-site -D run_here=run . build/site
	$(LITE) --site build/site/run

mutants: $(VENV)/mutants.stamp   ## Break a room at random places, and list what its tests do not see: ROOM=world SIZE=30.
	$(BIN)/python tools/mutants.py $(ROOM) --size $(or $(SIZE),30)

assignments: $(VENV)/lab.stamp   ## Write nbgrader's course into COURSE, or into build/course.
	$(BIN)/python -m tools.assignments $(or $(COURSE),build/course)

notebooks: $(VENV)/lab.stamp     ## Make stubs and glossary's links, run every notebook, store its outputs, draw README's picture.
	$(BIN)/python -m tools.exercises
	$(BIN)/python -m tools.glossary
	$(BIN)/python tools/store_outputs.py notebooks
	$(BIN)/python tools/draw_first_screen.py

constraints: $(BIN)/python       ## Pin the newest versions that fit together, for every platform and Python.
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra lab --extra test --extra mpi --extra grading --extra mutants --upgrade --quiet \
		--universal --python-version 3.11 --fork-strategy fewest --no-annotate \
		--custom-compile-command "make constraints" --output-file constraints.txt

clean:          ## Remove what was installed and cached here.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

$(VENV)/lab.stamp: EXTRAS := lab
$(VENV)/test.stamp: EXTRAS := lab,test
$(VENV)/mutants.stamp: EXTRAS := lab,test,mutants
$(VENV)/%.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $@

$(BIN)/python:
	$(if $(PYTHON),,$(error parlab needs Python 3.11 or newer with venv (Debian and Ubuntu keep venv in the package \
		python3-venv). To name one yourself: make PYTHON=/path/to/python3))
	$(PYTHON) -m venv $(VENV)

.PHONY: help lab test test-all newest lint bench book lite lite-serve site mutants assignments notebooks constraints clean
