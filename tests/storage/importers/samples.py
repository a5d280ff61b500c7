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

SWE_AGENT = Sample(
    "library__desk-8.traj",
    {
        "environment": "swe_main",
        "trajectory": [
            {
                "action": "ls\n",
                "observation": "a b",
                "response": "Look.\n```\nls\n```",
                "thought": "Look.",
                "state": {"open_file": "n/a"},
                "execution_time": 0.1,
                "query": [{"role": "system", "content": "One command a turn.", "agent": "main"}],
                "extra_info": {},
            }
        ],
        "history": [
            {"role": "system", "content": "One command a turn.", "agent": "main", "message_type": "system_prompt"},
            {
                "role": "user",
                "content": "Shown how.",
                "agent": "main",
                "is_demo": True,
                "message_type": "demonstration",
            },
            {"role": "user", "content": "Fix it.", "agent": "main", "message_type": "observation"},
            {
                "role": "assistant",
                "content": "Look.\n```\nls\n```",
                "thought": "Look.",
                "action": "ls\n",
                "agent": "main",
                "tool_calls": None,
                "message_type": "action",
            },
            {"role": "user", "content": "a b", "agent": "main", "message_type": "observation"},
            {
                "role": "assistant",
                "content": "Done.",
                "thought": "Done.",
                "action": "submit",
                "tool_calls": [_call("submit", "c", {})],
                "message_type": "action",
            },
            {
                "role": "tool",
                "content": [{"type": "text", "text": "diff"}],
                "tool_call_ids": ["c"],
                "message_type": "observation",
            },
        ],
        "info": {
            "exit_status": "submitted",
            "submission": "diff",
            "model_stats": {"instance_cost": 0.1, "tokens_sent": 10, "tokens_received": 2, "api_calls": 2},
            "swe_agent_version": "1.1.0",
            "resolved": True,
        },
        "replay_config": json.dumps({"agent": {"model": {"name": "some-model"}}}),
    },
    runs=1,
    succeeded=1,
)


def _observation(trace: str, id: str, kind: str, second: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "traceId": trace,
        "type": kind,
        "startTime": f"2026-01-02T03:04:{second:02}.000Z",
        "level": "DEFAULT",
        "parentObservationId": None if kind == "AGENT" else f"{trace}-agent",
        **fields,
    }


LANGFUSE = Sample(
    "traces.json",
    [
        {
            "id": trace,
            "timestamp": "2026-01-02T03:04:05.000Z",
            "name": "desk",
            "sessionId": "s",
            "userId": "u",
            "version": "3",
            "tags": ["night"],
            "metadata": {"shop": "north"},
            "observations": [
                _observation(trace, f"{trace}-agent", "AGENT", 5, name="desk", input="Is Emma in?", output="Two."),
                _observation(
                    trace,
                    f"{trace}-1",
                    "GENERATION",
                    6,
                    model="some-model",
                    input={"messages": _CHAT[:2], "tools": _TOOLS},
                    output=_CHAT[2],
                    usageDetails={"input": 10, "output": 2, "total": 12},
                ),
                _observation(
                    trace, f"{trace}-tool", "TOOL", 7, name="find", input={"title": "Emma"}, output={"copies": 2}
                ),
                _observation(
                    trace,
                    f"{trace}-2",
                    "GENERATION",
                    8,
                    model="some-model",
                    input={"messages": _CHAT[:4], "tools": _TOOLS},
                    output={"role": "assistant", "content": "Yes, two copies."},
                ),
            ],
            "scores": [
                {"id": "1", "name": "success", "value": value, "dataType": "BOOLEAN", "source": "ANNOTATION"},
                {"id": "2", "name": "relevance", "value": 0.3, "dataType": "NUMERIC", "source": "EVAL"},
            ],
        }
        for trace, value in (("t1", 1), ("t2", 0))
    ],
    runs=2,
    succeeded=1,
)


def _run(trace: str, id: str, kind: str, second: int, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "trace_id": trace,
        "parent_run_id": parent,
        "run_type": kind,
        "start_time": f"2026-01-02T03:04:{second:02}.000000",
        "status": "success",
        "error": None,
        "dotted_order": f"20260102T0304{second:02}000000Z{id}",
        **fields,
    }


