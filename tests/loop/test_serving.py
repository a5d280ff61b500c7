"""`trace-sdk serve` and what is behind it, on a scripted server in the place of vLLM."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from harness.router import BASE, Router
from harness.serving.vllm import VLLMServer
from loop.serving import Serving, serving
from storage import tables
from storage.database import Database, open_database
from storage.errors import TraceError
from tests.tiny import build_adapter

UPSTREAM = Path(__file__).parents[1] / "harness" / "upstream.py"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VLLMServer, "_command", lambda _, port: [sys.executable, str(UPSTREAM), str(port)])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(home=tmp_path) as opened:
        yield opened


def promote(database: Database, model: Path, folder: Path, version: int) -> None:
    """What a cycle leaves: an adapter, a router that always picks it, and the policy as the active one."""
    name = f"lookup@{version}"
    texts = [f"task {i} of some kind" for i in range(20)]
    router = Router.fit(texts, np.tile([0.0, 1.0], (20, 1)), [BASE, name])
    with database.transaction() as session:
        for old in session.exec(tables_of_active()):
            old.state = "retired"
            session.add(old)
        row = tables.Router(version=version, arms=list(router.arms), weights=router.to_json())
        session.add(row)
        session.add(
            tables.Adapter(name="lookup", version=version, path=str(folder), sha256=f"sha-{version}", base=str(model))
        )
        session.flush()
        policy = tables.Policy(version=version, base=str(model), adapters=[name], router=row.id)
        session.add(policy)
        session.flush()
        policy.state = "active"


def tables_of_active():
    from sqlmodel import select

    return select(tables.Policy).where(tables.Policy.state == "active")


def served_by(url: str) -> str:
    body = {"model": "any", "messages": [{"role": "user", "content": "task 3 of some kind"}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body).headers["x-trace-policy"]


@pytest.mark.usefixtures("scripted")
def test_a_policy_that_is_promoted_meanwhile_is_taken_up(database: Database, tiny_model: Path, tmp_path: Path):
    with serving(database, tmp_path, tiny_model, host="127.0.0.1", port=0) as running:
        url = running.gateway.url
        assert served_by(url) == "0/base"
        for version in (1, 2):
            promote(database, tiny_model, build_adapter(tmp_path / f"a{version}", seed=version), version)
            assert running.follow()
            assert served_by(url) == f"{version}/lookup@{version}"
        assert not running.follow()


@pytest.mark.usefixtures("scripted")
def test_the_active_policy_names_the_model_and_adapters_that_serve(
    database: Database, tiny_model: Path, tmp_path: Path
):
    promote(database, tiny_model, build_adapter(tmp_path / "a1", seed=1), 1)
    extra = build_adapter(tmp_path / "extra", seed=9)
    with serving(
        database, tmp_path, None, host="127.0.0.1", port=0, adapters=[f"extra={extra}", "lookup@1"]
    ) as running:
        assert running.server.models() == ["base", "extra", "lookup@1"]
        assert served_by(running.gateway.url) == "1/lookup@1"


@pytest.mark.usefixtures("scripted")
def test_a_policy_that_cannot_be_served_leaves_what_serves(database: Database, tiny_model: Path, tmp_path: Path):
    with serving(database, tmp_path, tiny_model, host="127.0.0.1", port=0) as running:
        promote(database, tiny_model, tmp_path / "gone", 1)
        with pytest.raises(TraceError, match="file is missing"):
            running.follow()
        promote(database, tmp_path / "another", build_adapter(tmp_path / "a2", seed=2), 2)
        with pytest.raises(TraceError, match="another base model"):
            running.follow()
        assert served_by(running.gateway.url) == "0/base"


def test_nothing_to_serve_is_a_clear_error(database: Database, tiny_model: Path, tmp_path: Path):
    with (
        pytest.raises(TraceError, match="nothing was promoted yet"),
        serving(database, tmp_path, None, host="127.0.0.1", port=0),
    ):
        pass
    with (
        pytest.raises(TraceError, match="no adapter lookup@7"),
        serving(database, tmp_path, tiny_model, host="127.0.0.1", port=0, adapters=["lookup@7"]),
    ):
        pass


@pytest.mark.usefixtures("scripted")
def test_a_server_that_dies_is_started_again_with_its_adapters(database: Database, tiny_model: Path, tmp_path: Path):
    promote(database, tiny_model, build_adapter(tmp_path / "a1", seed=1), 1)
    said: list[str] = []
    with serving(database, tmp_path, None, host="127.0.0.1", port=0) as running:
        watcher = threading.Thread(target=lambda: _keep_until_told(running, said), daemon=True)
        watcher.start()
        url = running.gateway.url
        assert served_by(url) == "1/lookup@1"
        assert running.server._process is not None
        os.killpg(running.server._process.popen.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while "vLLM serves again" not in said and time.monotonic() < deadline:
            time.sleep(0.05)
        assert said == ["vLLM ended; starting it again", "vLLM serves again"]
        assert served_by(url) == "1/lookup@1"
        said.append("stop")
        watcher.join(10)


class _Enough(Exception):
    pass


def _keep_until_told(running: Serving, said: list[str]) -> None:
    def say(text: str) -> None:
        said.append(text)

    original = running.follow

    def follow() -> bool:
        if "stop" in said:
            raise _Enough
        return original()

    running.follow = follow  # type: ignore[method-assign]
    try:
        running.keep(say, every=0.1)
    except _Enough:
        return


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_stops_cleanly(number: int, tiny_model: Path, tmp_path: Path):
    driver = f"""
import signal, sys
# A shell that starts the tests in the background ignores SIGINT for all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
from harness.serving.vllm import VLLMServer
VLLMServer._command = lambda _, port: [sys.executable, {str(UPSTREAM)!r}, str(port)]
from loop.commands.app import main
main()
"""
    command = [sys.executable, "-c", driver, "serve", "--model", str(tiny_model), "--port", "0", "--json"]
    environment = {**os.environ, "TRACE_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            served = json.loads(process.stdout.readline())
            assert served_by(served["url"]) == "0/base"
            assert httpx.get(f"{served['upstream']}/health").status_code == 200
            process.send_signal(number)
            assert process.wait(20) == 0
        finally:
            process.kill()
    for url in (served["url"], served["upstream"]):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_a_model_folder_that_does_not_exist_ends_with_status_1(tmp_path: Path):
    command = [sys.executable, "-m", "loop.commands.app", "serve", "--model", str(tmp_path / "nothing")]
    done = subprocess.run(command, env={**os.environ, "TRACE_HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no model in this folder" in done.stderr
    assert "Traceback" not in done.stderr
