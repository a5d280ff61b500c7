"""The `trace-sdk` command: finds the module of the command that was asked for, and turns errors into exit codes.

Exit status: 0 done; 1 a clear error in one or two lines; 2 wrong usage; 3 done in part; 130 interrupted.
Only the module of the command that runs is imported, so `--help` and the cheap commands start fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

# LiteLLM fetches a price list on import unless told not to; the hub is never needed at run time.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import typer
from typer.core import TyperGroup

COMMANDS: dict[str, str] = {
    "demo": "Run the whole loop here: record, find what is lacking, train, gate, hot-swap, measure.",
    "doctor": "Check this machine, and say for each failure what to do.",
    "import": "Bring in trajectories that something else recorded.",
    "export": "Write recorded runs in a format that others read.",
    "prune": "Delete recorded runs, by age or because somebody asks for it.",
    "status": "What was recorded, found, trained and is being served.",
    "trajectories": "List or show recorded runs.",
    "feedback": "Say how a recorded run ended, also days later.",
    "analyze": "Contrast failures with successes: which capabilities does the agent lack?",
    "capabilities": "The capabilities found so far, and their history.",
    "environments": "Synthesize, admit, list, show and play environments.",
    "train": "Train one adapter in one environment.",
    "adapters": "The adapters that were trained, where they came from, and which one serves.",
    "evaluate": "Measure a policy on a task suite, or recompute a report from the database.",
    "serve": "Serve the active policy: vLLM behind the routing gateway.",
    "collect": "Take what agents on other machines record, and OTLP over HTTP.",
    "cycle": "Run or resume one improvement cycle.",
}


class _LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        attribute = "import_" if cmd_name == "import" else cmd_name
        module = importlib.import_module(f"loop.commands.{attribute}")
        found = getattr(module, "app", None) or getattr(module, attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(name=cmd_name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The overview is written from COMMANDS, so that `--help` imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Continuous improvement of a deployed LLM agent: record, contrast, train, gate, hot-swap.",
)


@app.callback()
def _root() -> None:
    """Home folder: TRACE_HOME (default .trace). Database: TRACE_DATABASE_URL (default trace.db in the home)."""


def main() -> None:
    """Entry point. Errors that a person can act on are printed without a traceback."""
    from loop.commands.logs import to_stderr
    from storage.errors import TraceError

    to_stderr()
    try:
        app()
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output went away (`| head`); nothing was left undone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
