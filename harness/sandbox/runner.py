"""What runs in the sandbox's process: it contains itself, then loads one module and answers requests about it.

Standard library alone, no import from the project: this file is started as a script, isolated and without site
packages, and nothing else of the project is visible where it ends up. Two processes come of it. The *guard* makes the
namespaces, forks, and ends the other when the host is gone. The *runner*, first process of a PID namespace, gives up
everything in an order that cannot be undone (`_contain`), says so, and only then takes the module.

The kernel is spoken to through ctypes. Libraries for this exist and were not used: pyseccomp needs libseccomp, which
is no Python package; sandlock needs Landlock ABI 6 and starts commands under a supervisor of its own; bubblewrap is a
system package; and none of them is in the standard library, which is all that can be imported here. The numbers are
those of x86-64: on another machine nothing is contained, and `_unshare` says so.

Messages are four bytes of length (big endian) and that much JSON. The host's first is `load`; every request has an
``id`` that its reply repeats: {"id", "value"} or {"id", "error": {"type", "message", "line"}}. After `reset`, and after
the `respond` that ends a conversation, the state is asked for next: the reply to `state` is enclosed, as a second line
with the same ``id``.
"""

import ctypes
import dataclasses
import errno
import fcntl
import json
import os
import resource
import select
import signal
import struct
import sys
import types
from collections.abc import Mapping
from typing import Any

NOBODY = 65534
SCRATCH = "/scratch"

# <sched.h>, <sys/mount.h>, <sys/prctl.h>, <linux/capability.h>
_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _NO_NEW_PRIVS, _CAP_AMBIENT = 1, 4, 24, 38, 47
_CAPABILITY_VERSION_3 = 0x20080522

# x86-64 numbers of what the C library has no function for.
_SYS_CAPSET, _SYS_PIVOT_ROOT, _SYS_SECCOMP = 126, 155, 317
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 444, 445, 446

