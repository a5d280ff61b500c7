"""One model call seen by several layers is recorded once.

A framework's callback opens a slot in the context of the call that it is about to make. The HTTP wrapper, lower
down in the same context, marks it: then the framework has nothing to add. A call that never passed HTTP is
recorded from what the framework saw.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

from trace_sdk import _decode_chat, _errors, _threads
from trace_sdk._ids import new_id
from trace_sdk._json import JsonDict
from trace_sdk._recorder import recorder
from trace_sdk._run import VERSION, Run
from trace_sdk._snapshot import Snapshot


class Slot:
    """A call that a framework is making; ``seen`` once a layer below it has recorded the call."""

    __slots__ = ("outer", "request", "run", "seen", "started")

    def __init__(self, run: Run, request: Any = None) -> None:
        self.run = run
        self.request = request
        self.seen = False
        self.started = time.time()
        outer = _slot.get()
        self.outer = outer if outer is not None and outer.run is run else None
        _slot.set(self)

    def close(self) -> bool:
        """The call is over; True when it is this layer's to record."""
        mine = not self.seen
        if mine:
            self.mark()
        self.outer = None  # contexts keep the last slot: it must not keep all earlier ones
        return mine

    def mark(self) -> None:
        slot: Slot | None = self
        while slot is not None:
            slot.seen = True
            slot = slot.outer


_slot: ContextVar[Slot | None] = ContextVar("trace_sdk_call_slot", default=None)


def mark_seen() -> None:
    """Called by the lowest layer that records a call."""
    slot = _slot.get()
    if slot is not None:
        slot.mark()


def record(
    slot: Slot, provider: str, request: JsonDict, response: JsonDict | None, error: BaseException | None
) -> None:
    """Record a call from what a framework saw. ``request`` has model, messages, tools and params; ``response`` is
    a chat completion as a dict."""
    snapshot = Snapshot((request, response))
    described = _errors.describe(error) if error is not None else None
    recorder.put(
        _render,
        (slot, provider, new_id(), slot.run.next_seq(), snapshot, described, time.time()),
        snapshot.size + 300,
    )


def _render(data: tuple[Slot, str, str, int, Snapshot, JsonDict | None, float]) -> JsonDict:
    slot, provider, call_id, seq, snapshot, error, ended = data
    request, response = snapshot.thaw()
    thread = _threads.assign(slot.run.threads(), request["messages"])
    return {
        "v": VERSION,
        "type": "call",
        "id": slot.run.id,
        "ts": ended,
        "call_id": call_id,
        "seq": seq,
        "attempt": 1,
        "started": slot.started,
        "latency": ended - slot.started,
        "provider": provider,
        "url": None,
        "model": request.pop("model"),
        "thread": thread,
        "request": request,
        "response": _decode_chat.response(response) if response is not None else None,
        "error": error,
    }
