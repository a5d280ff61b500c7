"""The module as a file and as a spec: what a model wrote, below the lines that carry the agent's own interface."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.environment import Environment
from storage.errors import TraceError

Json = Any
Make = Callable[[], Environment]
FORMAT = "generated-environment"
VERSION = 1
LONGEST = 200_000
"""Characters of a module. What is longer was not written with care, and the sandbox need not read it."""
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.S)
_FUTURE = re.compile(r"^from __future__ import .*$", re.M)
_MARK = "# ---- written by a model from here on ----\n"


def code_in(answer: str) -> str | None:
    """The Python code of an answer: its longest fenced block, or all of it when it has none. None: there is none."""
    blocks = _FENCED.findall(answer)
    code = max(blocks, key=len) if blocks else answer
    return code.strip() + "\n" if "def make" in code or "make =" in code else None


def compose(code: str, tools: Sequence[Mapping[str, Json]], system: str) -> str:
    """The whole module. The agent's tools and system prompt are put in as they were recorded, so that no model has to
    copy them; a ``__future__`` import has to be the first line of a file, wherever the model put it."""
    return (
        "from __future__ import annotations\n\n"
        "import json\n\n"
        "from harness.environment import Act, Goals, RequiredCall, Task\n\n"
        f"TOOLS = json.loads({json.dumps(list(tools))!r})\n"
        f"SYSTEM = {system!r}\n\n"
        f"{_MARK}{_FUTURE.sub('', code)}"
    )


def written_part(source: str) -> str:
    """What the model wrote of a composed module."""
    return source.partition(_MARK)[2].strip()


def spec_of(source: str) -> dict[str, Json]:
    """A composed module as the database keeps it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "module": source,
    }


def open_spec(spec: Mapping[str, Json], *, allow_weaker: bool = False, where: str = "") -> Make:
    """A factory of sandboxed environments from a stored spec. Raises TraceError for a spec that is none, for a machine
    that can't contain foreign code, and for faults of the module."""
    from harness.sandbox.host import open_module

    source = spec.get("module")
    if spec.get("format") != FORMAT or spec.get("version") != VERSION or not isinstance(source, str):
        fix = "Make it anew with `trace-sdk environments synthesize --generated`."
        raise TraceError("not a generated environment of this version", where=where, fix=fix)
    folder = tempfile.TemporaryDirectory(prefix="environment-")
    path = Path(folder.name) / "generated.py"
    path.write_text(source, encoding="utf-8")
    make = open_module(path, allow_weaker=allow_weaker)
    # The sandbox reads the file whenever it needs a new process: it stays as long as the factory does.
    weakref.finalize(make, folder.cleanup)
    return make
