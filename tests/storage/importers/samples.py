"""A small file of our own in each format: (name of the file, its bytes, how many runs, how many succeeded)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    file: str
    document: Any
    runs: int
    succeeded: int
    lines: bool = False

    @property
    def data(self) -> bytes:
        if self.lines:
            return b"".join(json.dumps(line).encode() + b"\n" for line in self.document)
        return json.dumps(self.document).encode()


def _call(name: str, id: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


_CHAT = [
    {"role": "system", "content": "You run a library desk."},
    {"role": "user", "content": "Is Emma in?"},
    {"role": "assistant", "content": None, "tool_calls": [_call("find", "a", {"title": "Emma"})]},
    {"role": "tool", "tool_call_id": "a", "content": '{"copies": 2}'},
    {"role": "assistant", "content": "Yes, two copies."},
]
_TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]

OPENAI = Sample(
    "runs.jsonl",
    [
        {"messages": _CHAT, "tools": _TOOLS, "outcome": True, "task_id": 1, "model": "m", "session": "s"},
        {"messages": _CHAT, "reward": 0.5},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "é"}]}], "outcome": None, "task_id": "1"},
        {"messages": _CHAT, "reward": 1},
    ],
    runs=4,
    succeeded=2,
    lines=True,
)
_THINKS = [*_CHAT[:2], {"role": "assistant", "content": None, "tool_calls": [_call("think", "t", {"thought": "hm"})]}]
TAU_BENCH = Sample(
    "results.json",
    [
        {"task_id": 0, "trial": 0, "reward": 1.0, "traj": _CHAT, "info": {"task": {"actions": []}}},
        {"task_id": 0, "trial": 1, "reward": 0.0, "traj": _THINKS, "info": {}},
        {"task_id": 1, "trial": 0, "reward": 0.0, "traj": [], "info": {"error": "RateLimitError", "traceback": "…"}},
    ],
    runs=3,
    succeeded=1,
)
MINT = Sample(
    "some-model-8b.rooms.jsonl",
    [
        {
            "state": {
                "history": [
                    {"role": "user", "content": "Use <execute>.\nExample: go\n---\nTask:\nPut a cup away."},
                    {"role": "assistant", "content": "Assistant:\nLet me look. <execute>\nprint(look())\n</execute>"},
                    {"role": "user", "content": "Observation:\na cup\nYou have 2 steps left."},
                    {"role": "assistant", "content": "<solution>done</solution>"},
                    {"role": "user", "content": "Observation:\nYour answer is wrong."},
                ],
                "success": success,
            },
            "task": {"task_name": "rooms", "task_id": index, "prompt": "Put a cup away.", "reference": None},
        }
        for index, success in enumerate([True, False])
    ],
    runs=2,
    succeeded=1,
    lines=True,
)
INTERCODE = Sample(
    "ic_bash_multiturn_some-model_10_turns_fs_1.json",
    {
        str(index): {
            "environment": "ic_bash",
            "dataset": "./data/shell_fs_1.json",
            "task_id": index,
            "query": "How many files?",
            "turn_history": {
                "actions": ["ls", "ls | wc -l"],
                "observations": ["a b", 2],
                "rewards": [0.1, best],
                "valid_action": [True, True],
            },
            "summary": {"max_reward": best, "turns_taken": 2, "turns_max": 10},
        }
        for index, best in enumerate([1.0, 0.9])
    },
    runs=2,
    succeeded=1,
)
_TAU2_MESSAGES = [
    {"role": "assistant", "content": "Hello.", "turn_idx": 0},
    {"role": "user", "content": "Is Emma in?"},
    {
        "role": "user",
        "content": None,
        "tool_calls": [{"id": "u", "name": "show", "arguments": {}, "requestor": "user"}],
    },
    {"role": "tool", "id": "u", "content": "a phone", "requestor": "user"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "name": "find", "arguments": {"title": "Emma"}, "requestor": "assistant"},
            {"id": "b", "name": "find", "arguments": {"title": "Persuasion"}, "requestor": "assistant"},
        ],
    },
    {
        "role": "tool",
        "tool_messages": [
            {"role": "tool", "id": "a", "content": "2", "requestor": "assistant"},
            {"role": "tool", "id": "b", "content": "0", "requestor": "assistant"},
        ],
    },
    {"role": "assistant", "content": "Two of Emma."},
]
TAU2 = Sample(
    "results.json",
    {
        "info": {
            "agent_info": {"implementation": "llm_agent", "llm": "some-model"},
            "environment_info": {"domain_name": "library", "policy": "Be kind."},
        },
        "tasks": [],
        "simulations": [
            {
                "id": f"s{index}",
                "task_id": "t",
                "start_time": "2026-01-02T03:04:05",
                "termination_reason": ending,
                "trial": index,
                "reward_info": reward,
                "messages": _TAU2_MESSAGES,
            }
            for index, (ending, reward) in enumerate(
                [("user_stop", {"reward": 1.0}), ("max_steps", {"reward": 0.0}), ("infrastructure_error", None)]
            )
        ],
    },
    runs=3,
    succeeded=1,
)
MINI_SWE_AGENT = Sample(
    "library__desk-7.traj.json",
    {
        "info": {
            "exit_status": "Submitted",
            "submission": "diff",
            "mini_version": "1.0",
            "config": {"model": {"model_name": "some-model"}},
            "resolved": True,
        },
        "messages": [
            {"role": "system", "content": "One bash block a turn."},
            {"role": "user", "content": "Fix it."},
            {"role": "assistant", "content": "THOUGHT: look\n```bash\nls\n```", "extra": {"cost": 1}},
            {"role": "user", "content": "<returncode>0</returncode>"},
            {"role": "assistant", "content": "Done.", "tool_calls": [_call("bash", "c", {"command": "submit"})]},
            {"role": "tool", "tool_call_id": "c", "content": "bye"},
            {"role": "exit", "content": "Submitted"},
        ],
        "trajectory_format": "mini-swe-agent-1",
    },
    runs=1,
    succeeded=1,
)
ATIF = Sample(
    "trajectory.json",
    {
        "schema_version": "ATIF-v1.5",
        "session_id": "s",
        "agent": {"name": "desk", "version": "2", "model_name": "some-model", "tool_definitions": _TOOLS},
        "extra": {"reward": 1.0, "task_id": "t"},
        "steps": [
            {"step_id": 1, "timestamp": "2026-01-02T03:04:05Z", "source": "user", "message": "Is Emma in?"},
            {"step_id": 2, "source": "user", "message": "copied", "is_copied_context": True},
            {
                "step_id": 3,
                "source": "agent",
                "message": "",
                "tool_calls": [{"tool_call_id": "a", "function_name": "find", "arguments": {"title": "Emma"}}],
                "observation": {"results": [{"source_call_id": "a", "content": "2"}]},
            },
            {"step_id": 4, "source": "agent", "message": "Two."},
        ],
        "final_metrics": {"total_prompt_tokens": 5},
    },
    runs=1,
    succeeded=1,
)

SAMPLES: dict[str, Sample] = {
    "openai": OPENAI,
    "tau-bench": TAU_BENCH,
    "mint": MINT,
    "intercode": INTERCODE,
    "tau2": TAU2,
    "mini-swe-agent": MINI_SWE_AGENT,
    "atif": ATIF,
}
