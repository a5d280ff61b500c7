"""Which thread of messages a model call belongs to: the one whose messages it continues, else a new one.

A run can hold several conversations (a planner and a worker, parallel branches); they stay apart because a
call continues a thread only when that thread's last request is the beginning of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trace_sdk._ids import new_id


@dataclass(slots=True)
class Thread:
    """One thread: the fingerprints of its last request's messages, one per message."""

    id: str
    prints: list[int]


def assign(threads: list[Thread], messages: list[Any]) -> str:
    """The id of the thread that ``messages`` continue; ``threads`` is brought up to date."""
    prints = [_fingerprint(message) for message in messages]
    best: Thread | None = None
    for thread in threads:
        size = len(thread.prints)
        if size and prints[:size] == thread.prints and (best is None or size > len(best.prints)):
            best = thread
    if best is None:
        best = Thread(new_id(), prints)
        threads.append(best)
    else:
        best.prints = prints
    return best.id


def _fingerprint(message: Any) -> int:
    return hash(json.dumps(message, sort_keys=True, default=repr))