def _lc(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": kwargs}


_ASKED = [_lc("SystemMessage", content="You run a library desk."), _lc("HumanMessage", content="Is Emma in?")]
_ACTED = _lc(
    "AIMessage", content="", tool_calls=[{"name": "find", "args": {"title": "Emma"}, "id": "a", "type": "tool_call"}]
)
LANGSMITH = Sample(
    "runs.jsonl",
    [
        run
        for trace, average in (("r1", 1.0), ("r2", 0.0))
        for run in (
            _run(
                trace,
                trace,
                "chain",
                5,
                None,
                name="desk",
                inputs={"input": "Is Emma in?"},
                outputs={"output": "Yes, two copies."},
                extra={"metadata": {"thread_id": "s", "user_id": "u"}},
                tags=["night"],
                feedback_stats={"success": {"n": 1, "avg": average}, "relevance": {"n": 2, "avg": 0.4}},
            ),
            _run(
                trace,
                f"{trace}-1",
                "llm",
                6,
                trace,
                name="ChatOpenAI",
                inputs={"messages": [_ASKED]},
                outputs={"generations": [[{"text": "", "message": _ACTED}]], "llm_output": None},
                extra={"invocation_params": {"model": "some-model", "tools": _TOOLS}},
                prompt_tokens=10,
                completion_tokens=2,
            ),
            _run(
                trace,
                f"{trace}-2",
                "tool",
                7,
                trace,
                name="find",
                inputs={"input": "{'title': 'Emma'}"},
                outputs={"output": {"type": "tool", "content": '{"copies": 2}', "tool_call_id": "a", "name": "find"}},
            ),
            _run(
                trace,
                f"{trace}-3",
                "llm",
                8,
                trace,
                name="ChatOpenAI",
                inputs={"messages": [[*_ASKED, _ACTED, _lc("ToolMessage", content='{"copies": 2}', tool_call_id="a")]]},
                outputs={"generations": [[{"message": _lc("AIMessage", content="Yes, two copies.")}]]},
                extra={"invocation_params": {"model": "some-model", "tools": _TOOLS}},
            ),
        )
    ],
    runs=2,
    succeeded=1,
    lines=True,
)


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """OTLP's list of attributes."""

    def value(of: Any) -> dict[str, Any]:
        match of:
            case bool():
                return {"boolValue": of}
            case int():
                return {"intValue": str(of)}
            case float():
                return {"doubleValue": of}
            case list():
                return {"arrayValue": {"values": [value(v) for v in of]}}
            case dict():
                return {"kvlistValue": {"values": attributes(of)}}
        return {"stringValue": str(of)}

    return [{"key": key, "value": value(of)} for key, of in values.items()]


def span(
    trace: int,
    number: int,
    values: dict[str, Any],
    parent: int | None = 1,
    events: list[tuple[str, dict[str, Any]]] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A span of OTLP/JSON that begins at second ``number`` and lasts half of one."""
    at = 1767323045 * 10**9 + number * 10**9
    return {
        "traceId": f"{trace:032x}",
        "spanId": f"{number:016x}",
        **({} if parent is None else {"parentSpanId": f"{parent:016x}"}),
        "name": "span",
        "kind": 1,
        "startTimeUnixNano": str(at),
        "endTimeUnixNano": str(at + 5 * 10**8),
        "attributes": attributes(values),
        "events": [{"name": name, "timeUnixNano": str(at), "attributes": attributes(v)} for name, v in events or []],
        **fields,
    }


def request(*spans: dict[str, Any], service: str = "library") -> dict[str, Any]:
    """The body of one OTLP request."""
    resource = {"attributes": attributes({"service.name": service})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]}


_GENAI = [
    {"role": "system", "parts": [{"type": "text", "content": "You run a library desk."}]},
    {"role": "user", "parts": [{"type": "text", "content": "Is Emma in?"}]},
    {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "a", "name": "find", "arguments": {"title": "Emma"}}],
        "finish_reason": "tool_calls",
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "a", "response": '{"copies": 2}'}]},
    {"role": "assistant", "parts": [{"type": "text", "content": "Yes, two copies."}], "finish_reason": "stop"},
]


def otlp_run(trace: int, label: str) -> list[dict[str, Any]]:
    """The spans of one run, in the order in which they end: two model calls around a tool, and the agent."""
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "some-model"}
    first = chat | {
        "gen_ai.input.messages": json.dumps(_GENAI[:2]),
        "gen_ai.output.messages": json.dumps(_GENAI[2:3]),
        "gen_ai.tool.definitions": json.dumps([{"type": "function", **_TOOLS[0]["function"]}]),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 2,
    }
    second = first | {
        "gen_ai.input.messages": json.dumps(_GENAI[:4]),
        "gen_ai.output.messages": json.dumps(_GENAI[4:]),
    }
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "find",
        "gen_ai.tool.call.id": "a",
        "gen_ai.tool.call.arguments": '{"title": "Emma"}',
        "gen_ai.tool.call.result": '{"copies": 2}',
    }
    agent = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "desk",
        "gen_ai.conversation.id": "s",
        "user.id": "u",
    }
    verdict = {"gen_ai.evaluation.name": "outcome", "gen_ai.evaluation.score.label": label}
    return [
        span(trace, 2, first),
        span(trace, 3, tool),
        span(trace, 4, second),
        span(trace, 1, agent, None, [("gen_ai.evaluation.result", verdict)]),
    ]


OTLP = Sample("traces.json", request(*otlp_run(1, "pass"), *otlp_run(2, "fail")), runs=2, succeeded=1)

SAMPLES: dict[str, Sample] = {
    "openai": OPENAI,
    "tau-bench": TAU_BENCH,
    "mint": MINT,
    "intercode": INTERCODE,
    "tau2": TAU2,
    "mini-swe-agent": MINI_SWE_AGENT,
    "atif": ATIF,
    "swe-agent": SWE_AGENT,
    "langfuse": LANGFUSE,
    "langsmith": LANGSMITH,
    "otlp": OTLP,
}
