"""From the bytes of a model call to its event: request and response in chat-completions form.

Runs in the writer's thread. Each provider's module reads its own wire form, plain or streamed; nothing is
repaired, and what cannot be read is left out rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterator

from trace_sdk import _decode_anthropic, _decode_chat, _decode_responses
from trace_sdk._errors import boundary_of_status
from trace_sdk._json import JsonDict, as_dict, as_text, loads

_ENDINGS = (
    ("/chat/completions", "openai.chat"),
    ("/v1/messages", "anthropic.messages"),
    ("/responses", "openai.responses"),
    ("/v1/completions", "unknown"),
)
_MAX_ERROR = 4000


def provider_of(path: str) -> tuple[str, str] | None:
    """The provider and the path's ending, for a path that takes model calls; else None."""
    for ending, provider in _ENDINGS:
        if path.endswith(ending):
            return provider, ending
    return None


def request_of(provider: str, body: bytes | None) -> JsonDict:
    """``model``, ``messages``, ``tools``, ``params``; all empty when the body is no JSON object."""
    raw = as_dict(loads(body)) if body else {}
    if provider == "anthropic.messages":
        return _decode_anthropic.request(raw)
    if provider == "openai.responses":
        return _decode_responses.request(raw)
    return _decode_chat.request(raw)


def response_of(
    provider: str, status: int, body: bytes, streamed: bool, exhausted: bool
) -> tuple[JsonDict | None, JsonDict | None]:
    """The response and the error; either can be None. A stream that ended early gives ``incomplete``."""
    if status >= 400:
        return None, error_of_status(status, body)
    module = {"anthropic.messages": _decode_anthropic, "openai.responses": _decode_responses}.get(
        provider, _decode_chat
    )
    if streamed:
        response, done = module.stream(events(body))
        error = _stream_error(body)
        if response is not None and not done and not exhausted:
            response["incomplete"] = True
        return response, error
    raw = as_dict(loads(body))
    if not raw:
        return None, {"type": "UnreadableResponse", "message": _excerpt(body), "boundary": "provider", "status": status}
    return module.response(raw), None


def error_of_status(status: int, body: bytes) -> JsonDict:
    raw = as_dict(loads(body))
    inner = as_dict(raw.get("error")) or raw
    message = as_text(inner.get("message")) or as_text(raw.get("error")) or _excerpt(body)
    kind = as_text(inner.get("type")) or "HTTPStatus"
    return {
        "type": kind,
        "message": message[:_MAX_ERROR],
        "boundary": boundary_of_status(status),
        "status": status,
    }


def events(body: bytes) -> Iterator[JsonDict]:
    """The JSON objects of a server-sent-event body. Decoded as a whole, so no character is cut at a chunk's end."""
    data: list[str] = []
    # Not splitlines: that would also split at U+2028 and the like, inside a JSON text.
    for line in body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield from _event(data)
            data = []
    yield from _event(data)


def _event(data: list[str]) -> Iterator[JsonDict]:
    text = "\n".join(data)
    if text == "[DONE]":
        yield {"type": "[DONE]"}
    elif text:
        value = as_dict(loads(text))
        if value:
            yield value


def _stream_error(body: bytes) -> JsonDict | None:
    if b'"error"' not in body:
        return None
    for event in events(body):
        failed = as_dict(event.get("response")) if event.get("type") == "response.failed" else event
        inner = as_dict(failed.get("error"))
        if inner:
            return {
                "type": as_text(inner.get("type")) or as_text(inner.get("code")) or "StreamError",
                "message": as_text(inner.get("message"))[:_MAX_ERROR],
                "boundary": "provider",
            }
    return None


def _excerpt(body: bytes) -> str:
    return body[:_MAX_ERROR].decode("utf-8", "replace")
