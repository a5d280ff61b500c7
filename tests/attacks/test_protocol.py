"""Lying on the pipe: forged, malformed, oversized and unasked-for messages. None is believed, none is evaluated."""

from __future__ import annotations

import pickle
import secrets
import select
from pathlib import Path
from typing import Any

import pytest

from harness.sandbox.host import Limits, ModuleFactory
from tests.attacks.arena import Arena

# A module that writes to the reply pipe (descriptor 4) by itself.
PREAMBLE = """
import os, struct, json, sys

def say(body):
    os.write(4, struct.pack(">I", len(body)) + body)

def request():
    frame = sys._getframe()
    while "request" not in frame.f_locals or not isinstance(frame.f_locals["request"], dict):
        frame = frame.f_back
    return frame.f_locals["request"]

def answer(body):
    '''Answer the present request with this JSON text as its value, and never again.'''
    say(b'{"id": "' + request()["id"].encode() + b'", "value": ' + body + b'}')
    import time
    time.sleep(60)

TASK = {"seed": 1, "key": "k", "messages": [{"role": "user", "content": "hello"}]}

class Base:
    name, tools = "liar", []
    def reset(self, seed): return {**TASK, "seed": seed}
    def call(self, tool, arguments): return "honest"
    def respond(self, text): return None
    def state(self): return {}
    def goals(self): return {}
    def reference(self): return []
"""


def one_call(make: ModuleFactory) -> str:
    env = make()
    env.reset(1)
    return env.call("tool", {})


def two_calls(make: ModuleFactory) -> str:
    env = make()
    env.reset(1)
    env.call("tool", {})
    return env.call("tool", {})


def play(arena: Arena, method: str, limits: Limits = Limits(seconds=5), steps: Any = one_call) -> str:
    return arena.outcome(f"{PREAMBLE}\nclass Liar(Base):\n    {method}\nmake = Liar\n", steps, limits)


def test_an_honest_module_is_heard(arena: Arena):
    assert play(arena, "pass", steps=two_calls) == "honest"


def test_a_reply_written_ahead_of_its_question_is_not_taken_for_one(arena: Arena):
    method = 'def reset(self, seed): say(b\'{"id": "0", "value": "forged"}\'); return {**TASK, \'seed\': seed}'
    said = play(arena, method)
    assert "forged" not in said
    assert "process was ended" in said


def test_replies_for_a_thousand_guessed_questions_are_not_taken(arena: Arena):
    method = """def reset(self, seed):
        for n in range(1000): say(json.dumps({"id": f"{n:016x}", "value": "forged"}).encode())
        return {**TASK, "seed": seed}"""
    assert "process was ended" in play(arena, method)


def test_two_replies_to_one_question_end_the_process(arena: Arena):
    method = """def call(self, tool, arguments):
        say(json.dumps({"id": request()["id"], "value": "first"}).encode())
        return "second" """
    said = play(arena, method, steps=two_calls)
    assert "process was ended" in said


def test_an_old_reply_does_not_answer_a_new_question(arena: Arena):
    method = """def call(self, tool, arguments):
        frame = sys._getframe()
        while "reply" not in frame.f_locals: frame = frame.f_back
        reply = frame.f_locals["reply"]
        Liar.first = reply["id"] = getattr(Liar, "first", reply["id"])
        return "again" """
    assert "not the one to this request" in play(arena, method, steps=two_calls)


def test_a_message_between_questions_ends_the_process(arena: Arena):
    source = f"""{PREAMBLE}
import json as j
original = j.dumps
class Liar(Base):
    def call(self, tool, arguments):
        frame = sys._getframe()
        while "replies" not in frame.f_locals: frame = frame.f_back
        real = frame.f_globals["_write"]
        def twice(descriptor, body):
            real(descriptor, body)
            real(descriptor, body)
        frame.f_globals["_write"] = twice
        return "once"
make = Liar
"""
    assert "process was ended" in arena.outcome(source, two_calls, Limits(seconds=5))


def test_endless_output_on_the_pipe_ends_the_process(arena: Arena):
    method = """def call(self, tool, arguments):
        while True: os.write(4, b"\\xff" * 65536)"""
    assert "4294967295 bytes" in play(arena, method)


def test_an_endless_answer_in_small_pieces_ends_in_time(arena: Arena):
    method = """def call(self, tool, arguments):
        import time
        os.write(4, struct.pack(">I", 100000))
        while True:
            os.write(4, b" "); time.sleep(0.01)"""
    assert "took longer" in play(arena, method, Limits(seconds=0.5))


