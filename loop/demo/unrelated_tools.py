"""Dialogues about tools that have nothing to do with any agent of the examples, for teaching the form of a call.

Everything is drawn from a seed: tool names, argument names, ids and values vary from one tool set to the next, so
that what is learned is to read names off the schemas and values off the request or an earlier result. Two sources:
`SIMPLE` tools are solved by one call; a `Register` is a small world (members with bookings, pupils with homework, …)
whose requests take one, two or three calls: find somebody, list what they have, change one entry.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loop.training.sft import Dialogue

NAMES = [
    "Ada",
    "Bilal",
    "Chen",
    "Dora",
    "Emil",
    "Farah",
    "Goran",
    "Hana",
    "Ines",
    "Jonas",
    "Kira",
    "Luca",
    "Mona",
    "Nils",
    "Oona",
    "Pavel",
    "Rosa",
    "Sami",
    "Tess",
    "Umar",
]
CITIES = [
    "Oslo",
    "Lima",
    "Cairo",
    "Quito",
    "Turin",
    "Osaka",
    "Perth",
    "Dakar",
    "Riga",
    "Porto",
    "Bergen",
    "Tunis",
    "Lyon",
    "Accra",
    "Graz",
]
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WORDS = [
    "harbour",
    "lantern",
    "meadow",
    "compass",
    "violet",
    "pepper",
    "walnut",
    "copper",
    "breeze",
    "marble",
    "saffron",
    "pebble",
]


@dataclass(frozen=True, slots=True)
class Simple:
    """A tool that answers alone. Each argument: alternative names, and the values it is drawn from."""

    names: tuple[str, ...]
    does: str
    arguments: tuple[tuple[tuple[str, ...], Sequence[str | int]], ...]
    asks: tuple[str, ...]
    """Requests; ``{0}``, ``{1}`` are the arguments."""
    gives: tuple[str, Sequence[str | int]]
    """The field of the result, and its values."""
    says: str
    """The reply; ``{r}`` is the result."""


SIMPLE = (
    Simple(
        ("get_weather", "weather_now", "read_weather"),
        "Weather in a place right now.",
        ((("city", "place", "location"), CITIES),),
        ("What is the weather like in {0}?", "Is it raining in {0}?", "Weather for {0} please."),
        ("sky", ("sunny", "cloudy", "rainy", "windy", "foggy")),
        "It is {r} in {0}.",
    ),
    Simple(
        ("set_timer", "start_timer"),
        "Start a countdown.",
        ((("minutes", "duration_minutes"), range(2, 90)), (("label", "name"), ("tea", "pasta", "laundry", "nap"))),
        ("Set a {1} timer for {0} minutes.", "Please count down {0} minutes for the {1}."),
        ("status", ("running", "started")),
        "Your {1} timer of {0} minutes is {r}.",
    ),
    Simple(
        ("translate", "translate_word"),
        "Translate a word.",
        ((("text", "word"), WORDS), (("language", "target"), ("French", "Italian", "Polish", "Turkish"))),
        ("How do you say {0} in {1}?", "Translate {0} into {1}."),
        ("translation", ("lumo", "verda", "kaleo", "mirto", "sorin")),
        "{0} is {r} in {1}.",
    ),
    Simple(
        ("read_file", "open_file", "file_text"),
        "Text of a file.",
        ((("path", "filename", "file"), tuple(f"{w}.txt" for w in WORDS)),),
        ("What does {0} say?", "Read me {0}.", "Show the text of {0}."),
        ("text", ("buy seeds", "call the plumber", "meet at noon", "train at seven")),
        "{0} says: {r}.",
    ),
    Simple(
        ("set_light", "dim_lamp"),
        "Set the brightness of a lamp in percent.",
        ((("room", "where"), ("kitchen", "hall", "attic", "study")), (("level", "percent"), range(5, 100, 5))),
        ("Set the {0} light to {1} percent.", "Dim the {0} to {1} please."),
        ("state", ("on", "set")),
        "The {0} light is {r} at {1} percent.",
    ),
    Simple(
        ("play_song", "play_music"),
        "Play music.",
        ((("artist", "performer", "band"), tuple(f"The {w.title()}s" for w in WORDS)),),
        ("Play something by {0}.", "I want to hear {0}."),
        ("playing", ("Blue Morning", "Long Road", "Paper Moon", "Slow Rain")),
        "Now playing {r} by {0}.",
    ),
    Simple(
        ("convert_length", "convert_units"),
        "Convert metres into another unit.",
        ((("value", "amount", "metres"), range(3, 400)), (("unit", "to"), ("feet", "yards", "inches"))),
        ("How many {1} are {0} metres?", "Convert {0} metres to {1}."),
        ("result", range(10, 900)),
        "{0} metres are {r} {1}.",
    ),
    Simple(
        ("sunrise_time", "get_sunrise"),
        "When the sun rises.",
        ((("city", "town"), CITIES), (("day", "date"), DAYS)),
        ("When does the sun rise in {0} on {1}?", "Sunrise in {0} this {1}?"),
        ("time", ("05:12", "06:03", "06:48", "07:30")),
        "The sun rises at {r} in {0} on {1}.",
    ),
    Simple(
        ("phone_number", "get_phone", "contact_number"),
        "Phone number of a contact.",
        ((("contact", "person", "name"), NAMES),),
        ("What is the phone number of {0}?", "I need to ring {0}, what is the number?"),
        ("number", ("555-0142", "555-0177", "555-0119", "555-0163")),
        "The number of {0} is {r}.",
    ),
)


@dataclass(frozen=True, slots=True)
class Register:
    """People who have entries. ``key`` is what a person is found by: its field, and how to draw one."""

    place: str
    person: tuple[str, ...]
    key: str
    entry: tuple[str, ...]
    label: tuple[str, tuple[str, ...]]
    """The field that tells entries apart, and its values."""
    detail: tuple[str, tuple[str, ...]]
    change: tuple[str, ...]
    """Alternative verbs for changing ``detail`` (or for the bare act, when ``sets`` is False)."""
    sets: bool = True
    done: str = "done"


REGISTERS = (
    Register(
        "a gym", ("member",), "phone", ("class", "booking"), ("sport", ("yoga", "boxing", "spinning", "pilates")),
        ("day", DAYS), ("move", "shift"),
    ),
    Register(
        "a school", ("pupil", "student"), "email", ("homework", "assignment"),
        ("subject", ("physics", "history", "biology", "music")), ("day", DAYS), ("postpone", "reschedule"),
    ),
    Register(
        "a team calendar", ("colleague", "person"), "nickname", ("meeting", "event"),
        ("title", ("budget review", "stand-up", "design talk", "retro")), ("day", DAYS), ("move", "reschedule"),
    ),
    Register(
        "a library", ("reader",), "card", ("loan",), ("book", tuple(f"The {w.title()}" for w in WORDS)),
        ("due", DAYS), ("renew", "extend"), sets=False, done="renewed",
    ),
    Register(
        "a smart home", ("resident", "owner"), "email", ("lamp", "device"),
        ("room", ("kitchen", "hall", "attic", "study")), ("state", ("on", "off", "dimmed")), ("switch", "set"),
    ),
    Register(
        "a garden club", ("gardener",), "nickname", ("plot", "bed"), ("plant", ("roses", "beans", "tulips", "leeks")),
        ("watered", DAYS), ("water",), sets=False, done="watered",
    ),
    Register(
        "a podcast app", ("listener",), "handle", ("feed", "show"),
        ("title", tuple(f"{w.title()} Hour" for w in WORDS)),
        ("sound", ("loud", "quiet", "muted")), ("mute", "pause"), sets=False, done="muted",
    ),
    Register(
        "a laboratory", ("researcher",), "badge", ("sample",), ("material", ("blood", "soil", "water", "leaf")),
        ("shelf", ("A1", "B2", "C3", "D4")), ("move", "store"),
    ),
)  # fmt: skip


ACTS = (("archive", "archived"), ("flag", "flagged"), ("share", "shared"), ("pin", "pinned"), ("print", "printed"))
"""What can be done with an entry of any register: the verb, and what it then is."""


@dataclass(frozen=True, slots=True)
class _Tool:
    schema: dict[str, Any]
    name: str
    arguments: tuple[str, ...]

    def call(self, *values: Any) -> dict[str, Any]:
        function = {"name": self.name, "arguments": json.dumps(dict(zip(self.arguments, values, strict=True)))}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }


def _tool(name: str, does: str, /, **arguments: str) -> _Tool:
    """A tool whose arguments are all required; the keyword's value is the JSON type."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in arguments.items()},
        "required": list(arguments),
    }
    function = {"name": name, "description": does, "parameters": parameters}
    return _Tool({"type": "function", "function": function}, name, tuple(arguments))


