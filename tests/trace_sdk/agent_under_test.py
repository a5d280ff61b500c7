"""An agent and its evaluation, as a team would have them; the runner's tests start it in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import trace_sdk as trace

_together = threading.Barrier(8, timeout=60)


def _ask(text: str) -> str:
    import httpx

    url = os.environ["SCRIPTED_URL"] + "/v1/chat/completions"
    reply = httpx.post(url, json={"model": "m", "messages": [{"role": "user", "content": text}]})
    reply.raise_for_status()
    return reply.json()["choices"][0]["message"]["content"]


@trace.agent(name="echo")
def answer(text: str) -> str:
    print("noise on stdout")
    if text == "slow":
        _together.wait()
    return _ask(text)


@trace.agent(name="judged", outcome=lambda result: result == "GOOD")
def judged(text: str) -> str:
    return _ask(text)


@trace.agent(name="async-echo")
async def async_answer(text: str) -> str:
    return _ask(text)


@trace.evaluation
class Desk:
    def suite(self, split: str) -> list[Any]:
        return [{"id": f"{split}-{n}", "text": text} for n, text in enumerate(["good", "bad"])]

    def run(self, task: Any) -> Any:
        kind = task["text"]
        if kind == "raise":
            answer("first")
            raise ValueError("the agent is wrong")
        if kind == "exit":
            sys.exit(3)
        if kind == "die":
            answer("last words")
            trace.flush()
            os._exit(7)
        if kind == "child":
            subprocess.run([sys.executable, "-c", "print('a child prints')"], check=True)
        if kind == "nonsense":
            return "a string is no outcome"
        if kind == "unknown":
            answer(kind)
            return None
        return trace.Outcome(answer(kind) == "GOOD", 0.5, "compared")