def test_an_answer_that_is_too_long_is_not_read(arena: Arena):
    said = play(
        arena,
        "def call(self, tool, arguments): answer(b'\"' + b'x' * 200000 + b'\"')",
        Limits(seconds=5, message_bytes=100_000),
    )
    assert "100000 are allowed" in said


def test_an_honest_answer_that_is_too_long_is_an_error_and_no_end(arena: Arena):
    def steps(make: ModuleFactory) -> str:
        env = make()
        env.reset(1)
        with pytest.raises(Exception, match="100000 are allowed"):
            env.call("long", {})
        return env.call("short", {})

    method = "def call(self, tool, arguments): return 'x' * (200000 if tool == 'long' else 2)"
    assert play(arena, method, Limits(message_bytes=100_000), steps) == "xx"


def test_a_length_without_a_message_ends_in_time(arena: Arena):
    method = "def call(self, tool, arguments): os.write(4, b'\\0\\0'); import time; time.sleep(60)"
    assert "took longer" in play(arena, method, Limits(seconds=0.5))


class _Planted:
    """Pickled, it touches a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def test_a_pickle_is_not_loaded(arena: Arena):
    touched = arena.folder / "touched"
    payload = pickle.dumps(_Planted(str(touched)))
    said = play(arena, f"def call(self, tool, arguments): say({payload!r})")
    assert "process was ended" in said
    assert not touched.exists()
    pickle.loads(payload)
    assert touched.exists()


def test_code_is_not_evaluated(arena: Arena):
    touched = arena.folder / "touched"
    code = f"__import__('pathlib').Path({str(touched)!r}).touch()"
    assert "process was ended" in play(arena, f"def call(self, tool, arguments): say({code.encode()!r})")
    assert not touched.exists()
    eval(code)
    assert touched.exists()


DEEP = "[" * 100_000 + "]" * 100_000
REFUSED = {
    "nan": ("NaN", "NaN is not JSON"),
    "infinity": ("-Infinity", "-Infinity is not JSON"),
    "overflow": ("1e999", "beyond all bounds"),
    "key_twice": ('{"a": 1, "a": 2}', "one key twice"),
    "huge_integer": ("9" * 100_000, "an integer of 100000 digits"),
    "deep": ("[" * 65 + "]" * 65, "nested deeper"),
    "abyss": (DEEP, "nested deeper"),
    "no_json": ("{'a': 1}", "refused"),
    "comment": ("1 /* one */", "refused"),
    "two": ("1}{", "refused"),
    "control": ('"\x01"', "refused"),
    "no_utf8": ("\udcff", "refused"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_json_that_is_none_is_refused(arena: Arena, name: str):
    text, why = REFUSED[name]
    (arena.folder / "body").write_bytes(text.encode("utf-8", "surrogateescape"))
    body = (arena.folder / "body").read_bytes()
    expression = "b'[' * 100000 + b']' * 100000" if text is DEEP else repr(body)
    said = play(arena, f"def call(self, tool, arguments): answer({expression})")
    assert why in said


def test_half_a_surrogate_pair_can_be_stored(arena: Arena):
    said = play(arena, "def call(self, tool, arguments): return 'a\\ud800b'")
    assert said.encode() == b"a?b"


SHAPES = {
    "task_null": ("reset", "None", "task is null"),
    "task_text": ("reset", "'task'", "task is a text"),
    "task_of_another_seed": ("reset", "{**TASK, 'seed': 2}", "2, and 1 was asked for"),
    "task_true_as_seed": ("reset", "{**TASK, 'seed': True}", "True, and 1 was asked for"),
    "task_without_key": ("reset", "{'seed': 1, 'messages': []}", "lacks key"),
    "task_extra": ("reset", "{**TASK, 'reward': 1.0}", "unknown field 'reward'"),
    "task_no_messages": ("reset", "{**TASK, 'messages': []}", "is empty"),
    "task_role": ("reset", "{**TASK, 'messages': [{'role': 'root', 'content': ''}]}", "role is none of"),
    "task_content": ("reset", "{**TASK, 'messages': [{'role': 'user', 'content': 5}]}", "content is a number"),
    "task_long_key": ("reset", "{**TASK, 'key': 'k' * 501}", "501 characters"),
    "goals_list": ("goals", "[]", "goals is a list"),
    "goals_score": ("goals", "{'score': 1.0}", "unknown field 'score'"),
    "goals_call": ("goals", "{'required': ['cancel']}", "required[0] is a text"),
    "goals_said": ("goals", "{'said': ['cancelled']}", "said[0] is a text"),
    "goals_unchanged": ("goals", "{'unchanged': 0}", "unchanged is a number"),
    "reference_text": ("reference", "'cancel'", "reference is a text"),
    "reference_arguments": ("reference", "[{'tool': 'a', 'arguments': [1]}]", "arguments is a list"),
    "result_number": ("call", "1", "the result is a number"),
    "result_null": ("call", "None", "the result is null"),
    "result_set": ("call", "{1}", "a set is not JSON"),
    "result_bytes": ("call", "b'x'", "a bytes is not JSON"),
    "result_nan": ("call", "float('nan')", "not JSON compliant"),
    "result_itself": ("call", "(lambda x: x.append(x) or x)([])", "Circular"),
}
PARAMETERS = {"reset": "self, seed", "goals": "self", "reference": "self", "call": "self, tool, arguments"}


@pytest.mark.parametrize("name", SHAPES)
def test_an_answer_of_another_shape_is_refused(arena: Arena, name: str):
    method, value, why = SHAPES[name]
    assert why in play(arena, f"def {method}({PARAMETERS[method]}): return {value}")


@pytest.mark.parametrize("tools", ["'tools'", "[1]", "None"])
def test_tools_of_another_shape_are_refused(arena: Arena, tools: str):
    assert "answer to make is refused: tools" in play(arena, f"tools = {tools}")


def test_objects_with_tricks_are_read_as_what_they_hold(arena: Arena):
    source = f"""{PREAMBLE}
