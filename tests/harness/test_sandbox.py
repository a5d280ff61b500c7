"""The sandbox as its users see it: modules conform, machines that cannot contain refuse, nothing is left running.

What hostile modules try is in tests/attacks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness.sandbox import messages
from harness.sandbox.host import Limits, SandboxError, containment, open_module
from harness.sandbox.process import RunnerProcess
from loop.synthesis.loading import fingerprint_elsewhere, load_environment
from storage.errors import TraceError
from tests.attacks.arena import GOOD, group_lives
from tests.harness.conformance import check_conformance

ROOT = Path(__file__).resolve().parents[2]

contained = pytest.mark.skipif(not containment().enforced, reason="nothing can be contained here")
linux = pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="Linux on x86-64")

DICTS = """
class Lever:
    name = "lever"
    tools = ({"type": "function", "function": {"name": "pull", "parameters": {"type": "object", "properties": {}}}},)
    def reset(self, seed):
        self.pulled = False
        return {"seed": seed, "key": str(seed), "messages": ({"role": "user", "content": f"Pull lever {seed}."},)}
    def call(self, tool, arguments):
        self.pulled = self.pulled or tool == "pull"
        return "done"
    def respond(self, text): return None
    def state(self): return {"pulled": self.pulled}
    def goals(self): return {"state": {"pulled": True}}
    def reference(self): return [{"tool": "pull"}, {"text": "Pulled."}]
make = Lever
"""
# Says with each state how often it was asked for one.
COUNTS = GOOD.replace(
    'return {"pulled": self.pulled}',
    'self.asked = getattr(self, "asked", 0) + 1\n        return {"pulled": self.pulled, "asked": self.asked}',
)
LOOPS = GOOD.replace("self.pulled = False", "exec('while True: pass')")


def written(folder: Path, source: str) -> Path:
    path = folder / "module.py"
    path.write_text(source)
    return path


def in_a_process(prelude: str, code: str, *arguments: object) -> str:
    """What a Python process prints that has run ``prelude`` before it imported the project."""
    done = subprocess.run(
        [sys.executable, "-c", prelude + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# unshare is 272: everything else of the kernel stays as it is.
WITHOUT_NAMESPACES = """
import struct
from harness.sandbox import runner
runner._libc.prctl(38, 1, 0, 0, 0)
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 272), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
runner.install_filter(b"".join(struct.pack("HBBI", *step) for step in steps))
"""
# CAP_SYS_ADMIN is 21; what is started afterwards does not have it, root or not.
WITHOUT_PRIVILEGE = """
from harness.sandbox import runner
runner._libc.prctl(24, 21, 0, 0, 0)
"""
# A limit of whoever started the worker, lower than that of the sandbox.
WITH_LIMITS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
"""
TRY = """
import sys
from pathlib import Path
from harness.sandbox.host import containment, open_module
from loop.doctor import _sandbox
from storage.errors import TraceError
check = _sandbox(Path("."))
print(check.level, check.saw, "|", check.fix)
try:
    print(open_module(Path(sys.argv[1]))().reset(4).key)
except TraceError as error:
    print(error)
print(open_module(Path(sys.argv[1]), allow_weaker=True)().reset(5).key)
"""


@contained
@pytest.mark.parametrize("source", [GOOD, DICTS], ids=["the_contracts_classes", "plain_dicts"])
def test_a_contained_module_conforms(tmp_path: Path, source: str):
    make = open_module(written(tmp_path, source))
    check_conformance(make, seeds=range(3))
    make.close()


def test_a_module_in_a_plain_process_conforms(tmp_path: Path):
    make = open_module(written(tmp_path, GOOD), allow_weaker=True)
    check_conformance(make, seeds=range(3))
    make.close()


@linux
def test_a_machine_that_cannot_contain_refuses_and_names_the_way_out(tmp_path: Path):
    check, refused, fix, weaker = in_a_process(WITHOUT_NAMESPACES, TRY, written(tmp_path, GOOD)).splitlines()
    assert check.startswith("warning foreign code cannot be contained here: namespaces: Operation not permitted")
    assert "--allow-weaker-sandbox" in check
    assert "cannot be contained here" in refused
    assert "module.py" in refused
    assert "--allow-weaker-sandbox" in fix
    assert weaker == "lever-5"


@contained
@pytest.mark.parametrize("prelude", [WITHOUT_PRIVILEGE, WITH_LIMITS], ids=["user_namespaces", "lower_limits"])
def test_with_less_than_roots_means_it_is_contained_as_well(tmp_path: Path, prelude: str):
    check, strict, weaker = in_a_process(prelude, TRY, written(tmp_path, GOOD)).splitlines()
    assert check.startswith("ok foreign modules are contained: namespaces")
    assert (strict, weaker) == ("lever-4", "lever-5")


@contained
def test_the_doctor_says_what_contains(tmp_path: Path):
    from loop.doctor import _sandbox

    check = _sandbox(tmp_path)
    assert check.level == "ok"
    assert all(layer in check.saw for layer in containment().layers)
    assert {"namespaces", "seccomp", "limits"} <= set(containment().layers)


