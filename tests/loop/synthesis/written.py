"""What a model might write for the library of `toy`: one good environment, and one faulty of each kind made of it."""

from __future__ import annotations

GOOD = """
import copy
import random

FIRST = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Ines"]
TITLES = [f"{a} {n}" for a in ("silent", "golden", "hidden", "broken", "frozen") for n in ("river", "tower", "window")]


class Renewals:
    name = "library-renewals"
    tools = TOOLS

    def reset(self, seed):
        draw = random.Random(f"{self.name} {seed}")
        self.members, self.loans = {}, {}
        for number in draw.sample(range(1000, 9999), 2):
            member = f"M{number}"
            card = f"{draw.randrange(100, 999)}-{draw.randrange(1000, 9999)}"
            self.members[member] = {"member_id": member, "name": draw.choice(FIRST), "card": card}
            states = ["open", "open", draw.choice(["overdue", "renewed"])]
            for title, state in zip(draw.sample(TITLES, 3), states):
                loan = f"L{draw.randrange(10_000, 99_999)}"
                self.loans[loan] = {
                    "loan_id": loan, "title": title, "weeks": draw.randrange(1, 4), "state": state, "member": member
                }
        self.member = draw.choice(sorted(self.members))
        mine = [key for key, row in self.loans.items() if row["member"] == self.member and row["state"] == "open"]
        self.target = draw.choice(mine)
        self.weeks = draw.randrange(5, 9)
        who, card = self.members[self.member]["name"], self.members[self.member]["card"]
        title = self.loans[self.target]["title"]
        request = draw.choice([
            f"Hello, {who} here, card {card}. Please renew my loan of {title} to {self.weeks} weeks.",
            f"My card is {card}. I would like to keep {title} for {self.weeks} weeks. Can you renew it? {who}",
        ])
        messages = ({"role": "system", "content": SYSTEM}, {"role": "user", "content": request})
        return Task(seed, request, messages, "renew")

    def call(self, tool, arguments):
        a = dict(arguments)
        known = {"find_member": ["card"], "list_loans": ["member_id"], "get_loan": ["loan_id"],
                 "renew_loan": ["loan_id", "weeks"]}
        if sorted(a) != sorted(known.get(tool, ["?"])):
            return json.dumps({"error": "invalid call"})
        if tool == "find_member":
            for row in self.members.values():
                if row["card"] == a["card"]:
                    return json.dumps({"member_id": row["member_id"], "name": row["name"]})
            return json.dumps({"error": "unknown card"})
        if tool == "list_loans":
            member = str(a["member_id"])
            if member not in self.members:
                return json.dumps({"error": f"no member {member}"})
            rows = [r for r in self.loans.values() if r["member"] == member]
            brief = [{k: r[k] for k in ("loan_id", "title", "state")} for r in rows]
            return json.dumps({"count": len(brief), "loans": brief})
        loan = self.loans.get(str(a["loan_id"]))
        if loan is None:
            return json.dumps({"error": f"no loan {a['loan_id']}"})
        if tool == "get_loan":
            return json.dumps({k: loan[k] for k in ("loan_id", "title", "weeks", "state")})
        if type(a["weeks"]) is not int:
            return json.dumps({"error": "weeks must be a number"})
        if loan["state"] != "open":
            return json.dumps({"error": f"a loan that is {loan['state']} cannot be renewed"})
        loan["weeks"], loan["state"] = a["weeks"], "renewed"
        return json.dumps({"loan_id": loan["loan_id"], "state": "renewed", "weeks": a["weeks"]})

    def respond(self, text):
        return None

    def state(self):
        return copy.deepcopy({"members": self.members, "loans": self.loans})

    def goals(self):
        goal = {f"loans.{self.target}.state": "renewed", f"loans.{self.target}.weeks": self.weeks}
        return Goals(state=goal, said=((self.target,),))

    def reference(self):
        return [
            Act("find_member", {"card": self.members[self.member]["card"]}),
            Act("list_loans", {"member_id": self.member}),
            Act("renew_loan", {"loan_id": self.target, "weeks": self.weeks}),
            Act(text=f"Loan {self.target} is renewed."),
        ]


def make():
    return Renewals()
"""


def _with(*changes: tuple[str, str]) -> str:
    text = GOOD
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


_DRAW = 'draw = random.Random(f"{self.name} {seed}")'

FAULTY: dict[str, tuple[str, str]] = {
    "no code": ("I am sorry, I cannot do that.", "answer"),
    "no Python": (f"{GOOD}\n  def (", "loads"),
    "wrong schema": (
        _with(("tools = TOOLS", 'tools = [{**t, "type": "functions"} for t in TOOLS[:1]] + TOOLS[1:]')),
        "interface",
    ),
    "other prompt": (_with(('"content": SYSTEM', '"content": SYSTEM + " Be kind."')), "system_prompt"),
    "nondeterministic": (_with((_DRAW, "draw = random.Random()")), "deterministic"),
    "order-dependent": (
        _with(
            (_DRAW, 'Renewals.count += 1\n        draw = random.Random(f"{seed} {self.count}")'),
            ("tools = TOOLS", "tools = TOOLS\n    count = 0"),
        ),
        "order_independent",
    ),
    "one task": (_with((_DRAW, "draw = random.Random(seed % 3)")), "distinct"),
    "gameable by talk": (
        _with(("return Goals(state=goal, said=((self.target,),))", 'return Goals(said=((f"{self.weeks} weeks",),))')),
        "echo",
    ),
    "gameable without the capability": (
        _with(
            ('loan = self.loans.get(str(a["loan_id"]))', "loan = self.loans[self.target]"),
            ("return Goals(state=goal, said=((self.target,),))", "return Goals(state=goal)"),
        ),
        "lapse",
    ),
    "unsolvable": (
        _with(('{f"loans.{self.target}.state": "renewed"', '{f"loans.{self.target}.state": "kept"')),
        "reference",
    ),
    "never ends": (_with(('return json.dumps({"error": "invalid call"})', "while True: pass")), "runs"),
    "never begins": ("while True: pass\n\ndef make(): ...", "loads"),
    "hostile": (
        _with(
            (
                "import random\n",
                "import random\nimport socket\n\nsocket.create_connection(('127.0.0.1', 9), timeout=2)\n",
            )
        ),
        "loads",
    ),
    "curious": (_with((_DRAW, f'{_DRAW}\n        open("/etc/passwd").read()')), "runs"),
}
"""What is wrong with it → (the answer, the check that is made for it)."""
