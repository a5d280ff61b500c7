"""`python -m trace_sdk.ship`: send what processes that have ended left in the outbox. For a host whose agent does not
come back; a process that records does this by itself."""

from __future__ import annotations

import argparse
import sys

from trace_sdk._config import from_environment
from trace_sdk._ship import Shipper


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when nothing is left that can be sent, 1 when something is or no collector is set."""
    parser = argparse.ArgumentParser(prog="python -m trace_sdk.ship", description=(__doc__ or "").partition(":")[2])
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to try")
    options = parser.parse_args(arguments)
    try:
        settings = from_environment()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if settings.ship_to is None:
        print("error: TRACE_SHIP_TO does not say where to send it", file=sys.stderr)
        return 1
    if Shipper(settings.spool, settings.ship_to, settings.ship_token).finish(options.timeout):
        return 0
    print(f"error: not everything in {settings.spool} was sent", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
