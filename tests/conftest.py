"""What several rooms' tests share: a tiny model, and one real vLLM server on it for the whole session."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# Runs that a test leaves to the default home are not the checkout's: `make demo` would take them for production's.
os.environ["TRACE_HOME"] = tempfile.mkdtemp(prefix="trace-home-")

from harness.serving.vllm import VLLMServer
from tests.tiny import build_model

atexit.register(shutil.rmtree, os.environ["TRACE_HOME"], ignore_errors=True)


@dataclass(frozen=True)
class TinyServer:
    """``server`` serves ``model`` (a folder) with room for adapters up to rank 32."""

    server: VLLMServer
    model: Path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with a byte-level tokenizer and a tool-capable chat template."""
    return build_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def vllm_tiny(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """A running vLLM on `tiny_model`. Slow to start (about 40 s), hence one for all heavy tests: give adapters
    names of your own, and leave the server running."""
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with VLLMServer(tiny_model, log=log, max_model_len=2048, kv_cache_gib=1, max_num_seqs=32) as server:
        yield TinyServer(server, tiny_model)