def test_a_plain_process_has_the_hosts_imports_and_still_an_end(tmp_path: Path):
    source = GOOD.replace('return "done"', "import os, iniconfig; return f'{iniconfig.__name__} {os.getpid()}'")
    make = open_module(written(tmp_path, source), allow_weaker=True)
    env = make()
    env.reset(1)
    name, pid = env.call("pull", {}).split()
    assert name == "iniconfig"
    assert int(pid) != os.getpid()
    guard = make.pids[0]
    make.close()
    assert not group_lives(guard)

    endless = open_module(written(tmp_path, LOOPS), limits=Limits(seconds=0.5), allow_weaker=True)
    with pytest.raises(SandboxError, match=r"took longer than 0\.5 s"):
        endless().reset(1)
    assert endless.pids == []


@contained
@pytest.mark.parametrize("weaker", [False, True], ids=["contained", "plain"])
def test_a_killed_host_leaves_no_process_behind(tmp_path: Path, weaker: bool):
    code = f"""
import sys
from pathlib import Path
from harness.sandbox.host import open_module
make = open_module(Path(sys.argv[1]), allow_weaker={weaker})
print(make.pids[0], flush=True)
make().reset(1)
"""
    module = written(tmp_path, LOOPS)
    host = subprocess.Popen([sys.executable, "-c", code, module], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert host.stdout is not None
    guard = int(host.stdout.readline())
    assert group_lives(guard)
    host.send_signal(signal.SIGKILL)
    host.communicate()
    deadline = time.monotonic() + 30
    while group_lives(guard) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not group_lives(guard)


@contained
def test_a_dropped_factory_ends_its_process(tmp_path: Path):
    make = open_module(written(tmp_path, GOOD))
    env = make()
    guard = make.pids[0]
    del make
    assert env.reset(1).key == "lever-1"
    assert group_lives(guard)
    del env
    assert not group_lives(guard)


@contained
def test_environments_beyond_a_processs_share_get_another(tmp_path: Path):
    make = open_module(written(tmp_path, GOOD), limits=Limits(environments=2))
    kept = [make(), make()]
    assert len(make.pids) == 1
    kept.append(make())
    assert len(make.pids) == 2
    assert [env.reset(n).key for n, env in enumerate(kept)] == ["lever-0", "lever-1", "lever-2"]
    make.close()
    assert make.pids == []
    with pytest.raises(SandboxError, match="closed"):
        make()


@contained
def test_environments_that_were_dropped_make_room(tmp_path: Path):
    make = open_module(written(tmp_path, GOOD), limits=Limits(environments=2))
    for seed in range(10):
        make().reset(seed)
    assert len(make.pids) == 1
    make.close()


@contained
def test_threads_get_their_own_answers(tmp_path: Path):
    make = open_module(written(tmp_path, GOOD))
    answers: dict[int, list[str]] = {}

    def play(seed: int) -> None:
        env = make()
        answers[seed] = [env.reset(seed + n).key for n in range(20)]

    threads = [threading.Thread(target=play, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    make.close()
    assert answers == {100 * n: [f"lever-{100 * n + i}" for i in range(20)] for n in range(4)}


@contained
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def make(:", "SyntaxError"),
        ("x = 1", "no function make()"),
        ("make = 3", "no function make()"),
        ("raise RuntimeError('not today')", "RuntimeError: not today"),
        ("import torch", "No module named 'torch'"),
        ("def make(): return object()", "no attribute 'name'"),
    ],
)
def test_a_broken_module_is_a_clear_error(tmp_path: Path, source: str, said: str):
    with pytest.raises(SandboxError) as caught:
        open_module(written(tmp_path, source))()
    assert said in str(caught.value)
    assert "module.py" in str(caught.value)


@contained
def test_an_error_names_the_modules_line(tmp_path: Path):
    source = GOOD.replace('return "done"', "return {}[tool]")
    line = source.splitlines().index("        return {}[tool]") + 1
    env = open_module(written(tmp_path, source))()
    env.reset(1)
    with pytest.raises(SandboxError, match=rf"KeyError: 'pull' \(.*module\.py:{line}\)"):
        env.call("pull", {})
    assert env.state() == {"pulled": True}  # an exception ends an answer, not the environment


@contained
def test_the_state_comes_with_the_answer_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make = open_module(written(tmp_path, COUNTS))
    env = make()
    asked: list[str] = []
    request = RunnerProcess.request

    def noted(process: RunnerProcess, op: str, *args: Any, **fields: Any) -> Any:
        asked.append(op)
        return request(process, op, *args, **fields)

    monkeypatch.setattr(RunnerProcess, "request", noted)
    env.reset(1)
    first = env.state()
    assert first == {"pulled": False, "asked": 1}
    assert isinstance(first, dict)
    first["pulled"] = "by the caller"
    assert env.state() == {"pulled": False, "asked": 2}
    env.call("pull", {})
    assert env.state() == {"pulled": True, "asked": 3}
    assert env.respond("Pulled.") is None
    assert env.state() == {"pulled": True, "asked": 4}
    assert asked == ["reset", "state", "call", "state", "respond"]
    make.close()


@contained
def test_a_state_from_before_a_call_is_not_the_one_after_it(tmp_path: Path):
    make = open_module(written(tmp_path, COUNTS))
    env, other = make(), make()
    env.reset(1)
    other.reset(2)
    env.call("pull", {})
    assert env.state() == {"pulled": True, "asked": 2}
    assert other.state() == {"pulled": False, "asked": 1}
    env.reset(3)
    assert env.state() == {"pulled": False, "asked": 3}
    make.close()


@contained
@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("return {}[tool]", "the module raises in state: NameError: name 'tool' is not defined"),
        ("return {'a': {1}}", "the module raises in state: TypeError: a set is not JSON"),
        ("return {'a': float('nan')}", "the module raises in state: ValueError: Out of range"),
        ("raise SystemExit(3)", "the module raises in state: SystemExit: 3"),
        ("return [1]", "the module's answer to state is refused: state is a list"),
        ("return {'a': 10**30}", "its answer to state is refused: an integer of 31 digits"),
    ],
)
def test_what_is_wrong_with_a_state_is_said_where_it_is_asked_for(tmp_path: Path, state: str, said: str):
    source = GOOD.replace('return {"pulled": self.pulled}', state)
    env = open_module(written(tmp_path, source))()
    assert env.reset(1).key == "lever-1"
    with pytest.raises(SandboxError) as caught:
        env.state()
    assert said in str(caught.value)


