"""The one error that a person sees: what is wrong, where, and what to do about it."""

from __future__ import annotations


class TraceError(Exception):
    """A fault that a user can act on. Commands print it in one or two lines and exit with status 1."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        fix = f"\n{self.fix}" if self.fix else ""
        return f"{self.what}{where}{fix}"
