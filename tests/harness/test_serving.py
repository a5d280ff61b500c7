import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from harness.serving.gateway import Gateway
from harness.serving.policy import Arm, Policy
from harness.serving.process import OwnedProcess
from harness.serving.vllm import VLLMServer, reserve_port, telling_line
from storage.errors import TraceError
from tests.conftest import TinyServer
from tests.tiny import build_adapter

# A command with a child of its own, both deaf to TERM when "deaf" is given. Prints the two process ids.
FAMILY = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" not in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1], "child", *sys.argv[2:]])
    print(os.getpid(), child.pid, flush=True)
time.sleep(120)
"""


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def gone(pids: list[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("deaf", [False, True])
def test_stop_ends_a_command_and_what_it_started(deaf: bool):
    command = [sys.executable, "-c", FAMILY, FAMILY, *(["deaf"] if deaf else [])]
    process = OwnedProcess(command, stdout=subprocess.PIPE)
    assert process.popen.stdout is not None
    pids = [int(pid) for pid in process.popen.stdout.readline().split()]
    process.popen.stdout.close()
    assert all(running(pid) for pid in pids)
    process.stop(grace=1.0)
    assert gone(pids, 2.0)
    process.stop()  # again does nothing


def test_nothing_outlives_an_owner_that_is_killed():
    owner = f"""
import subprocess, sys, threading, time
from harness.serving.process import OwnedProcess
# Started in a thread that ends: the command must go on.
thread = threading.Thread(target=lambda: OwnedProcess([sys.executable, "-c", {FAMILY!r}, {FAMILY!r}]))
thread.start(); thread.join(); time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        time.sleep(0.5)
        assert all(running(pid) for pid in pids)
        process.send_signal(signal.SIGKILL)
        assert gone(pids, 5.0)


def test_the_commands_status_is_the_processs_status():
    process = OwnedProcess([sys.executable, "-c", "raise SystemExit(7)"])
    process.popen.wait(10)
    assert process.returncode == 7
    process.stop()


def test_a_model_folder_that_does_not_exist_is_a_clear_error(tmp_path: Path):
    with pytest.raises(TraceError, match="no model in this folder") as caught:
        VLLMServer(tmp_path / "nothing")
    assert caught.value.where == str(tmp_path / "nothing")


def test_a_taken_port_is_a_clear_error(tiny_model: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TraceError, match=f"port {port} is in use"):
            VLLMServer(tiny_model, port=port).start()


def test_vllm_that_is_not_installed_is_a_clear_error(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else find(name, *rest))
    with pytest.raises(TraceError, match="vLLM is not installed"):
        VLLMServer(tiny_model).start()


def test_a_server_that_dies_is_said_at_once_with_its_last_words(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script = "import sys; sys.stderr.write('INFO loading\\nValueError: no room for the KV cache\\n'); sys.exit(3)"
    monkeypatch.setattr(VLLMServer, "_command", lambda *_: [sys.executable, "-c", script])
    server = VLLMServer(tiny_model, log=tmp_path / "vllm.log")
    began = time.monotonic()
    with pytest.raises(TraceError, match=r"status 3 before it served: ValueError: no room for the KV cache") as caught:
        server.start()
    assert caught.value.where == str(tmp_path / "vllm.log")
    assert time.monotonic() - began < 10
    assert not server.alive()


def test_a_server_that_never_serves_is_stopped(tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(VLLMServer, "_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    server = VLLMServer(tiny_model, start_timeout=1.0)
    with pytest.raises(TraceError, match="did not serve within 1 s"):
        server.start()
    assert not server.alive()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "its log is empty"),
        ("one\ntwo\n\n", "two"),
        (
            "(EngineCore pid=7) ERROR 11-02 10:11:12 [core.py:1] ValueError: too long\n"
            "(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause.\nnanobind: leaked",
            "ValueError: too long",
        ),
        (
            "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: need 3 GiB\nbye",
            "torch.OutOfMemoryError: need 3 GiB",
        ),
    ],
)
def test_the_telling_line_of_a_log_is_its_own_last_error(text: str, expected: str):
    assert telling_line(text) == expected


