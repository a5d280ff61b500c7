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
class Change:
    """What can be done with an entry: the tool's verb, what the entry then is, and the value it takes, if any.

    With ``sets`` the tool takes a new value of that field, drawn from ``values``; its name is then either
    ``verb_entry`` or ``change_field``.
    """

    verb: str
    done: str
    sets: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Register:
    """People who have entries. ``key`` is what a person is found by; ``label`` and ``state`` are fields of an entry
    with their values: what tells entries apart, and what one asks about."""

    place: str
    person: tuple[str, ...]
    key: str
    entry: tuple[str, ...]
    label: tuple[str, tuple[str, ...]]
    state: tuple[str, tuple[str, ...]]
    changes: tuple[Change, ...]


def _titles(form: str) -> tuple[str, ...]:
    return tuple(form.format(word.title()) for word in WORDS)


REGISTERS = (
    Register(
        "a gym", ("member",), "phone", ("class", "booking"), ("sport", ("yoga", "boxing", "spinning", "pilates")),
        ("status", ("open", "full", "waiting")),
        (Change("move", "moved", "day", DAYS), Change("skip", "skipped"), Change("confirm", "confirmed")),
    ),
    Register(
        "a school", ("pupil", "student"), "email", ("homework", "assignment"),
        ("subject", ("physics", "history", "biology", "music")), ("status", ("new", "late", "graded")),
        (Change("postpone", "postponed", "day", DAYS), Change("submit", "submitted"), Change("archive", "archived")),
    ),
    Register(
        "a team calendar", ("colleague", "person"), "nickname", ("meeting", "event"),
        ("title", ("budget review", "stand-up", "design talk", "retro")), ("room", ("north", "south", "attic")),
        (Change("move", "moved", "day", DAYS), Change("accept", "accepted"), Change("decline", "declined")),
    ),
    Register(
        "a library", ("reader",), "card", ("loan",), ("book", _titles("The {}")), ("status", ("due", "late", "ready")),
        (Change("renew", "renewed"), Change("return", "returned"), Change("move", "moved", "branch", ("east", "west"))),
    ),
    Register(
        "a smart home", ("resident", "owner"), "email", ("lamp", "device"),
        ("room", ("kitchen", "hall", "attic", "study")), ("state", ("on", "off", "dimmed")),
        (Change("lock", "locked"), Change("paint", "painted", "colour", ("red", "blue", "green")),
         Change("reset", "reset")),
    ),
    Register(
        "a garden club", ("gardener",), "nickname", ("plot", "bed"), ("plant", ("roses", "beans", "tulips", "leeks")),
        ("soil", ("dry", "wet", "sandy")),
        (Change("water", "watered"), Change("weed", "weeded"), Change("plant", "planted", "seed", ("kale", "dill"))),
    ),
    Register(
        "a podcast app", ("listener",), "email", ("feed", "show"), ("title", _titles("{} Hour")),
        ("status", ("fresh", "paused", "muted")),
        (Change("mute", "muted"), Change("share", "shared", "friend", tuple(NAMES)), Change("pin", "pinned")),
    ),
    Register(
        "a laboratory", ("researcher",), "badge", ("sample",), ("material", ("blood", "sand", "water", "leaf")),
        ("status", ("frozen", "thawed", "tested")),
        (Change("store", "stored", "shelf", ("A-1", "B-2", "C-3")), Change("test", "tested"), Change("seal", "sealed")),
    ),
    Register(
        "a clinic", ("patient",), "email", ("visit", "appointment"), ("doctor", tuple(f"Dr {n}" for n in NAMES)),
        ("status", ("booked", "missed", "waiting")),
        (Change("move", "moved", "day", DAYS), Change("confirm", "confirmed"), Change("close", "closed")),
    ),
    Register(
        "a music school", ("singer", "player"), "handle", ("lesson",), ("instrument", ("violin", "piano", "harp")),
        ("level", ("first", "middle", "expert")),
        (Change("pause", "paused"), Change("extend", "extended"),
         Change("repeat", "repeated", "week", ("6", "7", "8"))),
    ),
    Register(
        "a bank", ("client",), "email", ("card", "account"), ("colour", ("red", "blue", "black", "silver")),
        ("status", ("active", "blocked", "new")),
        (Change("block", "blocked"), Change("limit", "limited", "amount", ("200", "350", "900")),
         Change("renew", "renewed")),
    ),
    Register(
        "a job board", ("applicant",), "email", ("application",), ("job", ("cook", "nurse", "pilot", "baker")),
        ("status", ("sent", "read", "invited")),
        (Change("withdraw", "withdrawn"), Change("rename", "renamed", "title", _titles("{}")), Change("send", "sent")),
    ),
)  # fmt: skip


