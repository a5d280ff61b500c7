"""Hooks that run when a client library is imported, now or later, without importing any of them ourselves."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from trace_sdk import _log

Hook = Callable[[ModuleType], None]


class _HookedLoader(Loader):
    def __init__(self, inner: Loader, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module's own loader is put back first: what looks at it later must not find ours.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _run(self._hook, module)


class _Finder(MetaPathFinder):
    def __init__(self, hooks: dict[str, Hook]) -> None:
        self._hooks = hooks
        self._busy: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._hooks or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookedLoader(spec.loader, self._hooks[fullname])
        return spec


def when_imported(hooks: dict[str, Hook]) -> None:
    """Run each hook for its module: at once where it is imported already, else right after its import."""
    later: dict[str, Hook] = {}
    for name, hook in hooks.items():
        module = sys.modules.get(name)
        if module is None:
            later[name] = hook
        else:
            _run(hook, module)
    sys.meta_path.insert(0, _Finder(later))


def _run(hook: Hook, module: ModuleType) -> None:
    try:
        hook(module)
    except Exception as error:
        _log.say_once(f"hook {module.__name__}", "trace.client_not_hooked", module=module.__name__, error=repr(error))