def _result(value: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": json.dumps(value)}


def _say(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


class _SimpleDesk:
    """One instance of a simple tool: its names chosen."""

    def __init__(self, kind: Simple, rng: random.Random) -> None:
        self.kind, self.rng = kind, rng
        types = {
            rng.choice(names): "integer" if isinstance(pool[0], int) else "string" for names, pool in kind.arguments
        }
        self.tool = _tool(rng.choice(kind.names), kind.does, **types)

    def turns(self) -> list[dict[str, Any]]:
        values = [self.rng.choice(pool) for _, pool in self.kind.arguments]
        field, pool = self.kind.gives
        result = self.rng.choice(pool)
        return [
            _say("user", self.rng.choice(self.kind.asks).format(*values)),
            self.tool.call(*values),
            _result({field: result}),
            _say("assistant", self.kind.says.format(*values, r=result)),
        ]


class _RegisterDesk:
    """One instance of a register: its names chosen, its people drawn anew for each dialogue."""

    def __init__(self, kind: Register, rng: random.Random) -> None:
        self.kind, self.rng = kind, rng
        self.person, self.entry = rng.choice(kind.person), rng.choice(kind.entry)
        self.person_id = rng.choice((f"{self.person}_id", f"{self.person}_id", f"{self.person}_number"))
        self.entry_id = rng.choice((f"{self.entry}_id", f"{self.entry}_id", f"{self.entry}_code"))
        self.prefixes = rng.sample(("A", "K", "T-", "U", "X", "N-", "Q", "W-"), 2)
        verb = rng.choice(kind.change)
        entries = f"{self.entry}s" if not self.entry.endswith("s") else f"{self.entry}es"
        self.key = rng.choice((kind.key, "email"))
        self.find = _tool(
            f"{rng.choice(('find', 'get', 'lookup'))}_{self.person}",
            f"Find a {self.person} by {self.key}.",
            **{self.key: "string"},
        )
        self.list = _tool(
            f"{rng.choice(('list', 'get', 'show'))}_{entries}",
            f"All {entries} of a {self.person}.",
            **{self.person_id: "string"},
        )
        self.show = _tool(
            f"{rng.choice(('get', 'show', 'check'))}_{self.entry}",
            f"Show one {self.entry}.",
            **{self.entry_id: "string"},
        )
        # A second change, so that the right one has to be chosen by what was asked.
        self.act_verb, self.act_done = rng.choice(ACTS)
        self.act = _tool(
            f"{self.act_verb}_{self.entry}", f"{self.act_verb.title()} a {self.entry}.", **{self.entry_id: "string"}
        )
        detail = {f"{rng.choice(('new_', ''))}{kind.detail[0]}": "string"} if kind.sets else {}
        self.change = _tool(
            f"{verb}_{self.entry}", f"{verb.title()} a {self.entry}.", **{self.entry_id: "string"}, **detail
        )
        self.verb = verb

    @property
    def tools(self) -> list[_Tool]:
        return [self.find, self.list, self.show, self.change, self.act]

    def turns(self, calls: int) -> list[dict[str, Any]]:
        """A dialogue that takes 1, 2 or 3 calls."""
        rng, kind = self.rng, self.kind
        name = rng.choice(NAMES)
        key = _key(self.key, name, rng)
        person = f"{self.prefixes[0]}{rng.randrange(10, 9999)}"
        field, labels = kind.label
        detail, values = kind.detail
        entries = [
            {self.entry_id: f"{self.prefixes[1]}{rng.randrange(10, 9999)}", field: label, detail: rng.choice(values)}
            for label in rng.sample(labels, rng.choice((1, 2, 2, 3)))
        ]
        chosen = rng.choice(entries)
        new = rng.choice([value for value in values if value != chosen[detail]])
        target = chosen[self.entry_id]
        if rng.random() < 0.4:
            verb, to, now = self.act_verb, "", self.act_done
            change, changed = self.act.call(target), _result({self.entry_id: target, "status": now})
        elif kind.sets:
            verb, to, now = self.verb, f" to {new}", f"set to {new}"
            change, changed = self.change.call(target, new), _result({self.entry_id: target, detail: new})
        else:
            verb, to, now = self.verb, "", kind.done
            change, changed = self.change.call(target), _result({self.entry_id: target, "status": now})
        hello = rng.choice((f"I am {key}. ", f"My {self.key} is {key}. ", f"This is {name}, {self.key} {key}. "))
        find = [self.find.call(key), _result({self.person_id: person, "name": name})]
        listing = [self.list.call(person), _result(entries)]
        what = f"{chosen[field]} {self.entry}"
        if calls == 3:
            ask = rng.choice((f"Please {verb} my {what}{to}.", f"Can you {verb} the {what}{to}?"))
            end = [change, changed, _say("assistant", f"Your {what} {target} is now {now}.")]
            return [_say("user", hello + ask), *find, *listing, *end]
        if calls == 2:
            told = ", ".join(str(e[field]) for e in entries)
            ask = rng.choice((f"What {self.entry} entries do I have?", f"Show me every {self.entry} I have."))
            return [_say("user", hello + ask), *find, *listing, _say("assistant", f"You have: {told}.")]
        if rng.random() < 0.5:
            ask = rng.choice((f"{verb.title()} {self.entry} {target}{to}.", f"Please {verb} {target}{to}."))
            return [_say("user", ask), change, changed, _say("assistant", f"{target} is now {now}.")]
        ask = rng.choice(
            (f"What is the {detail} of {self.entry} {target}?", f"Tell me about {target}.", f"How is {target}?")
        )
        told = f"{target} is {chosen[field]}, {detail} {chosen[detail]}."
        return [_say("user", ask), self.show.call(target), _result(chosen), _say("assistant", told)]


def _key(kind: str, name: str, rng: random.Random) -> str:
    low = f"{name.lower()}{rng.choice(('', '.' + rng.choice(WORDS)))}{rng.randrange(2, 99)}"
    return {
        "email": f"{low}@{rng.choice(('post.net', 'mail.org', 'inbox.io'))}",
        "handle": f"@{low}",
        "nickname": low,
        "phone": f"555-{rng.randrange(1000, 9999)}",
        "card": f"L{rng.randrange(1000, 9999)}",
        "badge": f"B{rng.randrange(100, 999)}",
    }[kind]


def unrelated_dialogues(
    sets: int, per_set: int, *, register_share: float, multi_share: float, three_share: float, seed: int
) -> list[Dialogue]:
    """``sets`` tool sets with ``per_set`` dialogues each, that share system prompt and tools.

    ``register_share`` of the sets are registers, the others four simple tools. Of a register's dialogues
    ``multi_share`` take more than one call, and ``three_share`` of those take three. All are fractions.
    """
    rng = random.Random(seed)
    dialogues: list[Dialogue] = []
    for index in range(sets):
        simple = [_SimpleDesk(kind, rng) for kind in rng.sample(SIMPLE, 4)]
        if rng.random() < register_share:
            desk = _RegisterDesk(REGISTERS[index % len(REGISTERS)], rng)
            tools = list(desk.tools)
            place = desk.kind.place
            talks = []
            for _ in range(per_set):
                calls = 1 if rng.random() >= multi_share else (3 if rng.random() < three_share else 2)
                talks.append(desk.turns(calls))
        else:
            tools = [one.tool for one in simple]
            place = rng.choice(("a household", "an office", "a traveller"))
            talks = [rng.choice(simple).turns() for _ in range(per_set)]
        rng.shuffle(tools)
        schemas = [tool.schema for tool in tools]
        system = rng.choice(
            (
                f"You are the assistant of {place}.",
                f"You help the people of {place} with tools.",
                f"You work for {place}. Be brief.",
            )
        )
        dialogues += [Dialogue([_say("system", system), *talk], schemas) for talk in talks]
    return dialogues