# All that the module may ask of the kernel. Absent, among others: socket and its family, fork, vfork, clone, clone3,
# execve, kill, ptrace, process_vm_*, memfd_create, io_uring_*, userfaultfd, bpf, perf_event_open, keyctl, mount,
# unshare, setns, setrlimit, prctl, link, symlink, chmod, setxattr, shmget, mq_open, name_to_handle_at.
_ALLOWED = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11,
    "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "pwrite64": 18,
    "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32,
    "dup2": 33, "nanosleep": 35, "getpid": 39, "exit": 60, "uname": 63, "fsync": 74, "fdatasync": 75, "ftruncate": 77,
    "getcwd": 79, "chdir": 80, "rename": 82, "mkdir": 83, "rmdir": 84, "unlink": 87, "readlink": 89, "umask": 95,
    "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "openat": 257, "mkdirat": 258, "newfstatat": 262, "unlinkat": 263,
    "renameat": 264, "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273,
    "dup3": 292, "getcpu": 309, "getrandom": 318, "statx": 332, "rseq": 334, "faccessat2": 439,
}  # fmt: skip
_SYS_IOCTL, _SYS_FCNTL, _SYS_PRLIMIT = 16, 72, 302
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. F_SETOWN would send signals, F_SETPIPE_SZ take memory.
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)
_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The kernel did not grant a step of the containment."""


def main() -> None:
    """argv[1]: {"requests", "replies", "lifeline": file descriptors, "contain", "limits", "path"}."""
    config = json.loads(sys.argv[1])
    os.umask(0o022)  # the folders of the new root are walked by nobody
    requests, replies = config["requests"], config["replies"]
    try:
        by_user = _unshare() if config["contain"] else False
    except Exception as error:
        send(replies, {"refused": _reason(error)})
        return
    child = os.fork()
    if child:
        os.close(requests)
        os.close(replies)
        os._exit(_guard(child, config["lifeline"], config["contain"]))
    requests, replies = _keep_only(requests, replies)
    try:
        layers = contain(config["limits"], by_user) if config["contain"] else _plain(config)
    except Exception as error:  # whatever it was, nothing is contained
        send(replies, {"refused": _reason(error)})
        return
    send(replies, {"ready": layers})
    serve(requests, replies, config["limits"])


def _guard(child: int, lifeline: int, contained: bool) -> int:
    """Wait for the runner or for the host, whoever ends first; the exit status, 128 + n for a signal."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)  # the host never writes: an event is its end
    try:
        poll.register(os.pidfd_open(child), select.POLLIN)
        pause = None
    except (AttributeError, OSError):  # not Linux, or an old one: look now and then
        pause = 50
    ended, status = 0, 0
    while not ended:
        events = poll.poll(pause)
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended and any(descriptor == lifeline for descriptor, _ in events):
            os.kill(child, signal.SIGKILL)
            ended, status = os.waitpid(child, 0)
            if not contained:  # it may have left children; with them goes this process itself
                os.killpg(0, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(status)
    return status if status >= 0 else 128 - status


def _keep_only(requests: int, replies: int) -> tuple[int, int]:
    """Descriptors 3 and 4 for the two pipes, none above; 0 to 2 lead to nothing (the host opened them so)."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (requests, replies)]
    for descriptor, low in zip(high, (3, 4), strict=True):
        os.dup2(descriptor, low, inheritable=False)
    os.closerange(5, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096))
    return 3, 4


# --- containment -----------------------------------------------------------------------------------------------------


def _unshare() -> bool:
    """New namespaces of every kind that matters. True when that took a user namespace (we are not root)."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine != "x86_64":
        here = f"{sys.platform} {machine}"
        raise Refused(f"the system call filter is written for Linux on x86-64, and this is {here}")
    wanted = _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS | _NEWCGROUP
    if os.geteuid() == 0 and _libc.unshare(wanted) == 0:
        return False
    uid, gid = os.geteuid(), os.getegid()
    _check("namespaces", _libc.unshare(wanted | _NEWUSER))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def contain(limits: dict[str, int], by_user: bool) -> list[str]:
    """Give up everything; what is enforced, by name. No step can be taken back by what runs afterwards.

    Files first (that takes privileges), then the privileges themselves, then the limits, and the system call filter
    last, because it forbids the calls that all the others are made of. Raises Refused at the first step that fails.
    """
    readable = _standard_library()
    _preload()
    _libc.sethostname(b"sandbox", 7)
    _change_root(readable, limits["scratch_mb"])
    _drop_privileges(by_user)
    _set_limits(limits)
    _check("no_new_privs", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    # A handler of core dumps may be a program of the machine: none gets to see this process.
    _check("no core dumps", _libc.prctl(_DUMPABLE, 0, 0, 0, 0))
    landlock = _restrict_files(readable)
    _check("parent death signal", _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _filter_system_calls()
    _try_to_break_out()
    return ["namespaces", *(["landlock"] if landlock else []), "seccomp", "limits"]


def _standard_library() -> list[str]:
    """The folders that imports come from; with -S these are those of the standard library alone."""
    folders = sorted({os.path.realpath(p) for p in sys.path if os.path.isdir(p)})
    return [p for p in folders if not any(p != other and p.startswith(other + os.sep) for other in folders)]


def _preload() -> None:
    """Load the shared libraries that standard modules need: their folders are not readable afterwards."""
    for name in ("zlib", "_bz2", "_lzma", "_hashlib", "_sqlite3", "_decimal", "_uuid"):
        try:
            __import__(name)
        except ImportError:  # an interpreter built without it
            continue


def _change_root(readable: list[str], scratch_mb: int) -> None:
    """A root that holds the standard library, read-only, and an empty folder of limited size in memory."""
    # Any folder does that holds nothing we bind; nobody else sees this mount.
    root = "/proc"
    _check("private mounts", _libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    kept = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount("tmpfs", root, kept, "size=1m,nr_inodes=256,mode=755")
    for folder in readable:
        inside = root + folder
        os.makedirs(inside, exist_ok=True)
        _check(f"bind {folder}", _libc.mount(folder.encode(), inside.encode(), None, _MS_BIND | _MS_REC, None))
        # Whoever is not root has to repeat the flags that the original carries.
        flags = os.statvfs(inside).f_flag & _MS_NOEXEC | _MS_NOSUID | _MS_NODEV
        remount = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags
        _check(f"read-only {folder}", _libc.mount(None, inside.encode(), None, remount, None))
        for packages in ("site-packages", "dist-packages"):
            if os.path.isdir(f"{inside}/{packages}"):
                _mount("tmpfs", f"{inside}/{packages}", kept | _MS_RDONLY, "size=4k,nr_inodes=2,mode=755")
    os.mkdir(root + SCRATCH)
    options = f"size={scratch_mb}m,nr_inodes=1024,mode=700,uid={NOBODY},gid={NOBODY}"
    _mount("tmpfs", root + SCRATCH, kept, options)
    _check("read-only root", _libc.mount(None, root.encode(), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept, None))
    os.chdir(root)
    _check("pivot_root", _libc.syscall(_SYS_PIVOT_ROOT, b".", b"."))
    _check("leave the old root", _libc.umount2(b".", _MNT_DETACH))
    os.chdir(SCRATCH)


def _mount(kind: str, target: str, flags: int, options: str) -> None:
    result = _libc.mount(kind.encode(), target.encode(), kind.encode(), flags, options.encode())
    _check(f"mount {kind} on {target}", result)


def _drop_privileges(by_user: bool) -> None:
    _libc.prctl(_CAP_AMBIENT, 4, 0, 0, 0)
    for capability in range(64):  # numbers that the kernel does not know fail, and need not be dropped
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    if not by_user:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check("capabilities", _libc.syscall(_SYS_CAPSET, header, bytes(24)))


def _set_limits(limits: dict[str, int]) -> None:
    megabyte = 1 << 20
    for name, value in {
        "RLIMIT_AS": limits["memory_mb"] * megabyte,
        "RLIMIT_CPU": limits["cpu_seconds"],
        "RLIMIT_NOFILE": limits["files"],
        "RLIMIT_FSIZE": limits["scratch_mb"] * megabyte,
        "RLIMIT_NPROC": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }.items():
        _limit(name, value)


def _limit(name: str, value: int) -> None:
    """Soft and hard limit at once, and no higher than whoever started the host had allowed."""
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _restrict_files(readable: list[str]) -> bool:
    """Landlock, a second wall behind the new root. False where the kernel has none."""
    abi = _libc.syscall(_SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return False
    # Rights on files by the ABI that brought them; from 4 on also TCP, from 6 on signals and abstract sockets.
    rights = (1 << (13, 14, 15, 15, 16)[min(abi, 5) - 1]) - 1
    attributes = [rights, *([3] if abi >= 4 else []), *([3] if abi >= 6 else [])]
    packed = struct.pack(f"{len(attributes)}Q", *attributes)
    ruleset = _libc.syscall(_SYS_LANDLOCK_CREATE, packed, ctypes.c_size_t(len(packed)), 0)
    _check("landlock", ruleset)
    read = 1 << 2 | 1 << 3  # READ_FILE, READ_DIR
    # and WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, TRUNCATE; no sockets, devices, pipes or links
    write = read | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 14
    for folder, allowed in [*((path, read) for path in readable), (SCRATCH, write)]:
        beneath = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed & rights, beneath)
        _check(f"landlock {folder}", _libc.syscall(_SYS_LANDLOCK_ADD, ruleset, 1, rule, 0))
        os.close(beneath)
    _check("landlock", _libc.syscall(_SYS_LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)
    return True


def filter_program(allowed: Mapping[str, int] = types.MappingProxyType(_ALLOWED)) -> bytes:
    """The seccomp filter: a list of what is allowed, EPERM for everything else, death for a foreign architecture."""
    denied = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32_BIT),
        denied,
    ]
    for number in allowed.values():
        program += [(_EQUAL, 0, 1, number), allow]
    # A file asks whether it is a terminal: it is none.
    program += [(_EQUAL, 0, 1, _SYS_IOCTL), (_RETURN, 0, 0, _ERRNO | errno.ENOTTY)]
    commands = [(_LOAD, 0, 0, _ARGUMENTS + 8)]
    for command in _FCNTL_COMMANDS:
        commands += [(_EQUAL, 0, 1, command), allow]
    commands.append(denied)
    program += [(_EQUAL, 0, len(commands), _SYS_FCNTL), *commands]
    reading = [  # prlimit64 without new limits: both halves of the pointer are zero
        (_LOAD, 0, 0, _ARGUMENTS + 16),
        (_EQUAL, 1, 0, 0),
        denied,
        (_LOAD, 0, 0, _ARGUMENTS + 20),
        (_EQUAL, 1, 0, 0),
        denied,
        allow,
    ]
    program += [(_EQUAL, 0, len(reading), _SYS_PRLIMIT), *reading, denied]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _filter_system_calls() -> None:
    install_filter(filter_program())


def install_filter(program: bytes) -> None:
    """Bind this process to a seccomp program, for good. Needs no_new_privs or CAP_SYS_ADMIN; raises Refused."""
    buffer = ctypes.create_string_buffer(program, len(program))
    filter = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    _check("seccomp", _libc.syscall(_SYS_SECCOMP, 1, 0, filter))


def _try_to_break_out() -> None:
    """Ask for what must be refused. A kernel that says yes has been told the wrong thing, and nothing is loaded."""
    if _libc.socket(2, 1, 0) >= 0:
        raise Refused("a socket could still be opened")
    if os.path.exists("/etc") or os.path.exists("/proc/self"):
        raise Refused("files of the machine are still visible")
    try:
        child = os.fork()
    except OSError:
        return
    if child == 0:
        os._exit(0)
    raise Refused("a process could still be started")


def _plain(config: dict) -> list[str]:
    """No containment: what any process can ask for, and the host's import path."""
    sys.path[:0] = [p for p in config["path"] if p not in sys.path]
    limits = config["limits"]
    _limit("RLIMIT_CPU", limits["cpu_seconds"])
    _limit("RLIMIT_CORE", 0)
    return []


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"


def _check(step: str, result: int) -> None:
    if result < 0:
        raise Refused(f"{step}: {os.strerror(ctypes.get_errno())}")


# --- serving ---------------------------------------------------------------------------------------------------------


def serve(requests: int, replies: int, limits: dict[str, int]) -> None:
    """Answer requests until the host closes its end."""
    world = _World()
    while (request := receive(requests)) is not None:
        body = _reply(world, request, limits["message_bytes"])
        if world.at_rest:
            body += _enclosed(world, request, len(body), limits)
        _write(replies, body)


def _reply(world: "_World", request: dict[str, Any], message_bytes: int) -> bytes:
    """The answer to a request, or what went wrong with it."""
    reply = {"id": request["id"]}
    try:
        reply["value"] = world.answer(request)
        body = _dumps(reply)
        if len(body) > message_bytes:
            raise ValueError(f"an answer of {len(body)} bytes, and {message_bytes} are allowed")
        return body
    except BaseException as error:
        world.at_rest = False
        return _dumps({"id": request["id"], "error": _described(error)})


def _enclosed(world: "_World", request: dict[str, Any], taken: int, limits: dict[str, int]) -> bytes:
    """The reply to `state` for the message that ``request`` is answered with; nothing where it does not fit in."""
    asked = {"id": request["id"], "op": "state", "env": request["env"]}
    line = b"\n" + _reply(world, asked, limits["message_bytes"])
    return line if len(line) <= min(limits["enclosed_bytes"], limits["message_bytes"] - taken) else b""


class _World:
    """The loaded module and the environments it made, by number. ``at_rest``: a task has begun or a conversation ended
    with the latest answer, and the state is what will be asked for next."""

    def __init__(self) -> None:
        self.at_rest = False
        self._make: Any = None
        self._environments: dict[int, Any] = {}

    def answer(self, request: dict[str, Any]) -> object:
        self.at_rest = False
        for number in request.get("release", ()):
            self._environments.pop(number, None)
        operation = request["op"]
        if operation == "load":
            self._make = _load(request)
            return None
        number = request["env"]
        if operation == "make":
            env = self._environments[number] = self._make()
            return {"name": env.name, "tools": env.tools}
        env = self._environments[number]
        if operation == "reset":
            task = env.reset(request["seed"])
            opened = {"task": task, "goals": env.goals(), "reference": env.reference()}
            self.at_rest = True
            return opened
        if operation == "call":
            return env.call(request["tool"], request["arguments"])
        if operation == "respond":
            following = env.respond(request["text"])
            self.at_rest = following is None
            return following
        return env.state()


def _load(request: dict) -> object:
    if "contract" in request:
        _offer_contract(request["contract"])
    module = types.ModuleType(request["name"])
    module.__file__ = request["file"]
    sys.modules[module.__name__] = module
    exec(compile(request["source"], request["file"], "exec"), module.__dict__)
    make = getattr(module, "make", None)
    if not callable(make):
        raise TypeError("the module has no function make()")
    return make


def _offer_contract(source: str) -> None:
    """`harness.environment` can be imported, and is all there is of the project."""
    package: Any
    package, contract = types.ModuleType("harness"), types.ModuleType("harness.environment")
    package.__path__ = []
    package.environment = contract
    sys.modules.update({"harness": package, "harness.environment": contract})
    exec(compile(source, "harness/environment.py", "exec"), contract.__dict__)


def _described(error: BaseException) -> dict:
    """Type, message and the last line of the module that the error went through."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename != __file__:
            line = frame.tb_lineno
        frame = frame.tb_next
    try:
        message = str(error)[:500]
    except BaseException:
        message = ""
    return {"type": type(error).__name__[:100], "message": message, "line": line}


def _dumps(value: object) -> bytes:
    return _ENCODER.encode(value).encode()


def _as_json(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


_ENCODER = json.JSONEncoder(default=_as_json, allow_nan=False)


def send(descriptor: int, message: object) -> None:
    """One message on a pipe."""
    _write(descriptor, _dumps(message))


def _write(descriptor: int, body: bytes) -> None:
    rest = memoryview(struct.pack(">I", len(body)) + body)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> dict | None:
    """The next message, None at the end."""
    header = _read(descriptor, 4)
    return None if header is None else json.loads(_read(descriptor, struct.unpack(">I", header)[0]) or b"null")


def _read(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
