"""tau2-bench results: one JSON file with ``simulations``, or `results.json` beside a folder `simulations/`.

What the agent saw is kept: the user's own tool calls (in domains where users act too) and their results are left
out, and counted. The domain's policy is the system prompt. Simulations that the infrastructure broke off carry
that as their error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from storage.importers import fields
from storage.importers.contract import Format, Raw, Source, json_document, one_file
from storage.trajectory import Message

# How tau2 says a simulation ended → who failed. Other endings are ordinary.
_BROKEN_OFF = {
    "infrastructure_error": "infrastructure",
    "context_window_exceeded": "infrastructure",
    "agent_error": "agent",
    "user_error": "environment",
    "unexpected_error": "unknown",
}
_FOLDER = "simulations"


def sources(path: Path) -> Iterator[Source]:
    """The one file, or each file of the folder beside it, with the metadata as header."""
    results = path / "results.json" if path.is_dir() else path
    folder = results.parent / _FOLDER
    if not folder.is_dir():
        yield from one_file(results)
        return
    header = results.read_bytes()
    for simulation in sorted(folder.glob("*.json")):
        yield Source(f"{_FOLDER}/{simulation.name}", simulation.read_bytes(), header)


def split(source: Source) -> Iterator[Raw]:
    """Simulations, with what the file says of model, domain and policy."""
    document = fields.mapping(json_document(source), "the file")
    if source.header is not None:
        header = fields.mapping(json_document(Source(source.file, source.header)), "results.json")
        yield Raw("the simulation", document, _context(header))
        return
    context = _context(document)
    for index, value in enumerate(fields.items(document.get("simulations"), "simulations")):
        yield Raw(f"simulation {index}", value, context)


def _context(results: Mapping[str, Any]) -> dict[str, Any]:
    info = fields.mapping(results.get("info"), "info")
    agent, world = (info.get(k) if isinstance(info.get(k), dict) else {} for k in ("agent_info", "environment_info"))
    found = {"model": (agent or {}).get("llm")}
    found["domain"], found["policy"] = (world or {}).get("domain_name"), (world or {}).get("policy")
    return {key: value for key, value in found.items() if isinstance(value, str) and value}


def build(raw: Raw, _file: str) -> dict[str, Any]:
    """The fields of one simulation."""
    record = fields.mapping(raw.value, "the simulation")
    policy = record.get("policy") if isinstance(record.get("policy"), str) else raw.context.get("policy")
    ending = fields.label(record.get("termination_reason"))
    boundary = _BROKEN_OFF.get(ending or "")
    messages = [Message("system", policy)] if policy else []
    users = 0
    for index, turn in enumerate(_flat(fields.items(record.get("messages"), "messages"))):
        turn = fields.mapping(turn, f"messages[{index}]")
        if turn.get("requestor") == "user" or (turn.get("role") == "user" and turn.get("tool_calls")):
            users += 1
            continue
        messages.append(fields.message(_chat(turn, index), f"messages[{index}]"))
    if not any(m.role != "system" for m in messages) and boundary is None:
        raise ValueError("messages is empty")
    reward_info = record.get("reward_info")
    reward = fields.mapping(reward_info, "reward_info").get("reward") if reward_info is not None else None
    return {
        "messages": tuple(messages),
        "agent": raw.context.get("domain"),
        "model": raw.context.get("model"),
        "task": fields.label(record.get("task_id")),
        "status": "raised" if boundary else "completed",
        "error": {"type": ending, "message": "", "boundary": boundary} if boundary else None,
        "started_at": fields.epoch(record.get("start_time")),
        "metadata": {
            **{k: record[k] for k in ("id", "trial", "seed", "reward_info") if record.get(k) is not None},
            "termination_reason": ending,
            **({"user_tool_messages": users} if users else {}),
        },
        **fields.verdict(fields.optional_number(reward, "reward_info.reward")),
    }


def _flat(turns: list[Any]) -> Iterator[Any]:
    """Results of parallel calls come wrapped in one message."""
    for turn in turns:
        if isinstance(turn, dict) and turn.get("role") == "tool" and isinstance(turn.get("tool_messages"), list):
            yield from turn["tool_messages"]
        else:
            yield turn


def _chat(turn: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A tau2 message in chat-completions form."""
    chat: dict[str, Any] = {"role": turn.get("role"), "content": turn.get("content")}
    if turn.get("role") == "tool":
        chat["tool_call_id"] = fields.label(turn.get("id"))
    calls: list[dict[str, Any]] = []
    for position, call in enumerate(fields.items(turn.get("tool_calls") or [], "tool_calls")):
        call = fields.mapping(call, f"messages[{index}].tool_calls[{position}]")
        function = {"name": call.get("name"), "arguments": call.get("arguments")}
        calls.append({"id": fields.label(call.get("id")) or "", "type": "function", "function": function})
    if calls:
        chat["tool_calls"] = calls
    return chat


FORMAT = Format("tau2", "results of tau2-bench (one file, or results.json with simulations/)", split, build, sources)
