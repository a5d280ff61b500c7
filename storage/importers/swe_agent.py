"""SWE-agent trajectories, `INSTANCE.traj`: one JSON object a file, `{environment, trajectory, history, info}`.

Read are files of 0.x and 1.x: SWE-agent/SWE-agent, docs/usage/trajectories.md and sweagent/types.py (`HistoryItem`,
`TrajectoryStep`, `AgentInfo`). ``history`` is what was said; a file without it is put together from the first
step's ``query`` and the steps' thoughts, actions and observations. Agents that write their action as text
(``action`` beside ``thought``) call the tool `bash`; agents with function calling keep their own calls.
Demonstrations (``is_demo``) are what the agent was given, not what it did: they are left out, and counted.

Whether the patch was right isn't in the file: the outcome is unknown unless a harness added ``resolved``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from storage import codec
from storage.importers import chat, fields
from storage.importers.contract import Format, Raw, Source, json_document
from storage.importers.mini_swe_agent import TOOL
from storage.trajectory import Message, ToolCall

# How the agent's loop says that it did not end by itself → who failed. Other endings (a limit of cost or of time,
# replies that don't parse, giving up) are the agent's own. A submission after such an end still is one.
_BROKEN_OFF = {
    "exit_api": "infrastructure",
    "exit_context": "infrastructure",
    "exit_environment_error": "environment",
    "exit_error": "unknown",
}


def split(source: Source) -> Iterator[Raw]:
    """The file is the record."""
    document = fields.mapping(json_document(source), "the file")
    if "trajectory" not in document and "history" not in document:
        raise ValueError("neither trajectory nor history is there")
    yield Raw("the file", document)


def build(raw: Raw, file: str) -> dict[str, Any]:
    """The fields of one run."""
    record = fields.mapping(raw.value, "the file")
    info = fields.mapping(record.get("info") or {}, "info")
    history = fields.items(record.get("history") or [], "history")
    steps = fields.items(record.get("trajectory") or [], "trajectory")
    items = [fields.mapping(item, f"history[{i}]") for i, item in enumerate(history)]
    shown = [item for item in items if item.get("is_demo") is not True]
    messages = _of_history(shown) if shown else _of_steps(steps)
    if not messages:
        raise ValueError("history and trajectory are empty")
    ending = fields.label(info.get("exit_status"))
    boundary = _BROKEN_OFF.get(ending or "")
    resolved = info.get("resolved", record.get("resolved"))
    demonstrations = len(items) - len(shown)
    textual = any(call.name == "bash" and call.id.startswith("call_") for m in messages for call in m.tool_calls)
    return {
        "messages": tuple(messages),
        "tools": (TOOL,) if textual else (),
        "task": fields.label(record.get("instance_id")) or file.split(".traj")[0],
        "model": _model(record),
        "version": fields.label(info.get("swe_agent_version")),
        "status": "raised" if boundary else "completed",
        "error": {"type": ending, "message": "", "boundary": boundary} if boundary else None,
        "success": resolved if isinstance(resolved, bool) else None,
        "metadata": {
            **{k: info[k] for k in ("exit_status", "submission", "model_stats") if info.get(k) is not None},
            **{k: record[k] for k in ("environment",) if isinstance(record.get(k), str)},
            **({"demonstrations": demonstrations} if demonstrations else {}),
        },
    }


def _of_history(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    found: list[Message] = []
    waiting: str | None = None
    for index, item in enumerate(items):
        name = f"history[{index}]"
        role = item.get("role")
        action = item.get("action")
        if role == "assistant" and isinstance(action, str) and action.strip() and not item.get("tool_calls"):
            waiting = f"call_{index}"
            thought = item.get("thought")
            spoken = thought if isinstance(thought, str) else chat.as_text(item.get("content"))
            found.append(_act(waiting, spoken, action))
            continue
        if role == "user" and waiting is not None:
            found.append(Message("tool", _text(item.get("content"), name), (), waiting, "bash"))
        elif role == "tool":
            ids = item.get("tool_call_ids")
            answers = ids[0] if isinstance(ids, list) and ids else item.get("tool_call_id")
            found += chat.message({"role": "tool", "content": item.get("content"), "tool_call_id": answers}, name)
        else:
            kept = {k: item[k] for k in ("role", "content", "tool_calls") if item.get(k) is not None}
            found += chat.message(kept, name)
        waiting = None
    return found


def _of_steps(steps: list[Any]) -> list[Message]:
    found: list[Message] = []
    for index, value in enumerate(steps):
        name = f"trajectory[{index}]"
        step = fields.mapping(value, name)
        if index == 0:
            asked = fields.items(step.get("query") or [], f"{name}.query")
            asked = [fields.mapping(item, f"{name}.query[{i}]") for i, item in enumerate(asked)]
            found += _of_history([item for item in asked if item.get("is_demo") is not True and item])
        action, thought = step.get("action"), step.get("thought", step.get("response"))
        if not isinstance(action, str) or not action.strip():
            found.append(Message("assistant", _text(step.get("response", thought), f"{name}.response")))
            continue
        found.append(_act(f"call_{index}", _text(thought, f"{name}.thought"), action))
        if step.get("observation") is not None:
            seen = _text(step["observation"], f"{name}.observation")
            found.append(Message("tool", seen, (), f"call_{index}", "bash"))
    return found


def _act(id: str, spoken: str, action: str) -> Message:
    arguments = codec.dumps({"command": action.rstrip("\n")})
    return Message("assistant", spoken.strip(), (ToolCall.parse(id, "bash", arguments),))


def _text(value: object, name: str) -> str:
    """Text, or blocks of it."""
    if isinstance(value, list):
        return "".join(m.content for m in chat.message({"role": "user", "content": value}, name))
    return "" if value is None else fields.text(value, name)


def _model(record: Mapping[str, Any]) -> str | None:
    """The model of the configuration that the file carries so that it can be replayed (1.x)."""
    config = record.get("replay_config")
    if isinstance(config, str):
        try:
            config = codec.strict_loads(config)
        except ValueError:
            return None
    for key in ("agent", "model"):
        config = config.get(key) if isinstance(config, dict) else None
    return fields.label(config.get("name")) if isinstance(config, dict) else None


FORMAT = Format("swe-agent", "a trajectory of SWE-agent (.traj)", split, build)
