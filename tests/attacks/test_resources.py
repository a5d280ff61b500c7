"""Using up time, memory, descriptors and patience, and dying of it."""

from __future__ import annotations

import subprocess

import pytest

from harness.sandbox.host import Limits, SandboxError
from tests.attacks.arena import Arena

SHORT = Limits(seconds=0.5)


def test_an_endless_loop_ends(arena: Arena):
    def loop() -> str:
        while True:
            pass

    assert "reset took longer than 0.5 s" in arena.contained(loop, limits=SHORT)
    with pytest.raises(subprocess.TimeoutExpired):
        arena.bare(loop, timeout=0.5)


def test_an_endless_loop_at_import_ends(arena: Arena):
    said = arena.outcome("while True: pass", lambda make: "imported", Limits(load_seconds=2))
    assert "load took longer than 2 s" in said


def test_a_long_sleep_ends(arena: Arena):
    def sleep() -> str:
        import time

        time.sleep(3600)
        return "rested"

    assert "took longer" in arena.contained(sleep, limits=SHORT)


def test_a_module_that_ignores_signals_ends(arena: Arena):
    def ignore() -> str:
        import signal

        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            pass

    assert "took longer" in arena.contained(ignore, limits=SHORT)


def test_a_regular_expression_that_never_ends_ends(arena: Arena):
    def expression() -> str:
        import re

        return str(re.match(r"(a|a)*b", "a" * 60))

    assert "took longer" in arena.contained(expression, limits=SHORT)


def test_exceptions_are_not_caught_against_the_clock(arena: Arena):
    def stubborn() -> str:
        while True:
            try:
                while True:
                    pass
            except BaseException:
                continue

    assert "took longer" in arena.contained(stubborn, limits=SHORT)


def test_processor_time_is_used_up(arena: Arena):
    def loop() -> str:
        while True:
            pass

    said = arena.contained(loop, limits=Limits(seconds=60, cpu_seconds=1))
    assert "it ended during reset, by SIGKILL" in said


def test_memory_is_used_up(arena: Arena):
    def grow(megabytes: int) -> str:
        held = []
        for _ in range(megabytes):
            held.append(bytearray(1 << 20))
        return f"held {len(held)}"

    assert "MemoryError" in arena.contained(grow, megabytes=300, limits=Limits(memory_mb=200))
    assert "held 300" in arena.bare(grow, megabytes=300)


def test_mapped_and_shared_memory_count(arena: Arena):
    def mapped(megabytes: int) -> str:
        import mmap

        return f"mapped {len(mmap.mmap(-1, megabytes << 20)) >> 20}"

    said = arena.contained(mapped, megabytes=1024)
    assert "Cannot allocate memory" in said
    assert "mapped 1024" in arena.bare(mapped, megabytes=1024)


def test_an_integer_as_large_as_the_memory_is_not_made(arena: Arena):
    def power() -> str:
        return str((1 << (1 << 34)).bit_length())

    said = arena.contained(power, limits=Limits(seconds=5))
    assert "MemoryError" in said or "OverflowError" in said or "took longer" in said


def test_descriptors_are_used_up(arena: Arena):
    def descriptors(count: int) -> str:
        held = [open(f"file{n}", "w") for n in range(count)]  # noqa: SIM115
        return f"open {len(held)}"

    assert "Too many open files" in arena.contained(descriptors, count=100)
    assert "open 100" in arena.bare(descriptors, count=100)


def test_endless_printing_goes_nowhere(arena: Arena, capfd: pytest.CaptureFixture[str]):
    def shout(lines: int) -> str:
        import os
        import sys

        for _ in range(lines):
            print("x" * 10_000)
            print("y" * 10_000, file=sys.stderr)
            os.write(1, b"z" * 10_000)
        return "hoarse"

    assert arena.contained(shout, lines=300) == "hoarse"
    heard = capfd.readouterr()
    assert (heard.out, heard.err) == ("", "")
    assert len(arena.bare(shout, lines=300)) > 6_000_000


def test_a_crash_is_the_modules_alone(arena: Arena):
    def crash() -> str:
        import ctypes

        return str(ctypes.string_at(1))

    assert "it ended during reset, by SIGSEGV" in arena.contained(crash)
    with pytest.raises(subprocess.CalledProcessError):
        arena.bare(crash)


def test_endless_recursion_is_the_modules_alone(arena: Arena):
    def recurse() -> str:
        import sys

        sys.setrecursionlimit(10**9)
        deep = lambda f: f(f)  # noqa: E731
        return str(deep(deep))

    said = arena.contained(recurse, limits=Limits(seconds=1))
    assert "it ended" in said or "RecursionError" in said or "MemoryError" in said or "took longer" in said


@pytest.mark.parametrize("status", [0, 1, 255])
def test_leaving_is_noticed(arena: Arena, status: int):
    def leave(status: int) -> str:
        import os

        os._exit(status)

    assert f"it ended during reset, with status {status}" in arena.contained(leave, status=status)


def test_leaving_politely_is_an_error_like_any_other(arena: Arena):
    def leave() -> str:
        raise SystemExit("goodbye")

    assert "SystemExit: goodbye" in arena.contained(leave)


def test_an_exception_that_cannot_be_shown_is_survived(arena: Arena):
    def unspeakable() -> str:
        class Unspeakable(Exception):
            def __str__(self) -> str:
                raise KeyboardInterrupt

        raise Unspeakable

    assert "Unspeakable" in arena.contained(unspeakable)


def test_the_next_environment_after_a_death_is_made_in_a_new_process(arena: Arena):
    source = """
        class Mortal:
            name, tools = "mortal", []
            def reset(self, seed):
                if seed == 13:
                    import os
                    os._exit(3)
                return {"seed": seed, "key": "k", "messages": [{"role": "user", "content": "alive"}]}
            def goals(self): return {}
            def reference(self): return []
        make = Mortal
    """

    def play(make):
        first, sibling = make(), make()
        said = []
        for env, seed in ((first, 13), (sibling, 1)):
            with pytest.raises(SandboxError) as caught:
                env.reset(seed)
            said.append(str(caught.value))
        return "\n".join([*said, make().reset(1).messages[0]["content"]])

    first, sibling, fresh = [line for line in arena.outcome(source, play).splitlines() if line]
    assert "it ended during reset, with status 3" in first
    assert "it ended during reset, with status 3" in sibling
    assert fresh == "alive"
