"""The learned gate: which adapter, if any, a task should be served with. numpy only, deterministic.

A softmax over the arms {base, adapters} on features of the task's text. The arms' logits are linear in hashed
word and character n-grams; base's logit is 0. Fitted by maximising the expected measured reward
sum_i sum_k p_k(x_i) r_ik with an L2 penalty, so a text on which all arms do equally well pulls on nothing.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
BASE = "base"
DIMENSIONS = 4096
TOP_P = 0.9
GRID = 10
"""Mixture weights are multiples of 1/GRID, so that few mixtures exist and each is built once."""
PENALTIES = (0.3, 0.1, 0.03, 0.01, 0.003)
"""L2 penalties to choose from, strongest first: a strong one says which arm is better on the whole, a weak one follows
the text of single tasks, which with few outcomes may be chance."""
_TOOL_WEIGHT = 0.2
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Route:
    """What a task is served with: no part (base), one adapter arm of weight 1, or two whose weights sum to 1."""

    parts: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """ "base", "refund@1", or "refund@1*0.7+lookup@2*0.3"."""
        if not self.parts:
            return BASE
        if len(self.parts) == 1:
            return self.parts[0][0]
        return "+".join(f"{arm}*{weight:g}" for arm, weight in self.parts)


@dataclass(frozen=True, slots=True)
class Router:
    """A fitted gate. ``arms`` has base first; ``columns`` × ``values`` are the non-zero features' logits.

    ``columns`` (f,) are feature indices, ``values`` (f, len(arms)) their weights, ``bias`` (len(arms),).
    """

    arms: tuple[str, ...]
    columns: npt.NDArray[np.int64]
    values: Array
    bias: Array

    @classmethod
    def always_base(cls) -> Router:
        """The gate before anything was learned."""
        return cls((BASE,), np.zeros(0, np.int64), np.zeros((0, 1)), np.zeros(1))

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        rewards: npt.ArrayLike,
        arms: Sequence[str],
        *,
        tools: Sequence[Sequence[str]] | None = None,
        penalties: Sequence[float] = PENALTIES,
        margin: float = 0.02,
    ) -> Router:
        """Fit to measured rewards, shape (n_tasks, n_arms) in 0..1; ``arms`` names the columns, base among them.

        ``tools`` are the tool names each task offers. An arm earns its place: arms are added one at a time, best
        first, each only if the cross-validated reward rises by more than ``margin``; so is the penalty chosen among
        ``penalties``, where the earlier wins a tie. Raises ValueError on shapes that don't agree or rewards that
        aren't numbers.
        """
        table = np.asarray(rewards, dtype=np.float64)
        if BASE not in arms or len(set(arms)) != len(arms):
            raise ValueError(f"arms must be distinct and contain {BASE!r}, got {list(arms)}")
        if table.shape != (len(texts), len(arms)):
            raise ValueError(f"rewards have shape {table.shape}, not {(len(texts), len(arms))}")
        if not np.isfinite(table).all():
            raise ValueError("rewards must be numbers; leave out tasks that were not run on every arm")
        if not len(texts):
            return cls.always_base()
        names = tools if tools is not None else [()] * len(texts)
        features = np.stack([featurize(text, tool) for text, tool in zip(texts, names, strict=True)])
        chosen, penalty = _earned(features @ features.T, table, list(arms).index(BASE), penalties, margin)
        if len(chosen) == 1:
            return cls.always_base()
        dual = _ascend(features @ features.T, table[:, chosen], penalty)
        weights = features.T @ dual
        bias, body = weights[-1], weights[:-1]
        columns = np.flatnonzero(np.abs(body).max(axis=1) > 1e-9)
        return cls(tuple(arms[k] for k in chosen), columns, body[columns], bias)

    def weights(self, text: str, tools: Sequence[str] = ()) -> dict[str, float]:
        """Probability of each arm for this task. They sum to 1."""
        features = featurize(text, tools)
        probabilities = _softmax((features[self.columns] @ self.values + features[-1] * self.bias)[None])[0]
        return {arm: float(p) for arm, p in zip(self.arms, probabilities, strict=True)}

    def choose(self, text: str, tools: Sequence[str] = (), *, mixing: bool = True) -> Route:
        """The route of this task: top-p filter, then base (also on a tie), one adapter, or a mixture of two."""
        return route_of(self.weights(text, tools), mixing=mixing)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; `from_json` gives back an equal gate."""
        return {
            "kind": "softmax-ngrams",
            "dimensions": DIMENSIONS,
            "arms": list(self.arms),
            "bias": self.bias.tolist(),
            "columns": self.columns.tolist(),
            "values": self.values.tolist(),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Router:
        """Raises ValueError when this isn't what `to_json` wrote, or was written for other features."""
        if raw.get("kind") != "softmax-ngrams" or raw.get("dimensions") != DIMENSIONS:
            raise ValueError("not a router of this version")
        arms = tuple(raw["arms"])
        columns = np.asarray(raw["columns"], dtype=np.int64).reshape(-1)
        values = np.asarray(raw["values"], dtype=np.float64).reshape(len(columns), len(arms))
        bias = np.asarray(raw["bias"], dtype=np.float64)
        if bias.shape != (len(arms),) or not arms or arms[0] != BASE or (columns >= DIMENSIONS).any():
            raise ValueError("not a router of this version")
        return cls(arms, columns, values, bias)


def route_of(weights: Mapping[str, float], *, mixing: bool = True) -> Route:
    """From probabilities to a route. A mixture leaves base out: it has no delta to add; an arm takes part only if
    it is likelier than base."""
    best = max(weights.values())
    base = weights.get(BASE, 0.0)
    if base >= best - 1e-9:
        return Route()
    ranked = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    kept: list[tuple[str, float]] = []
    mass = 0.0
    for arm, weight in ranked:
        if mass >= TOP_P:
            break
        mass += weight
        kept.append((arm, weight))
    adapters = [item for item in kept if item[0] != BASE and item[1] > base + 1e-9][:2]
    if len(adapters) < 2 or not mixing:
        return Route(((adapters[0][0], 1.0),))
    (first, a), (second, b) = adapters
    share = round(GRID * a / (a + b)) / GRID
    if share >= 1.0:
        return Route(((first, 1.0),))
    # Equal shares in one order, whichever arm was ahead by a rounding error: one mixture, built once.
    parts = ((first, share), (second, round(1.0 - share, 10)))
    return Route(tuple(sorted(parts, key=lambda item: (-item[1], item[0]))))


def featurize(text: str, tools: Sequence[str] = ()) -> Array:
    """Features (DIMENSIONS + 1,): words, word pairs and character trigrams to pentagrams; the last is a constant 1.

    Digits become 0 and addresses become one word: which order it is says nothing about what has to be done.
    """
    text = re.sub(r"\S+@\S+", "@", text.lower())
    text = re.sub(r"\d", "0", text)
    words = re.findall(r"\w+|@", text)
    vector = np.zeros(DIMENSIONS + 1)
    _add(vector, [f"w {w}" for w in words] + [f"p {a} {b}" for a, b in pairwise(words)], 1.0)
    grams = [f"c {p[i : i + n]}" for p in (f"<{w}>" for w in words) for n in (3, 4, 5) for i in range(len(p) - n + 1)]
    _add(vector, grams, 0.5)
    _add(vector, [f"t {name}" for name in sorted(set(tools))], _TOOL_WEIGHT)
    vector[-1] = 1.0
    return vector


def _add(vector: Array, keys: Sequence[str], weight: float) -> None:
    block = np.zeros(DIMENSIONS)
    for key in keys:
        code = zlib.crc32(key.encode())
        # A sign from an unused bit: collisions cancel instead of adding up.
        block[code % DIMENSIONS] += 1.0 if code >> 31 else -1.0
    block = np.sign(block) * np.log1p(np.abs(block))
    norm = np.linalg.norm(block)
    if norm > 0:
        vector[:-1] += weight * block / norm


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _ascend(gram: Array, rewards: Array, penalty: float, steps: int = 300) -> Array:
    """Dual coefficients (n, k) of the best weights W = XᵀA, by gradient ascent with momentum from zero.

    Column 0 is base, whose logit stays 0. The objective is not concave in A; from zero, the uniform gate, the
    path is the same every time.
    """
    count = len(rewards)
    dual = np.zeros_like(rewards)
    speed = np.zeros_like(rewards)
    # The gradient's Lipschitz constant is about the largest eigenvalue of the Gram matrix / n.
    rate = count / max(float(np.linalg.eigvalsh(gram)[-1]), 1e-9)
    for _ in range(steps):
        p = _softmax(gram @ dual)
        gain = p * (rewards - (p * rewards).sum(axis=1, keepdims=True)) / count - penalty * dual
        gain[:, 0] = 0.0
        speed = 0.9 * speed + rate * gain
        dual = dual + speed
    return dual


def _earned(
    gram: Array, rewards: Array, base: int, penalties: Sequence[float], margin: float
) -> tuple[list[int], float]:
    """Columns worth having, base first, and the penalty: greedily, by cross-validated reward of the route taken."""
    chosen, penalty = [base], penalties[0]
    value = float(rewards[:, base].mean())
    rest = [k for k in range(rewards.shape[1]) if k != base]
    while rest:
        scored = [
            (_held_out(gram, rewards[:, [*chosen, k]], strength), -k, -place)
            for k in rest
            for place, strength in enumerate(penalties)
        ]
        best, negative, place = max(scored)
        if best <= value + margin:
            break
        value, penalty = best, penalties[-place]
        chosen.append(-negative)
        rest.remove(-negative)
    return chosen, penalty


def _held_out(gram: Array, rewards: Array, penalty: float) -> float:
    """Mean reward of the likeliest arm on tasks that the gate was not fitted to."""
    count = len(rewards)
    folds = min(_FOLDS, count)
    if folds < 2:
        return float(rewards[:, 0].mean())
    fold = np.arange(count) % folds
    earned = 0.0
    for held in range(folds):
        train, test = np.flatnonzero(fold != held), np.flatnonzero(fold == held)
        dual = _ascend(gram[np.ix_(train, train)], rewards[train], penalty)
        logits = gram[np.ix_(test, train)] @ dual
        # argmax takes the first of equals: base.
        earned += float(rewards[test, logits.argmax(axis=1)].sum())
    return earned / count
