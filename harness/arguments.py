"""Does a call fit its tool's schema? The subset of JSON Schema that tool parameters are written in.

Only what a tool schema can say about one call is checked: required, unknown names, type, enum, and the same again
inside objects and arrays. Keywords not known here pass, so a check never rejects what it does not understand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
    "null": (type(None),),
}


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function part of a tool, whether it is wrapped as OpenAI does it or bare."""
    return tool.get("function", tool)


def parameters_of(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """The schema of a tool's parameters ({} when it states none), or None when there is no such tool."""
    for tool in tools:
        function = function_of(tool)
        if function.get("name") == name:
            return function.get("parameters") or {}
    return None


def problems(schema: Mapping[str, Any], value: Any, where: str = "") -> list[str]:
    """What is wrong with ``value`` under ``schema``, one sentence each; empty when it fits."""
    found: list[str] = []
    types = schema.get("type")
    allowed = [types] if isinstance(types, str) else list(types or ())
    if allowed and not any(_is(value, t) for t in allowed):
        return [f"{where or 'arguments'} must be {' or '.join(allowed)}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where or 'value'} must be one of {', '.join(map(str, schema['enum']))}")
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches and not any(not problems(branch, value, where) for branch in branches):
        found.append(f"{where or 'value'} fits none of the allowed forms")
    if isinstance(value, Mapping):
        properties: Mapping[str, Any] = schema.get("properties") or {}
        missing = [name for name in schema.get("required") or () if name not in value]
        found += [f"missing argument {_join(where, name)}" for name in missing]
        for name, inner in value.items():
            if name in properties:
                found += problems(properties[name], inner, _join(where, name))
            elif schema.get("additionalProperties") is False or (properties and not where):
                # At the top level an argument that the tool does not name would be a TypeError in any real tool.
                found.append(f"unknown argument {_join(where, name)}")
    elif isinstance(value, (list, tuple)) and isinstance(schema.get("items"), Mapping):
        for index, inner in enumerate(value):
            found += problems(schema["items"], inner, f"{where}[{index}]")
    return found


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):  # bool is an int in Python, not in JSON
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return name not in _TYPES or isinstance(value, _TYPES[name])


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else str(name)