@contained
def test_a_state_that_never_comes_is_named_where_the_time_is_over(tmp_path: Path):
    source = GOOD.replace("return {", "exec('while True: pass')\n        return {")
    env = open_module(written(tmp_path, source), limits=Limits(seconds=0.5))()
    with pytest.raises(SandboxError, match=r"reset took longer than 0\.5 s \(it asks for .* state as well\)"):
        env.reset(1)


@contained
@pytest.mark.parametrize("limits", [Limits(enclosed_bytes=100), Limits(message_bytes=1200), Limits()])
def test_a_state_that_is_too_long_to_come_along_is_asked_for(tmp_path: Path, limits: Limits):
    long = GOOD.replace('{"pulled": self.pulled}', '{"pulled": self.pulled, "text": "x" * 1000}')
    make = open_module(written(tmp_path, long), limits=limits)
    env = make()
    assert env.reset(1).key == "lever-1"
    assert env.state() == {"pulled": False, "text": "x" * 1000}
    env.call("pull", {})
    env.respond("")
    assert env.state() == {"pulled": True, "text": "x" * 1000}
    make.close()


@contained
def test_a_kept_state_ends_with_the_environment_and_with_its_process(tmp_path: Path):
    make = open_module(written(tmp_path, GOOD))
    closed, lost = make(), make()
    closed.reset(1)
    lost.reset(2)
    closed.close()
    with pytest.raises(SandboxError, match="this environment is closed"):
        closed.state()
    os.killpg(make.pids[0], signal.SIGKILL)
    deadline = time.monotonic() + 30
    while make.pids and group_lives(make.pids[0]) and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(SandboxError, match="process was ended"):
        lost.state()
    make.close()


def test_a_file_that_is_no_text_is_a_clear_error(tmp_path: Path):
    path = tmp_path / "module.py"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match="cannot be read"):
        open_module(path, allow_weaker=True)
    with pytest.raises(TraceError, match="cannot be read"):
        open_module(tmp_path / "absent.py", allow_weaker=True)


@contained
def test_admission_asks_a_second_process_for_fingerprints(tmp_path: Path):
    from harness.admission import fingerprint

    path = written(tmp_path, GOOD)
    env = load_environment(path)()
    assert fingerprint_elsewhere(path, [3, 4]) == [fingerprint(env, 3), fingerprint(env, 4)]


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("[" * 64 + "]" * 64, ""),
        ("[" * 63 + "1" + "]" * 63, ""),
        ("[" * 64 + "1" + "]" * 64, "nested deeper"),
        ("[" * 32 + '{"a":' * 32 + "1" + "}" * 32 + "]" * 32, "nested deeper"),
        ("[" + "1," * 249_998 + "1]", ""),
        ("[" + "1," * 249_999 + "1]", "more than 250000 values"),
        ("[" + "[]," * 249_998 + "[]]", ""),
        ("[" + "[]," * 249_999 + "[]]", "more than 250000 values"),
        ('"' + "[" * 300 + '"', ""),
    ],
)
def test_the_bounds_are_where_they_are_said_to_be(text: str, refusal: str):
    if refusal:
        with pytest.raises(ValueError, match=refusal):
            messages.decode(text.encode())
    else:
        assert messages.decode(text.encode()) == json.loads(text)


def test_ordinary_json_arrives_as_it_was_sent():
    text = '{"id": "a", "n": [1, -2.5, 1e3, true, null, 9223372036854775807], "t": "\\u00e9 \\ud83d\\ude00", "o": {}}'
    value = messages.decode(text.encode())
    assert value["n"] == [1, -2.5, 1000.0, True, None, 2**63 - 1]
    assert value["t"] == "é 😀"
    assert list(value) == ["id", "n", "t", "o"]
