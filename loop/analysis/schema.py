"""Whether arguments fit a tool's JSON schema: the part of JSON Schema that tool lists use, small and fast.

Understands type, required, properties, additionalProperties, items, enum, const, anyOf/oneOf/allOf, `$ref` into the
same document, minimum/maximum, minItems and pattern. An unknown keyword allows everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def fault(value: Any, schema: Schema, root: Schema | None = None, path: str = "", depth: int = 0) -> str | None:
    """What is wrong with ``value``, in a few words, or None. Deep recursion (32) counts as fitting."""
    root = schema if root is None else root
    if depth > 32:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = _resolve(root, reference)
        return None if target is None else fault(value, target, root, path, depth + 1)
    where = path or "arguments"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is {value!r:.60}, not one of the allowed values"
    if "const" in schema and value != schema["const"]:
        return f"{where} is not {schema['const']!r:.60}"
    for group in ("anyOf", "oneOf"):
        options = schema.get(group)
        if isinstance(options, list) and options:
            faults = [fault(value, option, root, path, depth + 1) for option in options]
            if all(faults):
                return faults[0]
    for part in schema.get("allOf") or ():
        found = fault(value, part, root, path, depth + 1)
        if found:
            return found
    return _type_fault(value, schema, where) or _content_fault(value, schema, root, path, depth)


def fixed_values(schema: Schema | None, depth: int = 0) -> frozenset[str]:
    """Texts that a schema itself offers anywhere (enum, const, default): they need no other source."""
    found: set[str] = set()
    if isinstance(schema, Mapping) and depth < 12:
        for key, value in schema.items():
            if key == "enum" and isinstance(value, list):
                found.update(v for v in value if isinstance(v, str))
            elif key in ("const", "default") and isinstance(value, str):
                found.add(value)
            elif isinstance(value, Mapping):
                found |= fixed_values(value, depth + 1)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, Mapping):
                        found |= fixed_values(item, depth + 1)
    return frozenset(found)


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "object":
            return isinstance(value, Mapping)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "integer":
            return (isinstance(value, int) and not isinstance(value, bool)) or (
                isinstance(value, float) and value.is_integer()
            )
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
    return True


def _type_fault(value: Any, schema: Schema, where: str) -> str | None:
    kinds = schema.get("type")
    if kinds is None:
        return None
    allowed = kinds if isinstance(kinds, list) else [kinds]
    if not any(_is(value, str(kind)) for kind in allowed):
        return f"{where} is of type {type(value).__name__}, not {' or '.join(map(str, allowed))}"
    return None


def _content_fault(value: Any, schema: Schema, root: Schema, path: str, depth: int) -> str | None:
    if isinstance(value, Mapping):
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        for name in schema.get("required") or ():
            if name not in value:
                return f"{path + '.' if path else ''}{name} is required and missing"
        extra = schema.get("additionalProperties")
        for name, item in value.items():
            inner = f"{path}.{name}" if path else str(name)
            if name in properties:
                found = fault(item, properties[name], root, inner, depth + 1)
            elif extra is False or (extra is None and properties):
                # Without the keyword JSON Schema allows more; a tool's function does not take it.
                found = f"{inner} is no parameter of the tool"
            else:
                found = fault(item, extra, root, inner, depth + 1) if isinstance(extra, Mapping) else None
            if found:
                return found
    elif isinstance(value, list):
        if len(value) < int(schema.get("minItems") or 0):
            return f"{path} has too few items"
        items = schema.get("items")
        if isinstance(items, Mapping):
            for index, item in enumerate(value):
                found = fault(item, items, root, f"{path}[{index}]", depth + 1)
                if found:
                    return found
    elif isinstance(value, str):
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not _matches(pattern, value):
            return f"{path} does not match {pattern:.60}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if isinstance(low, int | float) and value < low:
            return f"{path} is below {low}"
        if isinstance(high, int | float) and value > high:
            return f"{path} is above {high}"
    return None


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True


def _resolve(root: Schema, reference: str) -> Schema | None:
    if not reference.startswith("#/"):
        return None
    node: Any = root
    for part in reference[2:].split("/"):
        node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else None