class Sly(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __reduce__(self): raise RuntimeError
class Liar(Base):
    def call(self, tool, arguments): return Sly("plain")
make = Liar
"""

    def steps(make: ModuleFactory) -> str:
        said = one_call(make)
        assert type(said) is str
        assert said != "anything else"
        return said

    assert arena.outcome(source, steps) == "plain"


def enclosing(line: str) -> str:
    """A `reset` that answers by itself, with this expression of bytes as the answer to `state`."""
    return f"""def reset(self, seed):
        number = request()["id"].encode()
        opened = json.dumps({{"task": {{**TASK, "seed": seed}}, "goals": {{}}, "reference": []}}).encode()
        say(b'{{"id": "' + number + b'", "value": ' + opened + b'}}' + b"\\n" + {line})
        import time
        time.sleep(60)"""


def reset_and_look(make: ModuleFactory) -> str:
    env = make()
    assert env.reset(1).key == "k"
    return str(env.state())


ENCLOSED = {
    "honest": ("""b'{"id": "' + number + b'", "value": {"a": 1}}'""", "{'a': 1}"),
    "error": (
        """b'{"id": "' + number + b'", "error": {"type": "A", "message": "b", "line": 1}}'""",
        "the module raises in state: A: b",
    ),
    "another_number": ("""b'{"id": "0123456789abcdef", "value": {}}'""", "answer to state is not the one"),
    "no_number": ("""b'{"value": {}}'""", "answer to state is not the one"),
    "more_fields": ("""b'{"id": "' + number + b'", "value": {}, "goals": {}}'""", "answer to state is not the one"),
    "no_json": ("b'state'", "its answer to state is refused"),
    "no_utf8": ("b'\\xff'", "its answer to state is refused"),
    "nan": ("""b'{"id": "' + number + b'", "value": {"a": NaN}}'""", "NaN is not JSON"),
    "key_twice": ("""b'{"id": "' + number + b'", "value": {"a": 1, "a": 2}}'""", "one key twice"),
    "deep": ("""b'{"id": "' + number + b'", "value": ' + b'[' * 64 + b']' * 64 + b'}'""", "nested deeper"),
    "abyss": ("b'[' * 100000 + b']' * 100000", "nested deeper"),
    "another_shape": ("""b'{"id": "' + number + b'", "value": [1]}'""", "state is a list"),
    "two": ("""b'{"id": "' + number + b'", "value": {}}\\n{}'""", "its answer to state is refused"),
    "too_long": ("""b'{"id": "' + number + b'", "value": {"a": "' + b'x' * 300000 + b'"}}'""", "state took longer"),
}


@pytest.mark.parametrize("name", ENCLOSED)
def test_a_state_that_comes_along_is_believed_no_more_than_one_that_was_asked_for(arena: Arena, name: str):
    line, said = ENCLOSED[name]
    assert said in play(arena, enclosing(line), Limits(seconds=2), reset_and_look)


def test_a_state_that_came_along_is_not_handed_out_once_the_module_spoke_unasked(arena: Arena):
    method = """def respond(self, text):
        frame = sys._getframe()
        while "_write" not in frame.f_globals: frame = frame.f_back
        real = frame.f_globals["_write"]
        def twice(descriptor, body):
            real(descriptor, body)
            import time
            time.sleep(0.5)
            real(descriptor, body)
        frame.f_globals["_write"] = twice"""

    def steps(make: ModuleFactory) -> str:
        env = make()
        env.reset(1)
        assert env.respond("bye") is None
        assert select.select([env._process._replies], [], [], 60)[0]  # its second word has arrived
        return str(env.state())

    assert "it spoke without being asked" in play(arena, method, steps=steps)


def test_an_answer_that_may_enclose_nothing_encloses_nothing(arena: Arena):
    method = """def call(self, tool, arguments): answer(b'"a"}\\n{"b": 1')"""
    assert "its answer to call is refused" in play(arena, method)


def test_a_state_that_came_along_is_not_the_state_after_a_call(arena: Arena):
    method = """def reset(self, seed):
        frame = sys._getframe()
        while "_enclosed" not in frame.f_globals: frame = frame.f_back
        forged = lambda world, request, *rest: b'\\n{"id": "' + request["id"].encode() + b'", "value": {"forged": 1}}'
        frame.f_globals["_enclosed"] = forged
        return {**TASK, "seed": seed}"""

    def steps(make: ModuleFactory) -> str:
        env = make()
        env.reset(1)
        env.call("tool", {})
        return str(env.state())

    assert play(arena, method, steps=steps) == "{}"


@pytest.mark.parametrize("descriptor", [3, 4])
def test_closing_a_pipe_is_the_modules_own_end(arena: Arena, descriptor: int):
    said = play(arena, f"def call(self, tool, arguments): os.close({descriptor}); return 'closed'", steps=two_calls)
    assert "process was ended" in said


def test_turning_the_pipes_around_is_the_modules_own_end(arena: Arena):
    method = "def call(self, tool, arguments): os.dup2(3, 4); os.dup2(0, 3); return 'turned'"
    assert "process was ended" in play(arena, method, steps=two_calls)


def test_reading_the_question_pipe_only_costs_the_module_its_time(arena: Arena):
    method = "def call(self, tool, arguments): return str(os.read(3, 1000))"
    assert "took longer" in play(arena, method, Limits(seconds=0.5))


def test_a_made_up_number_of_an_environment_finds_none(arena: Arena):
    def steps(make: ModuleFactory) -> str:
        env = make()
        env.close()
        return env.call("tool", {})

    assert "this environment is closed" in play(arena, "pass", steps=steps)


def test_what_the_error_says_is_bounded(arena: Arena):
    said = play(arena, "def call(self, tool, arguments): raise ValueError('x' * 1000000)")
    assert len(said) < 1000


def test_an_error_does_not_write_to_the_terminal_by_itself(arena: Arena):
    said = play(arena, "def call(self, tool, arguments): raise ValueError('\\x1b]0;owned\\x07 a\\nb')")
    assert "ValueError:  ]0;owned  a b" in said
    assert said.isprintable()


def test_a_crowd_of_empty_lists_is_refused(arena: Arena):
    said = play(arena, "def call(self, tool, arguments): answer(b'[' + b'[],' * 300000 + b'0]')")
    assert "more than 250000 values" in said


def test_an_error_reply_of_another_shape_is_bounded(arena: Arena):
    method = """def call(self, tool, arguments):
        error = {"type": ["x" * 100000], "message": {"a": "y" * 100000}, "line": True}
        say(json.dumps({"id": request()["id"], "error": error}).encode())
        import time; time.sleep(60)"""
    said = play(arena, method)
    assert "raises in call" in said
    assert len(said) < 1000


def test_requests_are_not_answered_with_the_hosts_memory(arena: Arena):
    """Frames and the garbage collector show the module its own process, and nothing of the host's."""
    hidden = f"host-only-{secrets.token_hex(8)}"
    source = f"""{PREAMBLE}
import gc, re
class Liar(Base):
    def call(self, tool, arguments):
        found, frame = [], sys._getframe()
        while frame is not None:
            found.append(repr(frame.f_globals) + repr(frame.f_locals))
            frame = frame.f_back
        for thing in gc.get_objects():
            try: found.append(repr(thing)[:1000])
            except Exception: pass
        keys = set(re.findall("host-only-[0-9a-f]{{16}}", " ".join(found)))
        return f"{{len(found) > 1000}} {{keys}}"
make = Liar
"""
    assert arena.outcome(source, one_call, Limits(seconds=20)) == "True set()"
    assert len(hidden) == 26  # it was there all the while
