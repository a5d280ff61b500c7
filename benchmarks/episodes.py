"""Speed of sandboxed environments, beside the same module in this process, in one run on one machine.

    .venv/bin/python benchmarks/episodes.py [--quick]

The module is an order desk of forty orders: a task has four steps (two look-ups, a change, an answer). Episodes are
played by the solution and scored, 64 of them open at a time and taking turns, so that each step meets the sandbox
with 63 others between it and its predecessor. Sandboxed and in-process rounds take turns; figures are medians over
the rounds.

`steps_per_second`: tool calls and turns of sandboxed episodes, the resets, states and scores that go with them
included. `overhead_ratio`: wall time of a sandboxed round over that of an in-process one; the module does next to
nothing, so this is the ratio at its worst. `call_us`: one tool call there and back. `warm_start_ms`: 95th percentile of
making an environment of a loaded module and resetting it. `cold_start_ms`: from nothing to the first task, process,
containment and import included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.environment import Environment, Task
from harness.episodes import Message, Policy, run_episodes
from harness.policies import ReferencePolicy
from harness.sandbox.host import containment, open_module

CONCURRENT = 64
TARGETS: dict[str, list[Any]] = {
    "steps_per_second": [">=", 1000],
    "warm_start_ms": ["<=", 50.0],
    "concurrent": [">=", CONCURRENT],
}
MODULE = """
import random
from harness.environment import Act, Goals, Task

def tool(name, *arguments):
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}

class Desk:
    name = "desk"
    tools = [tool("find_customer", "email"), tool("list_orders", "customer"), tool("cancel_order", "order")]

    def reset(self, seed):
        draw = random.Random(seed)
        self.customers = {f"c{n}@mail.test": f"C-{draw.randrange(10**6)}-{n}" for n in range(20)}
        ids = list(self.customers.values())
        self.orders = {
            f"O-{draw.randrange(10**6)}-{n}": {"customer": ids[n % 20], "status": "open", "item": f"item {n}"}
            for n in range(40)
        }
        self.email = draw.choice(list(self.customers))
        self.order = next(o for o, v in self.orders.items() if v["customer"] == self.customers[self.email])
        item = self.orders[self.order]["item"]
        text = f"Please cancel my order of {item}. I am {self.email}."
        messages = ({"role": "system", "content": "You are a desk."}, {"role": "user", "content": text})
        return Task(seed, f"{seed}", messages, "cancel")

    def call(self, tool, arguments):
        if tool == "find_customer":
            return self.customers.get(arguments.get("email"), "nobody")
        if tool == "list_orders":
            return ", ".join(f"{o}: {v}" for o, v in self.orders.items() if v["customer"] == arguments.get("customer"))
        if tool == "cancel_order" and arguments.get("order") in self.orders:
            self.orders[arguments["order"]]["status"] = "cancelled"
            return "cancelled"
        return "there is no such thing"

    def respond(self, text):
        return None

    def state(self):
        return {"orders": {o: dict(v) for o, v in self.orders.items()}}

    def goals(self):
        return Goals(state={f"orders.{self.order}.status": "cancelled"}, said=((self.order,),))

    def reference(self):
        calls = [("find_customer", {"email": self.email}), ("list_orders", {"customer": self.customers[self.email]})]
        calls.append(("cancel_order", {"order": self.order}))
        return (*(Act(tool, arguments) for tool, arguments in calls), Act(text=f"Order {self.order} is cancelled."))

make = Desk
"""


class InTurns:
    """The solution; before each act every other open episode has its turn. ``most`` counts the open ones."""

    def __init__(self) -> None:
        self.open = self.most = 0

    def begin(self, env: Environment, task: Task) -> Policy:
        outer, script = self, ReferencePolicy().begin(env, task)
        self.open += 1
        self.most = max(self.most, self.open)

        class Turn:
            async def act(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Message:
                await asyncio.sleep(0)
                message = await script.act(messages, tools)
                outer.open -= not message.get("tool_calls")  # the solution's last word ends the episode
                return message

        return Turn()

    async def act(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Message:
        raise AssertionError("begin returns who acts")


def play(make: Callable[[], Environment], episodes: int) -> tuple[float, int, int]:
    """Seconds, steps, and the most episodes that were open together. Every episode has to be solved."""
    policy = InTurns()
    began = time.perf_counter()
    played = asyncio.run(run_episodes(make, range(episodes), policy, concurrency=CONCURRENT))
    seconds = time.perf_counter() - began
    unsolved = [e for e in played if e.score is None or not e.score.success]
    if unsolved:
        raise SystemExit(f"{len(unsolved)} episodes were not solved: {unsolved[0].error}")
    return seconds, sum(e.calls + 1 for e in played), policy.most


def warm_starts(make: Callable[[], Environment], count: int) -> list[float]:
    """Milliseconds from nothing to a task, in a process that is there already."""
    times = []
    for seed in range(count):
        began = time.perf_counter()
        make().reset(seed)
        times.append(1000 * (time.perf_counter() - began))
    return times


def cold_start(path: Path) -> float:
    """Milliseconds from nothing to a task, in a new process."""
    began = time.perf_counter()
    make = open_module(path)
    make().reset(0)
    milliseconds = 1000 * (time.perf_counter() - began)
    make.close()
    return milliseconds


def call_time(make: Callable[[], Environment], count: int) -> float:
    """Microseconds of one tool call."""
    env = make()
    env.reset(0)
    began = time.perf_counter()
    for _ in range(count):
        env.call("find_customer", {"email": "c3@mail.test"})
    return 1e6 * (time.perf_counter() - began) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, smaller")
    quick = parser.parse_args().quick
    if not containment().enforced:
        print(f"nothing to measure: {containment().missing}", file=sys.stderr)
        return 1
    rounds, episodes, starts = (5, 128, 100) if quick else (15, 512, 500)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "desk.py"
        path.write_text(MODULE)
        inside = runpy.run_path(str(path))["make"]
        sandboxed = open_module(path)
        play(inside, CONCURRENT)
        play(sandboxed, CONCURRENT)
        ratios, speeds, most = [], [], CONCURRENT
        for _ in range(rounds):
            bare, _, _ = play(inside, episodes)
            seconds, steps, together = play(sandboxed, episodes)
            ratios.append(seconds / bare)
            speeds.append(steps / seconds)
            most = min(most, together)
        warm = warm_starts(sandboxed, starts)
        figures = {
            "steps_per_second": round(statistics.median(speeds)),
            "overhead_ratio": round(statistics.median(ratios), 2),
            "warm_start_ms": round(statistics.quantiles(warm, n=20)[-1], 2),
            "cold_start_ms": round(statistics.median(cold_start(path) for _ in range(rounds)), 1),
            "call_us": round(call_time(sandboxed, 20 * starts), 1),
            "concurrent": most,
        }
        sandboxed.close()
    for name, value in figures.items():
        wanted = f"   (target {TARGETS[name][0]} {TARGETS[name][1]})" if name in TARGETS else ""
        print(f"{name:26} {value:10}{wanted}")
    met = all(figures[n] <= t if how == "<=" else figures[n] >= t for n, (how, t) in TARGETS.items())
    print(json.dumps({"benchmark": "episodes", "figures": figures, "targets": TARGETS, "met": met}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
