"""Which client libraries are hooked, and how: installed with the first decorated run, never before."""

from __future__ import annotations

from trace_sdk import _capture, _imports


def install() -> None:
    """Hook the libraries that are imported; the others are hooked when they are."""
    _imports.when_imported({"httpx": _capture.install, "httpx2": _capture.install})
