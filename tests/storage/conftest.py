"""The suite runs against SQLite and against a real PostgreSQL, started for the session in a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.database import Database, open_database


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """An empty database of each kind; also what `open_database` opens by itself meanwhile, here and in children."""
    monkeypatch.delenv("TRACE_DATABASE_URL", raising=False)
    if request.param == "postgresql":
        monkeypatch.setenv("TRACE_DATABASE_URL", request.getfixturevalue("postgresql")())
    with open_database(home=tmp_path) as opened:
        yield opened


def _binaries() -> Path | None:
    """The folder of the newest server's programs."""
    on_path = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    found = installed[-1] if installed else Path(on_path) if on_path else None
    return found.parent if found else None


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[], str]]:
    """Makes databases without runs on a server that lives as long as the session, and gives their addresses."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed (pip install 'psycopg[binary]')")
    # Not in pytest's folder, which is closed to others: the server refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="trace-postgresql-"))
    as_other: list[str] = []
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("the tests run as root, and setpriv is missing: PostgreSQL runs as no root")
        as_other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        os.chown(folder, 65534, 65534)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = folder / "data"

    def call(*command: str) -> None:
        done = subprocess.run(
            [*as_other, *command],
            cwd=folder,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    call(str(binaries / "initdb"), "-D", str(data), "-U", "trace", "-A", "trust", "-E", "UTF8", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off -c max_connections=30"
    start = [str(binaries / "pg_ctl"), "-D", str(data), "-w", "-t", "90", "-l", str(folder / "log"), "-o", options]
    call(*start, "start")

    def database(template: str = "migrated") -> str:
        import psycopg

        name = f"t{secrets.token_hex(6)}" if template == "migrated" else "migrated"
        with psycopg.connect(f"postgresql://trace@127.0.0.1:{port}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return f"postgresql+psycopg://trace@127.0.0.1:{port}/{name}"

    # Migrated once and copied: that is quicker than migrating each.
    open_database(database("template0")).close()
    yield database
    call(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    shutil.rmtree(folder)
