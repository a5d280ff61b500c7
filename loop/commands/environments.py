"""`trace-sdk environments`: synthesize, admit, list, show and play environments."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loop.commands.context import database, home
from loop.commands.output import moment, print_json, printable, table
from storage.errors import TraceError

if TYPE_CHECKING:
    from harness.admission import AdmissionReport
    from loop.analysis.labels import Detector
    from storage.database import Database

app = typer.Typer(no_args_is_help=True, help="Synthesize, admit, list, show and play environments.")

_AGENT = typer.Option(None, "--agent", help="Only this agent's.")
_JSON = typer.Option(False, "--json", help="One JSON document on stdout.")
_WEAKER = typer.Option(
    False,
    "--allow-weaker-sandbox",
    help="Run a Python module in a plain process: nothing contains it, it has your rights, files and network.",
)
_CAPABILITY = typer.Option(None, "--capability", help="A capability's name or id, or a detector's id.")


@app.command("list")
def list_(agent: str | None = _AGENT, as_json: bool = _JSON) -> None:
    """Every environment with the verdict of its latest admission, newest first."""
    from loop.synthesis import store

    with database() as db:
        rows = store.listed(db, agent)
    if as_json:
        print_json({"environments": rows})
        return
    if not rows:
        print("no environments yet: run `trace-sdk environments synthesize --agent NAME`")
        return
    table(
        [
            [
                r["id"],
                r["agent"],
                r["name"],
                r["kind"],
                r["state"],
                ", ".join(r["failed"]) or "–",
                moment(r["created_at"]),
            ]
            for r in rows
        ],
        ["id", "agent", "name", "kind", "state", "failed checks", "made"],
    )


@app.command("show")
def show(id: str = typer.Argument(help="Id or name of an environment."), as_json: bool = _JSON) -> None:
    """What an environment rests on, and how its latest admission went."""
    from loop.synthesis import store
    from loop.synthesis.induced import EvidenceReport

    with database() as db:
        row = store.find(db, id)
        checks = store.latest_checks(db, row.id)
    evidence = (row.spec or {}).get("evidence")
    head = {n: getattr(row, n) for n in ("id", "name", "agent", "capability", "kind", "state", "created_at")}
    if as_json:
        print_json({**head, "checks": checks, "evidence": evidence})
        return
    print(f"{row.id}  {row.name}  {row.agent}  {row.kind}, {row.state}  {moment(row.created_at)}")
    for line in EvidenceReport.from_json(evidence).lines() if evidence else []:
        print(printable(line))
    if row.kind == "generated" and row.evidence:
        e = row.evidence
        print(printable(f"  written by {e['model']}, round {e['round']} of {e['rounds']}: {e['file']}"))
    for c in checks:
        mark = "pass" if c["passed"] else "FAIL"
        print(f"  {mark}  {c['name']:<18} {c['value']:>8.3f}  {c['threshold']:<10} {printable(c['detail'])}")


@app.command("synthesize")
def synthesize(
    agent: str = typer.Option(..., "--agent", help="The agent whose runs are the evidence."),
    capability: str | None = _CAPABILITY,
    tools: Path | None = typer.Option(None, "--tools", help="The agent's tool schemas, if they were not recorded."),
    out: Path | None = typer.Option(None, "--out", help="Write the spec (or the generated module) to this file, too."),
    generated: bool = typer.Option(False, "--generated", help="Let a model write it, and admit what it writes."),
    model: str | None = typer.Option(None, "--model", help="With --generated: the model (LiteLLM name)."),
    rounds: int = typer.Option(5, "--rounds", min=1, max=20, help="With --generated: how often it may try."),
    api_base: str | None = typer.Option(None, "--api-base", help="Address of the model's server, if it is your own."),
    budget: float | None = typer.Option(None, "--budget", min=0.0, help="Most the model may cost, in dollars."),
    held_out: Path | None = typer.Option(
        None, "--held-out", help="Requests of the gate and report splits, one a line."
    ),
    weaker: bool = _WEAKER,
    as_json: bool = _JSON,
) -> None:
    """Make an environment from recorded runs. Exit status 1 when the evidence is too thin, or nothing was admitted."""
    from loop.synthesis import store
    from loop.synthesis.induced import EvidenceReport, induce
    from storage.trajectories import load

    if generated != (model is not None):
        raise typer.BadParameter("--generated and --model go together")
    schemas = _read_json(tools) if tools else None
    if generated:
        texts = _read_lines(held_out) if held_out else []
        _generate(agent, capability, str(model), api_base, budget, rounds, schemas, texts, weaker, out, as_json)
        return
    with database() as db:
        runs = [run for run in load(db, agent=agent) if run.trainable]
        if not runs:
            raise TraceError("this agent has no recorded runs", where=agent, fix="`trace-sdk status` names the agents.")
        row_id, detector = store.capability_of(db, agent, capability)
        made = induce(runs, detector, tools=schemas)
        evidence = made if isinstance(made, EvidenceReport) else made.evidence
        id = None
        if not isinstance(made, EvidenceReport):
            spec = made.to_json()
            id = store.keep(db, agent, made.name, spec, {"capability": evidence.capability}, row_id)
            if out is not None:
                _write(out, json.dumps(spec, indent=1))
    if as_json:
        print_json({"id": id, "evidence": evidence.to_json()})
    else:
        print("\n".join(printable(line) for line in evidence.lines()))
        print(f"environment {id}" if id else "no environment: the evidence is too thin")
    if id is None:
        raise typer.Exit(1)


def _generate(
    agent: str,
    capability: str | None,
    model: str,
    api_base: str | None,
    budget: float | None,
    rounds: int,
    tools: list[Any] | None,
    held_out: list[str],
    weaker: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    from loop.analysis.analyst import LiteLLMClient
    from loop.synthesis.generated import Attempt, work
    from loop.synthesis.generated.generate import ANSWER_TOKENS

    def say(attempt: Attempt) -> None:
        if not as_json:
            verdict = "admitted" if attempt.report.admitted else f"not admitted: {', '.join(attempt.failed)}"
            print(f"round {attempt.number} of {rounds}: {verdict}", flush=True)

    if capability is None:
        raise typer.BadParameter("--generated needs a --capability to write for")
    with database() as db:
        wanted = work.wanted(db, agent, capability)
        client = LiteLLMClient(model, api_base=api_base, timeout=600, max_tokens=ANSWER_TOKENS, as_json=False)
        made = work.write_environment(
            db,
            agent,
            wanted,
            client,
            home(),
            rounds=rounds,
            budget=budget,
            tools=tools,
            held_out=held_out,
            allow_weaker=weaker,
            on_round=say,
        )
    report, ledger = made.attempt.report, made.ledger
    if out is not None and report.admitted:
        _write(out, made.attempt.source)
    if as_json:
        spent = {"calls": ledger.calls, "prompt_tokens": ledger.prompt_tokens, "cost": ledger.spent}
        print_json({"id": made.id, "round": made.attempt.number, **report.to_json(), **spent})
    else:
        print("\n".join(printable(line) for line in report.lines()))
        tokens = f"{ledger.prompt_tokens} tokens read, {ledger.completion_tokens} written, ${ledger.spent:.2f}"
        print(f"environment {made.id} ({tokens})")
    if not report.admitted:
        raise typer.Exit(1)


@app.command("admit")
def admit_(
    target: str = typer.Argument(help="A spec (.json), a Python module with make() (.py), or an environment's id."),
    agent: str = typer.Option(..., "--agent", help="The agent that will be trained in it."),
    capability: str | None = _CAPABILITY,
    tools: Path | None = typer.Option(None, "--tools", help="The agent's tool schemas, if they were not recorded."),
    held_out: Path | None = typer.Option(
        None, "--held-out", help="Requests of the gate and report splits, one a line."
    ),
    weaker: bool = _WEAKER,
    as_json: bool = _JSON,
) -> None:
    """Play an environment with policies that need no model, and say whether it may be used (exit status 1: not)."""
    path = Path(target)
    with database() as db:
        schemas = _read_json(tools) if tools else _recorded_tools(db, agent)
        texts = _read_lines(held_out) if held_out else []
        if path.suffix in (".json", ".py") or path.is_file():
            id, report = _admit_file(db, path, agent, capability, schemas, texts, weaker)
        else:
            id, report = _admit_row(db, target, agent, capability, schemas, texts, weaker)
    if as_json:
        print_json({"id": id, **report.to_json()})
    else:
        print("\n".join(printable(line) for line in report.lines()))
        print(f"environment {id}")
    if not report.admitted:
        raise typer.Exit(1)


def _admit_file(
    db: Database, path: Path, agent: str, capability: str | None, tools: list[Any], held_out: list[str], weaker: bool
) -> tuple[str, AdmissionReport]:
    """Admit a file and keep it: what it holds is an environment of the agent's from now on."""
    from loop.synthesis import store
    from loop.synthesis.generated import FORMAT, spec_of
    from storage import tables

    row_id, detector = store.capability_of(db, agent, capability)
    report = _admission(path, detector, tools, held_out, weaker)
    try:
        text = path.read_text(encoding="utf-8")
        spec = spec_of(text) if path.suffix == ".py" else json.loads(text)
    except (OSError, ValueError) as error:
        raise TraceError(f"the environment was judged and cannot be kept: {error}", where=str(path)) from error
    row = tables.Environment(
        name=report.environment,
        agent=agent,
        capability=row_id,
        kind="module" if spec.get("format") == FORMAT else "induced",
        spec=spec,
        evidence={"file": str(path.resolve()), **({"capability": detector.id} if detector else {})},
    )
    return store.keep_or_find(db, row, report), report


