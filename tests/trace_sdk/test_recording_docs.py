"""Every Python snippet of docs/recording.md runs, against a scripted server, and leaves the runs that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trace_sdk.scripted import Reply, ScriptedServer, Seen, chat, chat_chunks, response
from tests.trace_sdk.spool import runs

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/recording.md").read_text(), re.S | re.M)
ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "your order"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


def _answer(seen: Seen) -> Reply:
    if seen.path.endswith("/responses"):
        return Reply(response("your order"))
    if seen.path.endswith("/messages"):
        return Reply(ANTHROPIC)
    if seen.body.get("stream"):
        return Reply(events=chat_chunks([{"role": "assistant", "content": "your order"}]))
    return Reply(chat("your order"))


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(_answer) as running:
        yield running


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[str(n) for n in range(len(SNIPPETS))])
def test_the_pages_snippets_run(server: ScriptedServer, tmp_path: Path, snippet: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
        env={
            **os.environ,
            "TRACE_HOME": str(tmp_path / "home"),
            "OPENAI_BASE_URL": server.url + "/v1",
            "OPENAI_API_KEY": "sk-" + "documentation-0123456789",
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "none-needed-here",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    )
    assert done.returncode == 0, done.stderr
    stored = runs(tmp_path / "home")
    called = not snippet.split("\n\n\n")[-1].startswith("@")  # the others only define
    assert bool(stored) == called
    if any(client in snippet for client in ("openai.", "anthropic.", "litellm.", "ChatOpenAI(")):
        assert [len(run.calls) for run in stored] == [1]
        assert stored[0].reply()["content"] == "your order"
    if "redact" in snippet:
        assert stored[0].input == {"message": "I am <EMAIL_1>, call <PHONE_1>"}
        assert stored[0].output == "Written to <EMAIL_1>"
