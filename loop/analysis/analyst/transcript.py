"""A run as text for a model to read: without its outcome, and short without losing calls, errors and changes."""

from __future__ import annotations

from collections.abc import Iterator

from loop.analysis.view import Action, View

BUDGET = 24_000
# Characters kept of (prose, results of look-ups, system prompt) at each stage of shortening, until the text fits.
_STAGES = ((4000, 3000, 6000), (1200, 800, 3000), (500, 250, 1500), (200, 80, 600))
# Never shortened below this: what was called, refused or changed.
_VITAL = 400


def render(view: View, budget: int = BUDGET) -> str:
    """The transcript in at most about ``budget`` characters; calls are ``s0``, …, messages ``m0``, ….

    If even the shortest form is longer, prose in the middle gives way, never a call.
    """
    text = ""
    for prose, looked, system in _STAGES:
        text = "\n".join(_lines(view, prose, looked, system))
        if len(text) <= budget:
            return text
    lines = list(_lines(view, *_STAGES[-1]))
    middle = sorted(
        (i for i, line in enumerate(lines) if line.startswith("m") and 0 < i < len(lines) - 1),
        key=lambda i: abs(i - len(lines) // 2),
    )
    length = len(text)
    for index in middle:
        if length <= budget:
            break
        length -= len(lines[index])
        lines[index] = ""
    return "\n".join(line for line in lines if line)


def _lines(view: View, prose: int, looked: int, system: int) -> Iterator[str]:
    by_position: dict[int, list[Action]] = {}
    for action in view.actions:
        by_position.setdefault(action.position, []).append(action)
    for index, message in enumerate(view.messages):
        if message.role == "tool":
            continue
        if message.content.strip():
            yield f"m{index} {message.role}: {_cut(message.content, system if message.role == 'system' else prose)}"
        for action in by_position.get(index, ()):
            yield f"s{action.index} call {action.tool} {_cut(action.call.raw_arguments, max(prose, _VITAL))}"
            if action.result is None:
                yield "   no answer"
            else:
                kept = max(looked, _VITAL) if action.error or action.write else looked
                yield f"   {'refused' if action.error else 'answer'}: {_cut(action.result, kept)}"


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    head = length * 2 // 3
    return f"{text[:head]} […] {text[-(length - head) :]}"
