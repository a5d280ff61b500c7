"""A flower shop for the tests of detectors: a customer names an address, the order behind it has to be changed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from harness.environment import Act
from storage.trajectory import Message, ToolCall, Trajectory


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    """A tool in OpenAI form whose parameters are all required."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = (
    tool("find_bouquets", "Bouquets that a customer ordered.", email="string"),
    tool("get_bouquet", "One bouquet.", bouquet_id="string"),
    tool("cancel_bouquet", "Cancel a bouquet.", bouquet_id="string"),
    tool("change_delivery", "Deliver a bouquet on another day.", bouquet_id="string", day="integer"),
)


class Shop:
    """The world of one seed: one customer with two bouquets, one of which is already delivered."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(f"flower shop {seed}")
        self.email = f"{draw.choice(['ada', 'ben', 'cleo', 'dov'])}{draw.randrange(10, 99)}@post.example"
        self.open_id, self.done_id = (f"BQ-{n}" for n in draw.sample(range(1000, 9999), 2))
        self.orders = {
            self.open_id: {"bouquet_id": self.open_id, "flower": "tulips", "status": "open"},
            self.done_id: {"bouquet_id": self.done_id, "flower": "roses", "status": "delivered"},
        }
        self.request = f"Please cancel the tulips that I ordered as {self.email}."

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name == "find_bouquets":
            found = list(self.orders.values()) if arguments.get("email") == self.email else []
            return json.dumps(found) if found else "Error: no customer with this address"
        order = self.orders.get(str(arguments.get("bouquet_id")))
        if name not in ("get_bouquet", "cancel_bouquet", "change_delivery"):
            return f"Error: unknown tool {name}"
        if order is None:
            return "Error: no such bouquet"
        if name == "get_bouquet":
            return json.dumps(order)
        if order["status"] != "open":
            return f"Error: the bouquet is {order['status']}"
        order["status"] = "cancelled" if name == "cancel_bouquet" else order["status"]
        return json.dumps(order)

    def reference(self) -> list[Act]:
        return [
            Act("find_bouquets", {"email": self.email}),
            Act("cancel_bouquet", {"bouquet_id": self.open_id}),
            Act(text=f"Your bouquet {self.open_id} has been cancelled."),
        ]


def play(shop: Shop, acts: Sequence[Act], *, id: str = "run", success: bool | None = None, **fields: Any) -> Trajectory:
    """The trajectory of an agent that does exactly these acts."""
    messages = [Message("system", "You work for a flower shop."), Message("user", shop.request)]
    for index, act in enumerate(acts):
        if act.tool is None:
            messages.append(Message("assistant", act.text))
            continue
        call = ToolCall.parse(f"c{index}", act.tool, json.dumps(dict(act.arguments)))
        messages.append(Message("assistant", "", (call,)))
        messages.append(Message("tool", shop.call(act.tool, act.arguments), tool_call_id=call.id))
    fields.setdefault("tools", TOOLS)
    return Trajectory(id=id, agent="florist", messages=tuple(messages), success=success, **fields)
