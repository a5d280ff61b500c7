"""Starting processes, reaching into others, becoming somebody else, and the kernel's back doors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.attacks.arena import Arena


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host that waits."""
    started = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def test_no_process_is_forked(arena: Arena):
    def fork() -> str:
        import os

        child = os.fork()
        if child == 0:
            os._exit(7)
        return f"forked {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"

    assert "PermissionError" in arena.contained(fork)
    assert "forked 7" in arena.bare(fork)


def test_a_fork_bomb_does_not_start(arena: Arena):
    def bomb(attempts: int) -> str:
        import os

        made = 0
        for _ in range(attempts):
            try:
                child = os.fork()
            except OSError:
                continue
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            made += 1
        return f"{made} processes"

    assert arena.contained(bomb, attempts=500) == "0 processes"
    assert "5 processes" in arena.bare(bomb, attempts=5)


def test_no_shell_runs(arena: Arena):
    def shell(path: str) -> str:
        import subprocess

        return str(subprocess.run(["/bin/sh", "-c", f"echo here > {path}"], check=True).returncode)

    trace = arena.folder / "trace"
    said = arena.contained(shell, path=str(trace))
    assert "PermissionError" in said or "FileNotFoundError" in said
    assert not trace.exists()
    arena.bare(shell, path=str(trace))
    assert trace.exists()


def test_no_process_is_spawned(arena: Arena):
    def spawn() -> str:
        import os
        import sys

        child = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"], {})
        return f"spawned {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"

    said = arena.contained(spawn)
    assert "PermissionError" in said or "FileNotFoundError" in said
    assert "spawned 7" in arena.bare(spawn)


def test_the_process_does_not_become_another_program(arena: Arena):
    def become() -> str:
        import ctypes
        import errno
        import sys

        libc = ctypes.CDLL(None, use_errno=True)
        argv = (ctypes.c_char_p * 4)(sys.executable.encode(), b"-c", b"print('another program')", None)
        libc.execve(sys.executable.encode(), argv, (ctypes.c_char_p * 1)(None))
        return f"still here, {errno.errorcode[ctypes.get_errno()]}"

    assert arena.contained(become) == "still here, EPERM"
    assert "another program" in arena.bare(become)


def test_no_thread_is_started(arena: Arena):
    def thread() -> str:
        import threading

        heard = []
        started = threading.Thread(target=lambda: heard.append("from a thread"))
        started.start()
        started.join()
        return str(heard)

    assert "can't start new thread" in arena.contained(thread)
    assert "from a thread" in arena.bare(thread)


def test_no_signal_reaches_another_process(arena: Arena, victim: subprocess.Popen[bytes]):
    def kill(pid: int) -> str:
        import os
        import signal

        os.kill(pid, signal.SIGTERM)
        return "sent"

    assert "PermissionError" in arena.contained(kill, pid=victim.pid)
    assert victim.poll() is None
    assert "sent" in arena.bare(kill, pid=victim.pid)
    assert victim.wait(30) == -15


@pytest.mark.parametrize("target", ["parent", "group", "everybody", "thread"])
def test_no_signal_reaches_the_host(arena: Arena, target: str):
    def strike(target: str) -> str:
        import ctypes
        import os

        libc = ctypes.CDLL(None, use_errno=True)
        if target == "thread":
            result = libc.syscall(200, os.getppid() or 1, 9)
        else:
            result = libc.kill({"parent": os.getppid(), "group": 0, "everybody": -1}[target], 9)
        return f"result {result}"

    assert arena.contained(strike, target=target) == "result -1"


def test_a_pipe_does_not_send_signals_for_the_module(arena: Arena):
    def own() -> str:
        import fcntl

        F_SETOWN = 8
        return f"set {fcntl.fcntl(3, F_SETOWN, 1)}"

    assert "PermissionError" in arena.contained(own)


def test_the_memory_of_another_process_is_not_read(arena: Arena, victim: subprocess.Popen[bytes]):
    def peek(pid: int) -> str:
        import ctypes
        import os

        libc = ctypes.CDLL(None, use_errno=True)
        results = {
            "ptrace": libc.ptrace(16, pid, 0, 0),
            "process_vm_readv": libc.syscall(310, pid, 0, 0, 0, 0, 0),
            "pidfd_open": libc.syscall(434, pid, 0),
        }
        if results["ptrace"] == 0:
            os.waitpid(pid, 0x40000000)
            libc.ptrace(17, pid, 0, 0)
        return str(results)

    assert arena.contained(peek, pid=victim.pid) == "{'ptrace': -1, 'process_vm_readv': -1, 'pidfd_open': -1}"
    assert "'process_vm_readv': 0" in arena.bare(peek, pid=victim.pid)


