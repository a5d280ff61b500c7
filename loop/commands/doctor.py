"""`trace-sdk doctor`: is this machine ready?"""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from loop.commands.context import home
from loop.doctor import run_checks


def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON document on stdout.")) -> None:
    """Check Python, packages, the torchvision trap, vLLM, model, disk, ports, database and sandbox."""
    checks = list(run_checks(home()))
    failed = any(check.level == "failure" for check in checks)
    if as_json:
        print(json.dumps({"checks": [asdict(c) for c in checks], "ready": not failed}, indent=2))
    else:
        for check in checks:
            print(f"{check.level:<8} {check.id:<12} {check.saw}")
            if check.fix:
                print(f"{'':<8} {'':<12} → {check.fix}")
    if failed:
        raise typer.Exit(1)
