# Everything runs in .venv, which the first target that needs it creates.
# `make help` lists the targets.

PYTHON ?= python3
ifeq ($(origin CXX),default)
CXX := $(firstword $(foreach c,c++ g++ clang++,$(if $(shell command -v $(c)),$(c))) c++)
endif
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find native -type f 2>/dev/null)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo test census battery bench accuracy cycles models fidelity docs lint clean

help:
	@echo "make venv      create .venv with torch and the package, kernels compiled"
	@echo "make demo      train the MNIST network, sample it under sr and ud"
	@echo "make test      run the test suite"
	@echo "make census    hold PyTorch's own database of operations to the laws (half an hour)"
	@echo "make battery   run the long statistical tests of the random bits"
	@echo "make bench     regenerate docs/speed.md: times and memory against stock torch"
	@echo "make accuracy  nearest rounding in our order against stock torch's order"
	@echo "make cycles    cycles per sixteen elements of the kernels alone (needs cmake)"
	@echo "make models    regenerate docs/models.md: coverage and slowdown of whole models"
	@echo "make fidelity  spread against stock torch under binary instrumentation"
	@echo "make docs      regenerate docs/coverage.md from the table"
	@echo "make lint      ruff, mypy, clang-format"
	@echo "make clean     remove .venv and build/"
	@echo "ARGS='...' is passed on, e.g. make test ARGS='-k rounding'."

venv: $(VENV)/.built

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "fuzzytorch needs Python 3.10 or newer, and '$(PYTHON)' was not found: install it or run make PYTHON=/path/to/python3." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "fuzzytorch needs Python 3.10 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1): run make PYTHON=/path/to/python3." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot create virtual environments because its modules venv and ensurepip are missing: install them (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.required: requirements-dev.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

$(VENV)/.built: $(VENV)/.required pyproject.toml CMakeLists.txt $(SOURCES)
	@command -v $(firstword $(CXX)) >/dev/null || { \
	  echo "fuzzytorch needs a C++17 compiler to build its kernels, and '$(firstword $(CXX))' was not found: install g++ or clang++ (on Debian and Ubuntu: apt install g++) or run make CXX=/path/to/compiler." >&2; exit 2; }
	CXX="$(CXX)" PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .
	@touch $@

demo: venv
	$(BIN)/python examples/mnist.py $(ARGS)

test: venv
	$(BIN)/python -m pytest $(ARGS)

census: venv
	PYTHONPATH=tests $(BIN)/python -m census $(ARGS)

battery: venv
	$(BIN)/python -m pytest -m battery $(ARGS)

bench: venv
	$(BIN)/python benchmarks/bench.py $(ARGS) > docs/speed.json.new
	mv docs/speed.json.new docs/speed.json
	$(BIN)/python benchmarks/speed_page.py docs/speed.json > docs/speed.md.new
	mv docs/speed.md.new docs/speed.md

accuracy: venv
	$(BIN)/python benchmarks/accuracy.py

cycles:
	CXX="$(CXX)" cmake -S . -B build/cycles -DPRISM_CYCLES=ON > /dev/null
	cmake --build build/cycles --parallel --target cycles_avx512 cycles_avx2 > /dev/null
	build/cycles/cycles_avx512
	build/cycles/cycles_avx2

models: venv
	$(BIN)/python benchmarks/models.py $(ARGS) > docs/models.md.new
	mv docs/models.md.new docs/models.md

fidelity: venv
	$(BIN)/python benchmarks/fidelity.py $(ARGS)

docs: venv
	$(BIN)/python -m fuzzytorch.coverage > docs/coverage.md.new
	mv docs/coverage.md.new docs/coverage.md

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(filter %.h %.hpp %.cpp %.cc %.inc,$(SOURCES))

clean:
	rm -rf $(VENV) build dist
