"""LangSmith: runs as JSON lines (or a list), one object a run, put together by their ``trace_id``.

Read are runs as `Client.list_runs` gives them and ``/runs/query`` answers (``id``, ``trace_id``,
``parent_run_id``, ``run_type``, ``inputs``, ``outputs``, ``extra``, ``error``, ``feedback_stats``), also with
``child_runs`` inside and with ``run_id`` for ``id``. Looked up in docs.langchain.com, "Run data format", and in the
package langsmith 0.15, `langsmith.schemas.Run`.

A run of type ``llm`` is a call of a model: its ``inputs.messages`` (LangChain's messages, serialized or not, or
chat-completions') and ``outputs`` (``generations``, ``choices``, ``messages`` or a message). The messages of the
trajectory are those of the longest; a trace without any is what its root was given and gave. Feedback on the root
that is named like a verdict (outcome, success, resolved, passed, reward) is the outcome, by its average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage.importers import chat, documents, fields
from storage.importers.contract import Format, Raw, Source
from storage.importers.threads import Thread, ToolRun, run_of, tool_run
from storage.trajectory import Message


def split(source: Source) -> Iterator[Raw]:
    """Traces, under the place of their first run; lines that are no runs for themselves."""
    gathered: dict[str, list[dict[str, Any]]] = {}
    places: dict[str, str] = {}
    broken: dict[str, Raw] = {}
    for raw in documents.records(source, ("runs", "data", "items")):
        if isinstance(raw.value, ValueError):
            yield raw
            continue
        for run in _flat(raw.value):
            trace = run.get("trace_id") or (_id(run) if run.get("parent_run_id") is None else None)
            if not isinstance(trace, str):
                yield Raw(raw.position, ValueError("it has neither a trace_id nor an id of its own"))
                continue
            gathered.setdefault(trace, []).append(run)
            places.setdefault(trace, raw.position)
            if not isinstance(run.get("run_type"), str):
                broken[trace] = Raw(f"{raw.position} (trace {trace})", ValueError("run_type is missing"))
    for trace, runs in gathered.items():
        yield broken.get(trace) or Raw(f"{places[trace]} (trace {trace})", runs)


def build(raw: Raw, _file: str) -> dict[str, Any]:
    """The fields of one trace's trajectory."""
    runs = [fields.mapping(run, f"run {i}") for i, run in enumerate(raw.value)]
    runs.sort(key=lambda run: (str(run.get("dotted_order") or ""), fields.epoch(run.get("start_time"))))
    root = next((run for run in runs if run.get("parent_run_id") is None), None)
    threads: list[Thread] = []
    executed: list[ToolRun] = []
    usage: dict[str, Mapping[str, int]] = {}
    for index, run in enumerate(runs):
        id = _id(run) or str(index)
        if run["run_type"] == "llm":
            thread = _thread(run, f"run {id}")
            threads += [thread] if thread.messages else []
            if used := _usage(run):
                usage[id] = used
        elif run["run_type"] == "tool":
            executed += _tool(run, id)
    if not threads and root is not None:
        threads.append(_thread(root, "the root run"))
    found = run_of(threads, executed, usage)
    if not found["messages"]:
        raise ValueError("no run of the trace has inputs")
    head: Mapping[str, Any] = root or {}
    metadata = _metadata(head)
    error = fields.label(head.get("error"))
    pending = head.get("status") == "pending"
    feedback = _feedback(head)
    times = [t for run in runs if (t := fields.epoch(run.get("start_time")))]
    tags = head.get("tags")
    return {
        **found,
        "agent": fields.label(head.get("name")),
        "version": fields.label(metadata.get("revision_id")),
        "session": _first(metadata, "session_id", "thread_id", "conversation_id"),
        "user": _first(metadata, "user_id", "user"),
        "tags": tuple(t for t in tags if isinstance(t, str)) if isinstance(tags, list) else (),
        "task": fields.label(head.get("reference_example_id")),
        # What was exported while it ran has no end, and gets none.
        "status": "raised" if error else "aborted" if pending else "completed",
        "error": {"type": _kind(error), "message": error, "boundary": "unknown"} if error else None,
        "started_at": min(times, default=0.0),
        "metadata": {
            **found["metadata"],
            **({"feedback": feedback} if feedback else {}),
            **({"metadata": metadata} if metadata else {}),
            "trace_id": head.get("trace_id") or _id(head),
        },
        **fields.verdict_of(feedback),
    }


