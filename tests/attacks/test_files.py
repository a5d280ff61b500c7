"""Reading and writing where nobody should: keys, homes, the project, other processes, the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.sandbox.host import Limits
from tests.attacks.arena import Arena
from tests.attacks.conftest import SECRET

ROOT = Path(__file__).resolve().parents[2]


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def listing(path: str) -> str:
    import os

    return " ".join(os.listdir(path))


def test_keys_in_the_environment_are_not_there(arena: Arena, monkeypatch: pytest.MonkeyPatch):
    def environment() -> str:
        import ctypes
        import os

        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        return f"asked {dict(os.environ)} {getenv(b'ATTACKED_API_KEY')}"

    monkeypatch.setenv("ATTACKED_API_KEY", SECRET)
    said = arena.contained(environment)
    assert "asked" in said
    assert SECRET not in said
    assert SECRET in arena.bare(environment, env={"ATTACKED_API_KEY": SECRET})


def test_a_key_in_a_file_is_not_read(arena: Arena, secret: Path):
    assert "FileNotFoundError" in arena.contained(read, path=str(secret))
    assert SECRET in arena.bare(read, path=str(secret))


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/shadow", "/etc/hostname"])
def test_the_machines_accounts_are_not_read(arena: Arena, path: str):
    assert "FileNotFoundError" in arena.contained(read, path=path)
    if os.access(path, os.R_OK):
        assert arena.bare(read, path=path).strip() == Path(path).read_text().strip()


def test_the_home_is_not_listed(arena: Arena):
    home = str(Path.home())
    inside = set(arena.contained(listing, path=home).split())
    # Where the interpreter is installed below the home, the way to it is all that is there.
    assert inside.isdisjoint({".ssh", ".cache", ".config", ".bashrc", ".profile", ".bash_history"})
    assert len(inside & set(os.listdir(home))) <= 1
    assert set(arena.bare(listing, path=home).split()) == set(" ".join(os.listdir(home)).split())


def test_the_projects_code_is_not_read(arena: Arena):
    path = str(ROOT / "harness" / "scoring.py")
    assert "FileNotFoundError" in arena.contained(read, path=path)
    assert "def score" in arena.bare(read, path=path)


def test_the_runners_own_code_is_not_read_from_disk(arena: Arena):
    def own_code() -> str:
        import sys

        with open(sys.modules["__main__"].__file__) as file:
            return file.read()

    assert "FileNotFoundError" in arena.contained(own_code)
    assert "own_code" in arena.bare(own_code)


def test_installed_packages_are_not_imported(arena: Arena):
    def packages() -> str:
        import pytest

        return pytest.__name__

    assert "ModuleNotFoundError" in arena.contained(packages)
    assert "pytest" in arena.bare(packages, packages=True)


def test_the_environment_of_the_process_is_not_in_proc(arena: Arena):
    assert "FileNotFoundError" in arena.contained(read, path="/proc/self/environ")
    assert SECRET in arena.bare(read, path="/proc/self/environ", env={"KEY": SECRET})


def test_other_processes_are_not_in_proc(arena: Arena):
    path = f"/proc/{os.getpid()}/cmdline"
    assert "FileNotFoundError" in arena.contained(read, path=path)
    assert "pytest" in arena.bare(read, path=path)


def test_the_parents_memory_map_is_not_in_proc(arena: Arena):
    def parent() -> str:
        import os

        with open(f"/proc/{os.getppid()}/maps") as file:
            return file.read()

    assert "FileNotFoundError" in arena.contained(parent)
    assert "python" in arena.bare(parent)


def test_nothing_is_written_outside_the_scratch_folder(arena: Arena):
    def write(path: str) -> str:
        with open(path, "w") as file:
            return f"wrote {file.write('here I was')}"

    outside = arena.folder / "outside.txt"
    assert "FileNotFoundError" in arena.contained(write, path=str(outside))
    assert not outside.exists()
    assert "wrote" in arena.bare(write, path=str(outside))
    assert outside.exists()


@pytest.mark.parametrize("folder", ["/", "/usr", "/tmp", "/proc", "/dev"])
def test_nothing_is_written_into_the_machines_folders(arena: Arena, folder: str):
    def write(path: str) -> str:
        import os

        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            return f"wrote {file.write('x')}"

    path = Path(folder) / "attack-was-here"
    said = arena.contained(write, path=str(path))
    assert "PermissionError" in said or "Read-only" in said
    assert not path.exists()


def test_the_standard_library_is_not_changed(arena: Arena):
    def poison() -> str:
        import json

        with open(json.__file__, "a") as file:
            return f"wrote {file.write('# poisoned')}"

    import json

    before = Path(json.__file__).read_text()
    assert "Read-only" in arena.contained(poison) or "PermissionError" in arena.contained(poison)
    assert Path(json.__file__).read_text() == before


def test_a_symbolic_link_in_the_scratch_folder_leads_nowhere(arena: Arena, secret: Path):
    def link(path: str) -> str:
        import os

        os.symlink(path, "link")
        with open("link") as file:
            return file.read()

    assert "PermissionError" in arena.contained(link, path=str(secret))
    assert SECRET in arena.bare(link, path=str(secret))


def test_a_hard_link_to_a_key_is_not_made(arena: Arena, secret: Path):
    def link(path: str) -> str:
        import os

        os.link(path, "hard")
        with open("hard") as file:
            return file.read()

    said = arena.contained(link, path=str(secret))
    assert "PermissionError" in said or "FileNotFoundError" in said
    assert SECRET in arena.bare(link, path=str(secret))


def test_dots_do_not_climb_out_of_the_root(arena: Arena, secret: Path):
    dots = "../" * 40 + str(secret).lstrip("/")
    assert "FileNotFoundError" in arena.contained(read, path=dots)
    assert SECRET in arena.bare(read, path=dots)


def test_descriptors_of_the_host_are_not_inherited(arena: Arena, secret: Path):
    def through_descriptors(name: str) -> str:
        import os

        found = []
        for descriptor in range(1024):
            try:
                inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
                found.append(os.read(inner, 100).decode())
            except OSError:
                continue
        return f"tried {found}"

    folder = os.open(secret.parent, os.O_RDONLY)
    os.set_inheritable(folder, True)
    try:
        said = arena.contained(through_descriptors, name=secret.name)
    finally:
        os.close(folder)
    assert said == "tried []"


def test_only_the_two_pipes_are_open(arena: Arena):
    def kinds() -> str:
        import os
        import stat

        found = []
        for descriptor in range(4096):
            try:
                mode = os.fstat(descriptor).st_mode
            except OSError:
                continue
            found.append("pipe" if stat.S_ISFIFO(mode) else "device" if stat.S_ISCHR(mode) else "other")
        return " ".join(found)

    assert arena.contained(kinds) == "device device device pipe pipe"


def test_an_import_hook_brings_nothing_in_from_outside(arena: Arena):
    def hooked(path: str) -> str:
        import importlib.machinery
        import importlib.util
        import sys

        class Finder:
            @staticmethod
            def find_spec(name: str, path: object = None, target: object = None) -> object:
                if name == "planted":
                    return importlib.util.spec_from_loader(name, importlib.machinery.SourceFileLoader(name, FILE))
                return None

        FILE = path
        sys.meta_path.insert(0, Finder)
        import planted

        return planted.VALUE

    planted = arena.folder / "planted.py"
    planted.write_text(f"VALUE = {SECRET!r}")
    assert "FileNotFoundError" in arena.contained(hooked, path=str(planted))
    assert SECRET in arena.bare(hooked, path=str(planted))


def test_the_kernels_memory_is_not_made_into_a_file(arena: Arena):
    def device() -> str:
        import os
        import stat

        os.mknod("mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))
        return "made"

    assert "PermissionError" in arena.contained(device)


def test_the_disk_is_not_filled(arena: Arena):
    def fill(megabytes: int) -> str:
        import os

        written = 0
        try:
            for n in range(megabytes):
                with open(f"file{n}", "wb") as file:
                    written += file.write(os.urandom(1 << 20))
        except OSError as error:
            return f"{written >> 20} {error}"
        return f"{written >> 20} all"

    said = arena.contained(fill, megabytes=40, limits=Limits(scratch_mb=8))
    assert "No space left" in said
    assert int(said.split()[0]) <= 8
    assert arena.bare(fill, megabytes=40).split() == ["40", "all"]


def test_the_file_system_is_not_filled_with_empty_files(arena: Arena):
    def many(count: int) -> str:
        made = 0
        try:
            for n in range(count):
                open(f"empty{n}", "w").close()
                made += 1
        except OSError as error:
            return f"{made} {error}"
        return f"{made} all"

    said = arena.contained(many, count=3000)
    assert "No space left" in said
    assert int(said.split()[0]) < 1100
    assert arena.bare(many, count=3000).split() == ["3000", "all"]


def test_a_program_in_the_scratch_folder_is_not_mapped_as_code(arena: Arena):
    def library() -> str:
        import _ctypes
        import ctypes
        import shutil

        shutil.copyfile(_ctypes.__file__, "copy.so")
        return f"loaded {ctypes.CDLL('/scratch/copy.so')}"

    assert "OSError" in arena.contained(library)


def test_the_scratch_folder_is_empty_each_time(arena: Arena):
    def leave() -> str:
        import os

        before = os.listdir(".")
        with open("note", "w") as file:
            file.write("remember")
        return f"found {before}"

    assert arena.contained(leave) == "found []"
    assert arena.contained(leave) == "found []"
