"""The agent: a loop of model calls and tool calls until the model answers the customer."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from openai import OpenAI

import trace_sdk as trace

from .database import Desk
from .tools import TOOLS, call_tool

SYSTEM_PROMPT = Path(__file__).with_name("system_prompt.md").read_text(encoding="utf-8").strip()
MAX_MODEL_CALLS = 6
GAVE_UP = "I could not finish this. A colleague will write to you."


@lru_cache(maxsize=1)
def _client() -> OpenAI:
    # One client for all threads: it is thread-safe and keeps its connections open.
    return OpenAI(
        base_url=os.environ.get("SUPPORT_DESK_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("SUPPORT_DESK_API_KEY", "unused"),
        timeout=float(os.environ.get("SUPPORT_DESK_TIMEOUT", "120")),
    )


@trace.agent(name="support_desk")
def handle(ticket: str, desk: Desk) -> str:
    """Do what the ticket asks, and return what the customer is told."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": ticket},
    ]
    for _ in range(MAX_MODEL_CALLS):
        completion = _client().chat.completions.create(
            model=os.environ.get("SUPPORT_DESK_MODEL", "support-desk"),
            messages=messages,
            tools=TOOLS,  # type: ignore[arg-type]  # read from tools.json
            temperature=float(os.environ.get("SUPPORT_DESK_TEMPERATURE", "0.4")),
            max_tokens=128,
        )
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}))
        for call in message.tool_calls:
            if call.type == "function":
                answer = call_tool(desk, call.function.name, call.function.arguments)
            else:
                answer = '{"error": "only functions can be called"}'
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
    return GAVE_UP
