"""Asking a model: one contract, LiteLLM behind it, a cache by content, and a budget that is never exceeded."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from storage.errors import TraceError

log = structlog.get_logger()
MAX_ANSWER_TOKENS = 2000
TRIES = 6
# Seconds. Rate limits are counted by the minute.
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered, and what that took. ``cost`` is in US dollars, 0 where the price is unknown."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class Client(Protocol):
    """Sends one prompt. Raises TraceError for what no retry mends (no key, no such model)."""

    model: str

    async def complete(self, system: str, user: str) -> Reply:
        """The answer, after whatever retries the client makes."""
        ...

    def worst_cost(self, system: str, user: str) -> float:
        """The most that this call may cost, in US dollars. Raises TraceError where prices are unknown."""
        ...


class BudgetSpent(TraceError):
    """The next call could exceed the budget. What was answered so far is kept, and a later run goes on from there."""


@dataclass
class Ledger:
    """What was spent, and a cap on it. Calls reserve their worst case first, so that many at once keep the cap."""

    budget: float | None = None
    spent: float = 0.0
    reserved: float = 0.0
    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def reserve(self, worst: float) -> None:
        """Set ``worst`` aside. Raises BudgetSpent when it does not fit any more."""
        if self.budget is not None and self.spent + self.reserved + worst > self.budget + 1e-9:
            raise BudgetSpent(
                f"the budget of ${self.budget:.2f} is used up (${self.spent:.2f} spent in {self.calls} calls)",
                fix="run it again with a larger --budget: what was answered is kept and not paid for twice",
            )
        self.reserved += worst

    def settle(self, worst: float, reply: Reply | None) -> None:
        """Give back a reservation and book what the call really took."""
        self.reserved -= worst
        if reply is not None:
            self.calls += 1
            self.spent += reply.cost
            self.prompt_tokens += reply.prompt_tokens
            self.completion_tokens += reply.completion_tokens


@dataclass
class CachedClient:
    """A client whose answers are kept in files named by what was asked. ``variant`` tells passes apart."""

    client: Client
    folder: Path
    ledger: Ledger = field(default_factory=Ledger)

    async def ask(self, system: str, user: str, variant: int) -> str:
        """The answer to this question in this pass: from the cache, else from the model. Raises TraceError."""
        path = self._path(system, user, variant)
        try:
            text = str(json.loads(path.read_text("utf-8"))["text"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        else:
            self.ledger.cached += 1
            return text
        worst = self.client.worst_cost(system, user) if self.ledger.budget is not None else 0.0
        self.ledger.reserve(worst)
        try:
            reply = await self.client.complete(system, user)
        except BaseException:
            self.ledger.settle(worst, None)
            raise
        self.ledger.settle(worst, reply)
        _write(path, asdict(reply))
        return reply.text

    def forget(self, system: str, user: str, variant: int) -> None:
        """Drop an answer that turned out to be of no use, so that the same question is put again."""
        self._path(system, user, variant).unlink(missing_ok=True)

    def _path(self, system: str, user: str, variant: int) -> Path:
        asked = json.dumps([self.client.model, system, user, variant]).encode()
        return self.folder / f"{hashlib.sha256(asked).hexdigest()}.json"


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Written aside and renamed: a killed run leaves no half answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(value, file)
    Path(name).replace(path)


class LiteLLMClient:
    """Any provider that LiteLLM knows, by its model name; ``api_base`` for a server of one's own.

    ``max_tokens`` bounds one answer; ``as_json`` asks the provider for a JSON object; ``timeout`` is in seconds.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        temperature: float = 0.7,
        timeout: float = 120,
        max_tokens: int = MAX_ANSWER_TOKENS,
        as_json: bool = True,
    ):
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        # It prints advice on stdout, where a command's JSON belongs.
        litellm.suppress_debug_info = True
        self.model = model
        self._litellm = litellm
        self.max_tokens = max_tokens
        self._options: dict[str, Any] = {"temperature": temperature, "timeout": timeout, "drop_params": True}
        if as_json:
            self._options["response_format"] = {"type": "json_object"}
        if api_base is not None:
            # Local servers ask for no key; the clients behind LiteLLM insist on one.
            self._options |= {"api_base": api_base, "api_key": os.environ.get("OPENAI_API_KEY") or "none"}
            return
        missing = litellm.validate_environment(model).get("missing_keys") or []
        if missing:
            raise TraceError(
                f"there is no key for {model}",
                where=f"environment variable {' or '.join(missing)}",
                fix="set it, or do without: detectors and induced environments need no model",
            )

    def worst_cost(self, system: str, user: str) -> float:
        # No tokenizer in use makes more than one token of a byte; four characters a token are usual. What is set
        # aside too much comes back with the answer, so it only costs the last calls before a budget ends.
        tokens = len(system.encode()) + len(user.encode()) + 50
        try:
            prices = self._litellm.cost_per_token(
                model=self.model, prompt_tokens=tokens, completion_tokens=self.max_tokens
            )
        except Exception as error:
            raise TraceError(
                f"the price of {self.model} is unknown, so a budget cannot be kept", fix="leave out --budget"
            ) from error
        return float(sum(prices))

    async def complete(self, system: str, user: str) -> Reply:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        for attempt in range(TRIES):
            try:
                answer: Any = await self._litellm.acompletion(
                    model=self.model,
                    messages=messages,
                    max_tokens=self.max_tokens,
                    num_retries=0,
                    **self._options,
                )
                break
            except Exception as error:
                status = getattr(error, "status_code", None)
                passing = status in (408, 409, 429) or status is None or int(status) >= 500
                if not passing or attempt == TRIES - 1:
                    reason = " ".join(str(error).split())[:200]
                    raise TraceError(f"{self.model} did not answer: {reason}") from error
                log.info("analyst_retry", model=self.model, attempt=attempt + 1, status=status)
                await asyncio.sleep(_pause(error, attempt))
        usage = getattr(answer, "usage", None)
        return Reply(
            text=str(answer.choices[0].message.content or ""),
            prompt_tokens=int(getattr(usage, "prompt_tokens", 0) or 0),
            completion_tokens=int(getattr(usage, "completion_tokens", 0) or 0),
            cost=self._cost(answer),
        )

    def _cost(self, answer: Any) -> float:
        try:
            return float(self._litellm.completion_cost(completion_response=answer, model=self.model))
        except Exception:
            # A model that LiteLLM has no price for, usually one's own.
            return 0.0


def _pause(error: Exception, attempt: int) -> float:
    """Seconds until the next try: what the provider asks for (a rate limit's `retry-after`), else 1, 2, 4, …."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        asked = float(headers["retry-after"])
    except (KeyError, TypeError, ValueError):
        asked = 2.0**attempt
    return min(max(asked, 0.0), LONGEST_PAUSE)