def test_a_free_port_is_found():
    assert 1024 < reserve_port(0) < 65536


# From here on with a real vLLM.

PROMPT = "The customer with the mail ann@mail.com wants order 17 back."
IDS = list(range(20, 80))


def distance(one: list[float], other: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


@pytest.mark.heavy
def test_adapters_are_hot_swapped_behind_the_gateway_without_a_restart(vllm_tiny: TinyServer, tmp_path: Path):
    server = vllm_tiny.server
    assert server._process is not None
    pid = server._process.popen.pid
    server.load_adapter("swap-a@1", build_adapter(tmp_path / "a", seed=11))
    server.load_adapter("swap-b@1", build_adapter(tmp_path / "b", seed=12))
    assert {"base", "swap-a@1", "swap-b@1"} <= set(server.models())
    read = {name: server.prompt_logprobs(IDS, model=name) for name in ("base", "swap-a@1", "swap-b@1")}
    assert distance(read["base"], server.prompt_logprobs(IDS)) < 0.01
    assert distance(read["base"], read["swap-a@1"]) > 0.1
    assert distance(read["swap-a@1"], read["swap-b@1"]) > 0.1

    def ask(gateway: Gateway) -> tuple[str, str]:
        body = {"model": "any", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}
        answer = httpx.post(f"{gateway.base_url}/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-trace-policy"], answer.json()["choices"][0]["message"]["content"]

    a, b = Arm("a", "adapter", adapter="swap-a@1"), Arm("b", "adapter", adapter="swap-b@1")
    both = Arm("both", "mixture", parts=(("swap-a@1", 0.6), ("swap-b@1", 0.4)))
    with Gateway(server.url, Policy("p0"), mixer=server.serve_mixture) as gateway:
        said: dict[str, str] = {}
        for number, arm in enumerate((Arm("base"), a, b, both, Arm("base")), 1):
            gateway.set_policy(Policy.only(f"p{number}", arm))
            label, text = ask(gateway)
            assert label == f"p{number}/{arm.name}"
            assert said.setdefault(arm.name, text) == text  # back on base, base speaks as before
        assert len(set(said.values())) == 4
    assert server._process.popen.pid == pid
    assert server.alive()


@pytest.mark.heavy
def test_served_log_probabilities_follow_the_trainers(vllm_tiny: TinyServer, tmp_path: Path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    server, path = vllm_tiny.server, build_adapter(tmp_path / "a", seed=21)
    model = AutoModelForCausalLM.from_pretrained(vllm_tiny.model)

    def trainers(model: torch.nn.Module) -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([IDS])).logits[0].log_softmax(-1)
        return [float(logits[i, token]) for i, token in enumerate(IDS[1:])]

    base = trainers(model)
    trained = trainers(PeftModel.from_pretrained(model, path))
    server.load_adapter("follow@1", path)
    server.load_adapter("other@1", build_adapter(tmp_path / "b", seed=22, scale=0.01))
    assert distance(server.prompt_logprobs(IDS), base) < 0.06
    assert distance(server.prompt_logprobs(IDS, model="follow@1"), trained) < 0.06
    assert server.verify_adapter("follow@1", IDS, trained=trained, base=base) is True
    assert server.verify_adapter("other@1", IDS, trained=trained, base=base) is False
    assert server.verify_adapter("follow@1", IDS, trained=base, base=base) is None


@pytest.mark.heavy
def test_a_mixture_answers_as_the_weighted_sum(vllm_tiny: TinyServer, tmp_path: Path):
    server = vllm_tiny.server
    # An adapter and its negative at equal weights add up to nothing.
    plus = build_adapter(tmp_path / "plus", seed=31)
    minus = build_adapter(tmp_path / "minus", seed=31, negate=True)
    server.load_adapter("plus@1", plus)
    server.load_adapter("minus@1", minus)
    nothing = server.serve_mixture((("plus@1", 0.5), ("minus@1", 0.5)))
    base = server.prompt_logprobs(IDS)
    assert distance(server.prompt_logprobs(IDS, model=nothing), base) < 0.01
    assert distance(server.prompt_logprobs(IDS, model="plus@1"), base) > 0.1
    assert server.serve_mixture((("minus@1", 0.5), ("plus@1", 0.5))) == nothing
    mostly = server.serve_mixture((("plus@1", 0.9), ("minus@1", 0.1)))
    assert distance(server.prompt_logprobs(IDS, model=mostly), base) > 0.1
    with pytest.raises(TraceError, match="not loaded"):
        server.serve_mixture((("plus@1", 0.5), ("nobody@1", 0.5)))


@pytest.mark.heavy
def test_a_batch_of_several_arms_gives_each_its_own(vllm_tiny: TinyServer, tmp_path: Path):
    server = vllm_tiny.server
    names = ["base", *(f"batch-{i}@1" for i in range(4))]
    for i in range(4):
        server.load_adapter(f"batch-{i}@1", build_adapter(tmp_path / str(i), seed=40 + i))
    alone = {name: server.prompt_logprobs(IDS, model=name) for name in names}
    with ThreadPoolExecutor(20) as pool:
        mixed = list(pool.map(lambda name: (name, server.prompt_logprobs(IDS, model=name)), names * 4))
    for name, read in mixed:
        assert distance(read, alone[name]) < 0.02, name


@pytest.mark.heavy
def test_a_name_is_bound_to_its_weights(vllm_tiny: TinyServer, tmp_path: Path):
    server, path = vllm_tiny.server, build_adapter(tmp_path / "a", seed=51)
    other = build_adapter(tmp_path / "b", seed=52)
    server.load_adapter("bound@1", path)
    server.load_adapter("bound@1", path)  # the same weights again: nothing to do
    with pytest.raises(TraceError, match="bound to other weights"):
        server.load_adapter("bound@1", other)
    server.unload_adapter("bound@1")
    assert "bound@1" not in server.models()
    with pytest.raises(TraceError, match="bound to other weights"):
        server.load_adapter("bound@1", other)
    with pytest.raises(TraceError, match="not in the served model"):
        server.load_adapter("renamed@1", build_adapter(tmp_path / "c", seed=53, rename="_x"))
    with pytest.raises(TraceError, match="rank 40"):
        server.load_adapter("large@1", build_adapter(tmp_path / "d", seed=54, rank=40))
    assert not {"renamed@1", "large@1"} & set(server.models())


@pytest.mark.heavy
def test_sampling_gives_token_ids_with_their_log_probabilities(vllm_tiny: TinyServer):
    completions = vllm_tiny.server.complete(IDS, max_tokens=6, temperature=1.0, n=4, seed=3)
    assert len(completions) == 4
    for completion in completions:
        assert len(completion.token_ids) == len(completion.logprobs) <= 6
        assert max(completion.logprobs) <= 0
    read = vllm_tiny.server.prompt_logprobs([*IDS, *completions[0].token_ids])
    assert distance(read[len(IDS) - 1 :], list(completions[0].logprobs)) < 0.02


@pytest.mark.heavy
def test_a_server_that_died_serves_its_adapters_again_after_a_start(vllm_tiny: TinyServer, tmp_path: Path):
    server = vllm_tiny.server
    server.load_adapter("again@1", build_adapter(tmp_path / "a", seed=61))
    before, url = server.prompt_logprobs(IDS, model="again@1"), server.url
    assert server._process is not None
    os.killpg(server._process.popen.pid, signal.SIGKILL)
    server._process.popen.wait(10)
    assert not server.alive()
    with pytest.raises(TraceError, match="cannot be reached"):
        server.models()
    server.start()
    assert server.url == url  # a gateway in front need not be told
    assert distance(server.prompt_logprobs(IDS, model="again@1"), before) < 0.01
