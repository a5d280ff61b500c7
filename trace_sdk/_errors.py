"""Which boundary an error belongs to, told from the exception's class and status without importing any client.

`infrastructure`: timeouts, connections, 5xx, an interruption from outside. `provider`: the model provider
refused (limits, credentials). `tool`: raised out of a `@trace.tool`. `agent`: everything else the agent did.
"""

from __future__ import annotations

import errno
from typing import Any

_INFRASTRUCTURE = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ConnectError",
        "ConnectTimeout",
        "ConnectionError",
        "InternalServerError",
        "NetworkError",
        "PoolTimeout",
        "ProtocolError",
        "ReadError",
        "ReadTimeout",
        "RemoteProtocolError",
        "ServiceUnavailableError",
        "Timeout",
        "TimeoutError",
        "TimeoutException",
        "TransportError",
        "WriteError",
        "WriteTimeout",
    }
)
_PROVIDER = frozenset({"AuthenticationError", "PermissionDeniedError", "RateLimitError"})
# By name: importing asyncio only to know its class would cost more than all the rest of this package.
_INTERRUPTIONS = frozenset({"KeyboardInterrupt", "CancelledError"})
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE})
_TOOL_MARK = "_trace_sdk_tool"
_MAX_MESSAGE = 4000


def mark_tool(error: BaseException) -> None:
    """Remember on the exception that a tool raised it, so that the run's end can say so."""
    try:
        setattr(error, _TOOL_MARK, True)
    except Exception:
        return


def boundary_of_status(status: int) -> str:
    """The boundary of an HTTP status that is an error (>= 400)."""
    if status >= 500 or status == 408:
        return "infrastructure"
    return "provider" if status in (401, 402, 403, 429) else "agent"


def boundary_of(error: BaseException) -> str:
    """The boundary of an exception; the cause decides where the exception itself says nothing."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            break
        status = getattr(seen, "status_code", None)
        if isinstance(status, int) and status >= 400:
            return boundary_of_status(status)
        names = {cls.__name__ for cls in type(seen).__mro__}
        if names & _INFRASTRUCTURE or names & _INTERRUPTIONS or (isinstance(seen, OSError) and seen.errno in _DISK):
            return "infrastructure"
        if names & _PROVIDER:
            return "provider"
        seen = seen.__cause__
    return "tool" if getattr(error, _TOOL_MARK, False) else "agent"


def describe(error: BaseException) -> dict[str, Any]:
    """The error as data: type, message (bounded) and boundary. Never raises."""
    try:
        message = str(error)
    except Exception:
        message = ""
    return {"type": type(error).__name__, "message": message[:_MAX_MESSAGE], "boundary": boundary_of(error)}
