"""A person in the agent's seat, in the terminal."""

from __future__ import annotations

import json
import re
from typing import Any

from harness.arguments import function_of
from harness.environment import Act, Environment
from harness.policies import act_message
from harness.scoring import score

_CALL = re.compile(r"^\s*(\w[\w.-]*)\s*(\{.*\})\s*$", re.S)


def play_in_terminal(env: Environment, seed: int) -> None:
    """Play one task on stdin and stdout. Ends when the user has nothing more to say, or at the end of input."""
    task = env.reset(seed)
    before = env.state()
    messages: list[dict[str, Any]] = []
    names = [str(function_of(tool).get("name")) for tool in env.tools]
    print(f"tools: {', '.join(names)}\n")
    for message in task.messages:
        print(f"{message.get('role')}: {message.get('content')}\n")
    while True:
        try:
            line = input("> ")
        except EOFError:
            break
        call = _CALL.match(line)
        if call and call[1] in names:
            try:
                arguments = json.loads(call[2])
            except ValueError as error:
                print(f"not JSON: {error}")
                continue
            messages.append(act_message(Act(call[1], arguments), len(messages)))
            answer = env.call(call[1], arguments)
            messages.append({"role": "tool", "content": answer})
            print(f"{answer}\n")
            continue
        messages.append({"role": "assistant", "content": line})
        following = env.respond(line)
        if following is None:
            break
        messages.append({"role": "user", "content": following})
        print(f"user: {following}\n")
    result = score(env.goals(), before, env.state(), messages, reference=env.reference(), tools=env.tools)
    print(f"\n{'solved' if result.success else 'not solved'}, total {result.total:.2f}, reward {result.shaped:.2f}")
    for reason in result.reasons:
        print(f"  {reason}")