def test_the_process_is_nobody_and_stays_nobody(arena: Arena):
    def become_root() -> str:
        import ctypes
        import os

        libc = ctypes.CDLL(None, use_errno=True)
        results = [libc.setuid(0), libc.setgid(0), libc.setresuid(0, 0, 0), libc.syscall(126, bytes(8), bytes(24))]
        return f"{results} {os.getuid()} {os.getgid()}"

    assert arena.contained(become_root) == "[-1, -1, -1, -1] 65534 65534"


def test_limits_are_not_raised(arena: Arena):
    def raise_limit() -> str:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return "raised"

    assert "PermissionError" in arena.contained(raise_limit) or "not allowed" in arena.contained(raise_limit)
    assert "raised" in arena.bare(raise_limit)


# Numbers of x86-64. 512 + 0x40000000 is rt_sigaction of the x32 ABI, a second door to the same kernel.
SYSTEM_CALLS = {
    "vfork": 58, "execve": 59, "ptrace": 101, "personality": 135, "prctl": 157, "chroot": 161, "mount": 165,
    "umount2": 166, "reboot": 169, "init_module": 175, "mq_open": 240, "kexec_load": 246, "add_key": 248,
    "keyctl": 250, "inotify_init": 253, "unshare": 272, "timerfd_create": 283, "eventfd2": 290,
    "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "process_vm_writev": 311,
    "seccomp": 317, "memfd_create": 319, "bpf": 321, "execveat": 322, "userfaultfd": 323, "pkey_mprotect": 329,
    "pidfd_send_signal": 424, "io_uring_setup": 425, "open_tree": 428, "fsopen": 430, "pidfd_open": 434, "clone3": 435,
    "pidfd_getfd": 438, "landlock_create_ruleset": 444, "memfd_secret": 447, "x32_getpid": 39 + 0x40000000,
    "x32_io_setup": 543 + 0x40000000, "shmget": 29, "clone": 56, "fork": 57, "kill": 62, "socket": 41, "bind": 49,
    "sendmsg": 46, "acct": 163, "swapon": 167, "iopl": 172, "symlink": 88, "link": 86, "chmod": 90, "mknod": 133,
}  # fmt: skip


def test_the_kernels_back_doors_are_shut(arena: Arena):
    def knock(numbers: dict[str, int]) -> str:
        import ctypes
        import errno

        libc = ctypes.CDLL(None, use_errno=True)
        shut = []
        for name, number in numbers.items():
            result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
            shut.append(f"{name}:{errno.errorcode[ctypes.get_errno()] if result < 0 else result}")
        return " ".join(shut)

    assert arena.contained(knock, numbers=SYSTEM_CALLS) == " ".join(f"{name}:EPERM" for name in SYSTEM_CALLS)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("memfd_create", (b"x", 0)),
        ("userfaultfd", (1,)),
        ("inotify_init", ()),
        ("eventfd2", (0, 0)),
        ("timerfd_create", (0, 0)),
        ("unshare", (0x400,)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_back_door_is_open_where_nothing_contains(arena: Arena, call: str, arguments: tuple[object, ...]):
    def enter(number: int, arguments: tuple[object, ...]) -> str:
        import ctypes

        return f"result {ctypes.CDLL(None).syscall(number, *arguments)}"

    number = SYSTEM_CALLS[call]
    assert arena.contained(enter, number=number, arguments=arguments) == "result -1"
    if call != "userfaultfd":  # a setting may keep that one from everybody
        assert "result -1" not in arena.bare(enter, number=number, arguments=arguments)


def test_the_32_bit_door_ends_the_process(arena: Arena):
    """`int 0x80` enters the kernel by other numbers; there, getpid is 20."""

    def enter() -> str:
        import ctypes
        import mmap

        code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return f"process {ctypes.CFUNCTYPE(ctypes.c_int)(address)()}"

    said = arena.contained(enter)
    assert "it ended during reset" in said
    assert "process" not in said.replace("the module's process", "")


def test_a_new_user_namespace_gives_no_rights(arena: Arena):
    def rights() -> str:
        import ctypes

        return f"result {ctypes.CDLL(None).unshare(0x10000000)}"

    assert arena.contained(rights) == "result -1"
