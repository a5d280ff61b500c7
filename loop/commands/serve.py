"""`trace-sdk serve`: the active policy behind one OpenAI-compatible address."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import NoReturn

import typer

from loop.commands.context import database, home
from loop.commands.progress import Progress


def serve(
    model: Path | None = typer.Option(None, help="Folder of the base model; by default that of the active policy."),
    host: str = typer.Option("127.0.0.1", help="Address that the gateway listens on. It asks nobody for a key."),
    port: int = typer.Option(8001, min=0, max=65535, help="Port of the gateway; 0 picks a free one."),
    adapters: list[str] = typer.Option(
        [], "--adapters", "--adapter", help="Further adapters, served by name: name@version or NAME=FOLDER. Repeatable."
    ),
    as_json: bool = typer.Option(False, "--json", help="The address as one JSON document on stdout, once it serves."),
) -> None:
    """Serve until Ctrl-C. A policy that is promoted meanwhile is taken up without a restart."""
    from loop.serving import serving

    progress = Progress()
    # A service manager's stop is as good as Ctrl-C: without this, TERM would skip every clean-up.
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.suppress(KeyboardInterrupt), database() as db:
        progress.say("starting vLLM")
        with serving(db, home(), model, host=host, port=port, adapters=adapters) as running:
            gateway, server = running.gateway, running.server
            if as_json:
                served = {"url": gateway.url, "base_url": gateway.base_url, "token": gateway.token}
                print(
                    json.dumps(
                        {**served, "model": str(server.model), "policy": running.version, "upstream": server.url}
                    ),
                    flush=True,
                )
            else:
                print(f"serving {server.model} with policy {running.version} at {gateway.base_url}", flush=True)
                print(f"an agent under @trace.agent needs no change: TRACE_GATEWAY={gateway.base_url}", flush=True)
            running.keep(progress.say)
    progress.say("stopped")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