# Ways to say it, shared by all registers: what is learned is which tool fits what was given, not one's phrases.
_ASK_STATE = (
    "What is the {field} of {it}?",
    "Please tell me the {field} of {it}.",
    "Hello, can you check the {field} of {it} for me?",
    "Could you look up {it}? I would like to know its {field}.",
    "I am wondering about {it}. What is its {field}?",
    "Hi, {name} here. What is the {field} of my {it}?",
    "Where can I see {it}? Just tell me the {field}.",
    "Where is {it}, and what is its {field}?",
    "How is {it} doing? {field} please.",
)
_ASK_CHANGE = (
    "Please {verb} {it}{to}.",
    "I want to {verb} my {it}{to}.",
    "Hi, {name} here. {verb} {it}{to} please.",
    "Can you {verb} {it}{to} for me?",
    "I changed my mind about {it}. {verb} it{to}, please.",
    "Hello, {verb} {it}{to}.",
    "It would help me if you could {verb} {it}{to}.",
    "Something came up. {verb} {it}{to}, thanks.",
)
_WHO = (
    "My {key_name} is {key}. {ask}",
    "I am {key}. {ask}",
    "{ask} My {key_name}: {key}",
    "Hi, {name} here ({key}). {ask}",
    "{ask} You find me under {key}.",
    "This is {name}, {key_name} {key}. {ask}",
)
_DONE = ("{It} is {done}{to}.", "I {done} {it}{to}.", "Done: {it} is now {done}{to}.")


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
        self.prefixes = rng.sample(("B", "D", "K", "P", "U", "X", "N", "Q", "W"), 2)
        self.key = rng.choice((kind.key, "email", "email"))
        entries = f"{self.entry}es" if self.entry.endswith("s") else f"{self.entry}s"
        self.find = _tool(
            f"{rng.choice(('find', 'find', 'get', 'lookup'))}_{self.person}",
            rng.choice(("Find a {0} by {1}.", "Find a {0} id by {1}.", "Look up the {0} with this {1}.")).format(
                self.person, self.key
            ),
            **{self.key: "string"},
        )
        self.list = _tool(
            f"{rng.choice(('list', 'list', 'get', 'show'))}_{entries}",
            rng.choice(("All {0} of a {1} id.", "List the {0} of one {1}.")).format(entries, self.person),
            **{self.person_id: "string"},
        )
        self.show = _tool(
            f"{rng.choice(('get', 'get', 'show', 'check'))}_{self.entry}",
            rng.choice(("Show one {0}.", "{1} of one {0} id.", "Get the {1} of a {0}.")).format(
                self.entry, kind.state[0]
            ),
            **{self.entry_id: "string"},
        )
        self.changes = [(change, self._changing(change)) for change in kind.changes]

    def _changing(self, change: Change) -> _Tool:
        name = f"{change.verb}_{self.entry}"
        if change.sets and self.rng.random() < 0.4:
            name = f"change_{change.sets}"
        does = f"Change the {change.sets}" if name.startswith("change_") else change.verb.title()
        takes = {change.sets: "string"} if change.sets else {}
        return _tool(
            name,
            f"{does} of one {self.entry}." if change.sets else f"{does} one {self.entry}.",
            **{self.entry_id: "string"},
            **takes,
        )

    @property
    def tools(self) -> list[_Tool]:
        return [self.find, self.list, self.show, *(tool for _, tool in self.changes)]

    def turns(self, calls: int) -> list[dict[str, Any]]:
        """A dialogue that takes 1, 2 or 3 calls: what the user gives (an entry's id, a person's id or key) decides."""
        rng, (label, labels), (state, states) = self.rng, self.kind.label, self.kind.state
        name = rng.choice(NAMES)
        entries = [
            {self.entry_id: self._id(1), label: value, state: rng.choice(states)}
            for value in rng.sample(labels, rng.choice((2, 3, 3)))
        ]
        chosen = rng.choice(entries)
        target = str(chosen[self.entry_id])
        it = f"{self.entry} {target}"
        if calls == 1:
            named = rng.choice((it, it, target))
            if rng.random() < 0.5:
                field = rng.choice((state, state, label))
                ask = rng.choice(_ASK_STATE).format(field=field, it=named, name=name)
                told = rng.choice(("{It} is {v}.", "The {f} of {it} is {v}.", "{It}: {f} {v}."))
                told = told.format(It=it[0].upper() + it[1:], it=it, f=field, v=chosen[field])
                answer = {**chosen, "owner": name} if rng.random() < 0.5 else chosen
                return [_said(ask), self.show.call(target), _result(answer), _say("assistant", told)]
            ask, end = self._change(named, target, name)
            return [_said(ask), *end]
        person, key = self._id(0), _key(self.key, name, rng)
        find = [self.find.call(key), _result({self.person_id: person, "name": name})]
        listing = [self.list.call(person), _result(entries)]
        known = calls == 2
        which = rng.choice((f"the {chosen[label]} {self.entry}", f"the {chosen[label]} one", f"{chosen[label]}"))
        ask, end = self._change(which, target, name)
        key_name = f"{self.person} id" if known else self.key
        asked = rng.choice(_WHO).format(key_name=key_name, key=person if known else key, name=name, ask=ask)
        return [_said(asked), *([] if known else find), *listing, *end]

    def _change(self, named: str, target: str, name: str) -> tuple[str, list[dict[str, Any]]]:
        """How one asks for a change of the entry that is called ``named``, and how it is made."""
        change, tool = self.rng.choice(self.changes)
        value = self.rng.choice(change.values) if change.sets else ""
        to = f" to {value}" if value else ""
        verb = f"change the {change.sets} of" if tool.name.startswith("change_") else change.verb
        ask = self.rng.choice(_ASK_CHANGE)
        if verb != change.verb:
            ask = self.rng.choice(_ASK_CHANGE[:4])
        ask = ask.format(verb=verb, it=named, to=to, name=name)
        call = tool.call(target, value) if value else tool.call(target)
        result = _result({self.entry_id: target, **({change.sets: value} if value else {"status": change.done})})
        it = f"{self.entry} {target}"
        told = self.rng.choice(_DONE).format(It=it[0].upper() + it[1:], it=it, done=change.done, to=to)
        return ask, [call, result, _say("assistant", told)]

    def _id(self, which: int) -> str:
        return f"{self.prefixes[which]}{self.rng.randrange(100, (1000, 10000)[which])}"


def _said(text: str) -> dict[str, Any]:
    return _say("user", text[0].upper() + text[1:])


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
