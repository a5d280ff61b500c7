"""Which libraries are hooked, and how: with the first decorated run, never before."""

from __future__ import annotations

from trace_sdk import _capture, _carry, _imports, _langchain, _litellm


def install() -> None:
    """Hook the libraries that are imported; the others are hooked when they are."""
    _carry.install_threads()
    _imports.when_imported(
        {
            "httpx": _capture.install,
            "httpx2": _capture.install,
            "litellm": _litellm.install,
            "langchain_core.callbacks.manager": _langchain.install,
            "concurrent.futures.thread": _carry.install_pools,
        }
    )
