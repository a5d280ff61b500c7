"""What each adapter does with the real package, as JSON: python -m tests.harness.ecosystem_checks NAME.

It runs in whatever environment has that package, so it imports nothing that a bare one lacks.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any

from tests.harness.desk import LoanDesk

SEED = 3


def solution() -> list[dict[str, Any]]:
    env = LoanDesk()
    env.reset(SEED)
    return [{"tool": a.tool, "arguments": dict(a.arguments)} if a.tool else {"text": a.text} for a in env.reference()]


def gymnasium() -> dict[str, Any]:
    from gymnasium.utils.env_checker import check_env  # pyright: ignore[reportMissingImports]

    from harness.ecosystem.gymnasium import ToolEnv

    env = ToolEnv(LoanDesk, max_turns=4)
    with warnings.catch_warnings(record=True) as said:
        check_env(env, skip_render_check=True)
    first, info = env.reset(seed=SEED)
    rewards: list[float] = []
    ended: list[bool] = []
    for act in solution():
        _, reward, terminated, truncated, told = env.step(json.dumps(act) if "tool" in act else act["text"])
        rewards.append(float(reward))
        ended.append(terminated or truncated)
    env.reset(seed=SEED)
    cut = [env.step('{"tool": "find_loans"}')[3] for _ in range(4)]
    return {
        "version": version("gymnasium"),
        "first": json.loads(first),
        "tools": info["tools"],
        "rewards": rewards,
        "ended": ended,
        "success": told["success"],
        "cut": cut,
        "again": env.reset(seed=SEED)[0] == first,
        "warnings": [str(w.message) for w in said],
    }


def openenv() -> dict[str, Any]:
    import uvicorn
    from openenv import GenericEnvClient  # pyright: ignore[reportMissingImports]

    from harness.ecosystem.openenv import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(LoanDesk), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = threading.Event()
    for _ in range(200):
        if server.started:
            break
        deadline.wait(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]

    async def play() -> tuple[Any, list[Any]]:
        async with GenericEnvClient(base_url=f"http://127.0.0.1:{port}") as client:
            begun = await client.reset(seed=SEED)
            return begun, [await client.step(act) for act in solution()]

    begun, steps = asyncio.run(play())
    server.should_exit = True
    thread.join(10)
    return {
        "version": version("openenv-core"),
        "first": begun.observation["messages"],
        "tools": begun.observation["tools"],
        "rewards": [s.reward for s in steps],
        "ended": [s.done for s in steps],
        "success": steps[-1].observation["success"],
        "answer": steps[0].observation["messages"][0]["content"],
    }


def verifiers() -> dict[str, Any]:
    os.environ["NOTHING"] = "none"
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

    import harness.ecosystem.verifiers as worlds

    asked: list[dict[str, Any]] = []
    with _model(asked) as url:
        config = worlds.WorldsConfig(factory="tests.harness.desk:LoanDesk", first_seed=SEED, tasks=2)
        tasks = list(worlds.Worlds(config))
        agent = vf.Agent(
            vf.AgentConfig(
                harness={"id": worlds.ID},
                model="m",
                client={"type": "eval", "base_url": url, "api_key_var": "NOTHING"},
                runtime={"type": "subprocess"},
            )
        )

        async def run() -> Any:
            async with agent:
                return await agent.run(tasks[0])

        trace = asyncio.run(run())
    return {
        "version": version("verifiers"),
        "tasks": [task.data.seed for task in tasks],
        "tools": asked[0]["tools"] if asked else [],
        "rewards": {name: getattr(value, "value", value) for name, value in trace.rewards.items()},
        "metrics": dict(trace.metrics),
        "calls": len(asked),
        "errors": [str(error) for error in trace.errors],
    }


class _model:
    """A model on loopback that knows the solution of `SEED`."""

    def __init__(self, asked: list[dict[str, Any]]) -> None:
        from harness.policies import act_message

        env = LoanDesk()
        env.reset(SEED)
        acts = list(env.reference())

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                asked.append(body)
                index = sum(m["role"] == "assistant" for m in body["messages"])
                message = act_message(acts[index], index)
                reason = "tool_calls" if message.get("tool_calls") else "stop"
                answer = {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": "m",
                    "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                }
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