def _flat(value: object) -> Iterator[dict[str, Any]]:
    """A run and those inside it. What is no object is given as an empty one, which names itself broken."""
    pending = [value]
    while pending:
        run = pending.pop()
        if not isinstance(run, dict):
            yield {}
            continue
        children = run.get("child_runs")
        if isinstance(children, list):
            pending += reversed(children)
        yield {k: v for k, v in run.items() if k != "child_runs"}


def _thread(run: Mapping[str, Any], name: str) -> Thread:
    inputs, outputs = run.get("inputs"), run.get("outputs")
    extra = run.get("extra") if isinstance(run.get("extra"), dict) else {}
    params = (extra or {}).get("invocation_params")
    params = params if isinstance(params, dict) else {}
    asked = _asked(inputs, f"{name}, inputs")
    said = chat.conversation(_answer(outputs), f"{name}, outputs", "assistant")
    if _repeats(asked, said):
        said = said[len(asked) :]
    listed = params.get("tools") or (inputs.get("tools") if isinstance(inputs, dict) else None)
    model = _first(_metadata(run), "ls_model_name") or _first(params, "model", "model_name")
    tools = chat.tools(listed, f"{name}, tools") if isinstance(listed, list) else ()
    return Thread((*asked, *said), fields.epoch(run.get("start_time")), model, tools)


def _repeats(asked: list[Message], said: list[Message]) -> bool:
    """Whether an output begins with the whole input, as a graph's state does."""
    return bool(asked) and len(said) > len(asked) and said[: len(asked)] == asked


def _asked(inputs: object, name: str) -> list[Message]:
    if isinstance(inputs, dict) and set(inputs) & {"input", "question", "query"} and "messages" not in inputs:
        only = next(inputs[k] for k in ("input", "question", "query") if k in inputs)
        if len(inputs) == 1:
            return chat.conversation(only, name)
    if isinstance(inputs, dict) and isinstance(inputs.get("prompts"), list) and len(inputs["prompts"]) == 1:
        return chat.conversation(inputs["prompts"][0], name)
    return chat.conversation(inputs or None, name)


def _answer(outputs: object) -> object:
    """What was said: LangSmith keeps a plain value under the name ``output``."""
    if isinstance(outputs, dict) and len(outputs) == 1 and "output" in outputs:
        return outputs["output"]
    if isinstance(outputs, dict) and isinstance(outputs.get("message"), dict):
        return outputs["message"]
    return outputs or None


def _tool(run: Mapping[str, Any], id: str) -> list[ToolRun]:
    name, output = fields.label(run.get("name")), _answer(run.get("outputs"))
    if run.get("error") is not None and output is None:
        output = f"error: {run['error']}"
    if name is None or output is None:
        return []
    call: Any = None
    if isinstance(output, dict):
        try:
            (said,) = chat.message(output, "outputs")
        except ValueError:
            said = None
        if said is not None and said.role == "tool":
            call, output = said.tool_call_id, said.content
    inputs = run.get("inputs")
    arguments = inputs.get("input", inputs) if isinstance(inputs, dict) else inputs
    return [tool_run(id, call, name, arguments, output, fields.epoch(run.get("start_time")))]


def _usage(run: Mapping[str, Any]) -> dict[str, int]:
    given = {k: run.get(k) for k in ("prompt_tokens", "completion_tokens")}
    return {k: v for k, v in given.items() if isinstance(v, int) and not isinstance(v, bool)}


def _feedback(run: Mapping[str, Any]) -> dict[str, Any]:
    stats = run.get("feedback_stats")
    found: dict[str, Any] = {}
    for key, value in stats.items() if isinstance(stats, dict) else ():
        average = value.get("avg") if isinstance(value, dict) else None
        if isinstance(average, int | float):
            found[key] = average
    return found


def _metadata(run: Mapping[str, Any]) -> dict[str, Any]:
    extra = run.get("extra")
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _id(run: Mapping[str, Any]) -> str | None:
    return fields.label(run.get("id")) or fields.label(run.get("run_id"))


def _first(values: Mapping[str, Any], *names: str) -> str | None:
    return next((found for name in names if (found := fields.label(values.get(name)))), None)


def _kind(error: str) -> str:
    """The exception's name, where the text begins with it: `ValueError('…')`."""
    head = error.partition("(")[0].strip()
    return head if head.isidentifier() else "Error"


FORMAT = Format("langsmith", "runs of LangSmith (JSON lines)", split, build)