def _admit_row(
    db: Database, id: str, agent: str, capability: str | None, tools: list[Any], held_out: list[str], weaker: bool
) -> tuple[str, AdmissionReport]:
    from loop.synthesis import store
    from loop.synthesis.generated import work
    from loop.synthesis.generated.brief import systems_of
    from storage.trajectories import load

    row = store.find(db, id)
    if row.agent != agent:
        raise TraceError(f"this environment is {row.agent}'s", where=id, fix=f"Pass --agent {row.agent}.")
    # A capability's detector also tells which lapse to play; without one that part of admission is left out.
    named = capability or row.capability or (row.evidence or {}).get("capability")
    systems: list[str] = []
    if row.kind == "generated":  # may be of a capability that a model found, which has no detector
        detector = work.wanted(db, agent, str(named)).detector
        systems = systems_of(load(db, agent=agent))
    else:
        detector = None if named in (None, "any capability") else store.capability_of(db, agent, named)[1]
    with tempfile.TemporaryDirectory() as folder:
        if row.kind == "induced":
            path = Path(folder) / "environment.json"
            path.write_text(json.dumps(row.spec), encoding="utf-8")
        else:
            path = Path(folder) / "environment.py"
            path.write_text(str(row.spec["module"]), encoding="utf-8")
        report = _admission(path, detector, tools, held_out, weaker, systems)
    store.keep_admission(db, row, report)
    return row.id, report


