"""What the database says should serve, served: the active policy behind the gateway, also when another one follows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from sqlmodel import select

from harness.router import BASE, Router
from harness.serving.gateway import Gateway
from harness.serving.policy import Arm, Policy
from harness.serving.vllm import VLLMServer
from loop.cycle.policies import active_policy, arm_of, served_name
from storage import tables
from storage.database import Database
from storage.errors import TraceError

log = structlog.get_logger()


@dataclass
class Serving:
    """A running server and gateway. ``version`` is that of the stored policy, 0 while nothing was promoted."""

    database: Database
    server: VLLMServer
    gateway: Gateway
    version: int = 0

    def follow(self) -> bool:
        """Take up the active policy if it isn't the one that serves; whether it was. No restart.

        Raises TraceError when it cannot be served; what served before goes on.
        """
        row = active_policy(self.database)
        if row is None or row.version == self.version:
            return False
        if Path(row.base).resolve() != self.server.model.resolve():
            raise TraceError(
                f"policy {row.version} is for another base model",
                where=row.base,
                fix=f"Stop, and serve it with --model {row.base}",
            )
        self.gateway.set_policy(stored_policy(self.database, row, self.server.load_adapter))
        self.version = row.version
        return True

    def keep(self, say: Callable[[str], None], *, every: float = 2.0) -> None:
        """Until interrupted: follow the database, and start vLLM again when it dies. Looks every ``every`` seconds.

        Raises TraceError when vLLM cannot be started again.
        """
        refused: str | None = None
        while True:
            time.sleep(every)
            if not self.server.running:
                say("vLLM ended; starting it again")
                self.server.start()
                say("vLLM serves again")
            try:
                if self.follow():
                    say(f"policy {self.version} serves from now on")
                refused = None
            except TraceError as error:
                if str(error) != refused:  # said once, not at every look
                    say(f"not taken up: {error}")
                refused = str(error)


@contextlib.contextmanager
def serving(
    database: Database, home: Path, model: Path | None, *, host: str, port: int, adapters: Sequence[str] = ()
) -> Iterator[Serving]:
    """Serve the active policy, or ``model`` alone when there is none; stops what it started.

    ``adapters`` are further ones that can be asked for by name: `name@version` from the database, or NAME=FOLDER.
    Raises TraceError when there is nothing to serve.
    """
    row = active_policy(database)
    if model is None and row is None:
        raise TraceError(
            "nothing was promoted yet, so there is no policy to serve",
            where=database.location,
            fix="Give the folder of a base model with --model, or run `trace-sdk cycle` first.",
        )
    folder = model or Path(row.base if row is not None else "")
    extra = [_adapter(database, wanted) for wanted in adapters]
    with VLLMServer(folder, log=home / "logs" / "vllm-serve.log", adapters_dir=home / "mixtures") as server:
        for name, path in extra:
            server.load_adapter(name, path)
        with Gateway(server.url, Policy("0"), host=host, port=port, mixer=server.serve_mixture) as gateway:
            found = Serving(database, server, gateway)
            found.follow()
            yield found


def stored_policy(database: Database, row: tables.Policy, load: Callable[[str, Path], object]) -> Policy:
    """The gateway's form of a stored policy, after ``load(name, folder)`` of each of its adapters."""
    with database.session() as session:
        router = session.get(tables.Router, row.router) if row.router else None
    arms = [Arm(BASE)]
    for name in row.adapters or []:
        adapter = _stored_adapter(database, name)
        load(served_name(adapter), Path(adapter.path))
        arms.append(arm_of(adapter))
    return Policy(str(row.version), tuple(arms), Router.from_json(router.weights) if router else None)


def _adapter(database: Database, wanted: str) -> tuple[str, Path]:
    name, given, path = wanted.partition("=")
    return (name, Path(path)) if given else (name, Path(_stored_adapter(database, name).path))


def _stored_adapter(database: Database, name: str) -> tables.Adapter:
    base, _, version = name.rpartition("@")
    with database.session() as session:
        query = select(tables.Adapter).where(
            tables.Adapter.name == base, tables.Adapter.version == (int(version) if version.isdecimal() else -1)
        )
        found = session.exec(query).first()
    if found is None:
        raise TraceError(
            f"no adapter {name}", where=database.location, fix="`trace-sdk adapters list` names them; or NAME=FOLDER."
        )
    return found
