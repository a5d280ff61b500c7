"""What we ask of a running vLLM: completions, log-probabilities, and LoRA adapters that come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog

from harness.serving.adapters import AdapterFolder, Shape, check_fits, read_adapter
from storage.errors import TraceError

log = structlog.get_logger()
BASE = "base"
"""The name that the base model is served under."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled continuation. ``logprobs`` are those of the sampled tokens, in nats, one for each token id."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


class VLLMClient:
    """Talks to a vLLM server at ``url`` ("http://127.0.0.1:8000"). Safe to use from several threads.

    ``served`` are the shapes of the linear layers that adapters are checked against (`linear_shapes`); empty: no check.
    Every method raises TraceError when the server cannot be reached or refuses.
    """

    def __init__(self, url: str, *, served: Mapping[str, Shape] | None = None, max_lora_rank: int = 32) -> None:
        self.url = url.rstrip("/")
        self.max_lora_rank = max_lora_rank
        self._served = served or {}
        self._adapters: dict[str, AdapterFolder] = {}
        self._bound: dict[str, str] = {}  # every name ever loaded → sha256, kept when it is unloaded
        # Loopback or a team's own host: a proxy from the environment would only be in the way.
        self._http = httpx.Client(trust_env=False, timeout=httpx.Timeout(600.0, connect=10.0))

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"{self.url}/v1"

    def healthy(self, timeout: float = 10.0) -> bool:
        """Whether the server answers its health check within ``timeout`` seconds."""
        try:
            return self._http.get(f"{self.url}/health", timeout=timeout).status_code == 200
        except httpx.HTTPError:
            return False

    def models(self) -> list[str]:
        """Names that a request's ``model`` may have: the base first, then the loaded adapters."""
        return [card["id"] for card in self._request("GET", "/v1/models")["data"]]

    def load_adapter(self, name: str, path: Path) -> AdapterFolder:
        """Serve the adapter folder ``path`` under ``name``, and check that it is served.

        A name is bound to its weights for good: under the same name vLLM can answer from prefix-cache blocks of
        the weights before (vllm-project/vllm issue 42125). Loading the same weights again does nothing.
        """
        folder = read_adapter(path)
        if self._bound.get(name, folder.sha256) != folder.sha256:
            raise TraceError(
                f"adapter {name} is already bound to other weights", where=str(path), fix="Load it under a new name."
            )
        if name == BASE:
            raise TraceError("an adapter cannot be called base", where=str(path), fix="Load it under another name.")
        if self._served:
            check_fits(folder, self._served, self.max_lora_rank)
        if name not in self.models():
            self._request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path.resolve())})
        elif name not in self._bound and self._root(name) != str(path.resolve()):
            raise TraceError(
                f"adapter {name} is already served from another folder", where=self.url, fix="Load it under a new name."
            )
        self._adapters[name] = folder
        self._bound[name] = folder.sha256
        if name not in self.models():
            raise TraceError(f"the server took adapter {name} but does not list it", where=self.url, fix="See its log.")
        log.info("adapter loaded", name=name, sha256=folder.sha256[:12], rank=folder.rank)
        return folder

    def unload_adapter(self, name: str) -> None:
        """Stop serving ``name``. Its name stays bound to its weights. Nothing happens when it isn't served."""
        if name in self.models():
            self._request("POST", "/v1/unload_lora_adapter", {"lora_name": name})
            self._adapters.pop(name, None)
            log.info("adapter unloaded", name=name)

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        model: str = BASE,
        max_tokens: int = 64,
        temperature: float = 0.0,
        n: int = 1,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> list[Completion]:
        """Sample ``n`` continuations of a text or of token ids, with token ids and log-probabilities."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "n": n,
            "logprobs": 0,  # the sampled token's own log-probability, no alternatives
            "return_token_ids": True,
        }
        if seed is not None:
            body["seed"] = seed
        if stop:
            body["stop"] = list(stop)
        choices = self._request("POST", "/v1/completions", body)["choices"]
        return [
            Completion(
                text=choice["text"],
                token_ids=tuple(choice["token_ids"]),
                logprobs=tuple(choice["logprobs"]["token_logprobs"]),
                finish_reason=choice["finish_reason"],
            )
            for choice in choices
        ]

    def prompt_logprobs(self, token_ids: Sequence[int], *, model: str = BASE) -> list[float]:
        """Log-probability (nats) of each given token after those before it; the first token has none."""
        body = {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        entries = self._request("POST", "/v1/completions", body)["choices"][0]["prompt_logprobs"]
        return [entry[str(token)]["logprob"] for token, entry in zip(token_ids[1:], entries[1:], strict=True)]

    def verify_adapter(
        self,
        name: str,
        token_ids: Sequence[int],
        *,
        trained: Sequence[float],
        base: Sequence[float],
        tolerance: float = 0.15,
    ) -> bool | None:
        """Whether what is served under ``name`` follows the trainer's log-probabilities of ``token_ids``.

        ``trained`` and ``base`` are the trainer's own, with and without the adapter, as `prompt_logprobs` gives
        them. Looks only at tokens where the two differ by more than ``tolerance`` (nats), which has to be above
        the noise between two engines (0.055 in bfloat16). None when no token does: a new adapter equals the base.
        """
        telling = [i for i, (a, b) in enumerate(zip(trained, base, strict=True)) if abs(a - b) > tolerance]
        if not telling:
            return None
        served = self.prompt_logprobs(token_ids, model=name)
        to_trained = sum(abs(served[i] - trained[i]) for i in telling)
        to_base = sum(abs(served[i] - base[i]) for i in telling)
        return to_trained < to_base

    def close(self) -> None:
        self._http.close()

    def _root(self, name: str) -> str | None:
        cards = self._request("GET", "/v1/models")["data"]
        return next((card.get("root") for card in cards if card["id"] == name), None)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            response = self._http.request(method, f"{self.url}{path}", json=body)
        except httpx.HTTPError as error:
            raise TraceError(
                f"vLLM cannot be reached: {error or type(error).__name__}",
                where=self.url,
                fix="Check that it still runs, and its log.",
            ) from error
        if response.status_code >= 400:
            raise TraceError(f"vLLM refused {path}: {_reason(response)}", where=self.url, fix="See its log.")
        return response.json() if response.headers.get("content-type", "").startswith("application/json") else None


def _reason(response: httpx.Response) -> str:
    try:
        raw = response.json()
        return str((raw.get("error") or raw).get("message") or raw)
    except (ValueError, AttributeError):
        return response.text[:300] or f"status {response.status_code}"