def _admission(
    path: Path,
    detector: Detector | None,
    tools: list[Any],
    held_out: list[str],
    weaker: bool,
    systems: Sequence[str] = (),
) -> AdmissionReport:
    from harness.admission import admit
    from loop.synthesis.labels import labeler
    from loop.synthesis.loading import fingerprint_elsewhere, load_environment

    return admit(
        load_environment(path, allow_weaker=weaker),
        tools,
        lapse=detector.lapse if detector else None,
        label=labeler(detector) if detector else None,
        systems=systems,
        held_out=held_out,
        elsewhere=lambda seeds: fingerprint_elsewhere(path, seeds, allow_weaker=weaker),
    )


@app.command("play")
def play(
    target: str = typer.Argument(help="A spec (.json), a Python module with make() (.py), or an environment's id."),
    seed: int = typer.Option(0, "--seed", help="Which task."),
    weaker: bool = _WEAKER,
) -> None:
    """Take the agent's seat: type `tool {"argument": "value"}` to call a tool, anything else to answer the user."""
    from loop.synthesis import store
    from loop.synthesis.loading import from_spec, load_environment
    from loop.synthesis.playing import play_in_terminal

    path = Path(target)
    if path.suffix in (".json", ".py") or path.is_file():
        make = load_environment(path, allow_weaker=weaker)
    else:
        with database() as db:
            make = from_spec(store.find(db, target).spec, target)
    play_in_terminal(make(), seed)


def _recorded_tools(db: Database, agent: str) -> list[Any]:
    """The schemas of the agent's latest run that had any."""
    from storage.trajectories import load

    with_tools = [run for run in load(db, agent=agent) if run.tools]
    if not with_tools:
        fix = "Import its runs with their tools, or pass --tools FILE."
        raise TraceError("no tool schemas are recorded for this agent", where=agent, fix=fix)
    own = [run for run in with_tools if not run.reference] or with_tools
    return list(max(own, key=lambda run: run.started_at).tools)


def _read_json(path: Path) -> list[Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"the tool schemas cannot be read: {error}", where=str(path)) from error
    if not isinstance(value, list):
        raise TraceError("the tool schemas are not a JSON list", where=str(path))
    return value


def _read_lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"the held-out requests cannot be read: {error}", where=str(path)) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraceError(f"the spec cannot be written: {error}", where=str(path)) from error
