# Two commands set up everything and do their work: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
# On a rented GPU image that brings its own torch: make demo VENV_FLAGS=--system-site-packages PIP_CONSTRAINTS=
VENV_FLAGS ?=
PIP_FLAGS ?=
PIP_CONSTRAINTS ?= -c constraints.txt
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_FLAGS) $(PIP_CONSTRAINTS)

# Results must not depend on the number of cores; no test and no demo asks a hub.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export HF_DATASETS_OFFLINE ?= 1
export TRANSFORMERS_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
export GLOO_SOCKET_IFNAME ?= lo
export PIP_NO_INPUT ?= 1

PYTEST := $(BIN)/python -m pytest
JOBS ?= 2

.PHONY: demo test lint test-slow test-interop test-browser test-gpu clean

demo: $(VENV)/.ready-demo
	$(BIN)/pretrace demo

test: $(VENV)/.ready-test lint
	$(PYTEST) -n $(JOBS) --dist loadfile

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Minutes to hours: the full grids of kill matrices, live processes, calibration.
test-slow: $(VENV)/.ready-test
	$(PYTEST) -m "slow and not interop" --timeout 3600

# Other people's writers and servers beside ours: jax, orbax, deepspeed, datatrove, an S3 server.
test-interop: $(VENV)/.ready-interop
	$(PYTEST) -m "interop and not slow" --timeout 600

# The pages in headless Chromium (Debian: apt-get install chromium).
test-browser: $(VENV)/.ready-test
	$(PYTEST) -m "browser and not slow"

test-gpu: $(VENV)/.ready-test
	$(PYTEST) -m gpu

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"pretrace needs Python 3.11 to 3.13; {sys.executable} is {v[0]}.{v[1]}. Say which: make demo PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)

$(VENV)/.ready-demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing pretrace into $(VENV): 65 packages, 1.6 GB with a CPU build of torch (5 GB with CUDA), one to five minutes; then the demo, under four."
	$(PIP) -e .
	@touch $@

$(VENV)/.ready-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing pretrace and what its tests need into $(VENV): about 140 packages, 2.4 GB with a CPU build of torch, two to six minutes."
	$(PIP) -e ".[test]"
	@touch $@ $(VENV)/.ready-demo

$(VENV)/.ready-interop: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing the interoperability tests into $(VENV): jax, orbax, deepspeed, datatrove and an S3 server, 1 GB more, two to six minutes."
	$(PIP) -e ".[test-interop]"
	@touch $@ $(VENV)/.ready-test $(VENV)/.ready-demo

clean:
	rm -rf $(VENV)
