"""`trace-sdk collect`: takes the spools of agents on other machines."""

from __future__ import annotations

import typer

from loop.commands.context import home

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def collect(
    host: str = typer.Option("127.0.0.1", help="Address to listen on; 0.0.0.0 for other machines."),
    port: int = typer.Option(4318, min=0, max=65535, help="Port; 0 picks a free one."),
    token: str | None = typer.Option(
        None, envvar="TRACE_TOKEN", help="What agents have to show (their TRACE_TOKEN). Needed outside of loopback."
    ),
) -> None:
    """Take what agents send with TRACE_SHIP_TO, and OTLP over HTTP (/v1/traces), until Ctrl-C."""
    from loop.collector import Collector
    from storage.database import open_database
    from storage.errors import TraceError

    if not token and host not in _LOOPBACK:
        raise TraceError(
            "without a token anyone who reaches this address could write here",
            where=f"--host {host}",
            fix="Give --token or TRACE_TOKEN, and the same TRACE_TOKEN to the agents.",
        )
    with open_database(home=home(), durable=True) as db:
        collector = Collector(db, host, port, token or None)
        print(f"collecting at {collector.url} into {db.location}", flush=True)
        collector.run()
