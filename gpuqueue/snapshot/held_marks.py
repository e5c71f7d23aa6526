"""Records which snapshots each account has, and when it last used them.

::

held/UID/ADDRESS         an empty file: this account has this snapshot; its time is that of the last use
held/UID/ADDRESS.DIFF    the same, with the text DIFF about its difference from a commit
"""

from __future__ import annotations

import contextlib
from dataclasses import field
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Held:
    """When an account last used a snapshot, in seconds since 1970, and the hashes of its differences from commits."""

    used_at_s: float
    diffs: list[str] = field(default_factory=list)


class HeldMarks:
    """The files below the directory *root*, which exists."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, uid: int, address: str, diff: str | None) -> None:
        """Record that the account *uid* uses the snapshot at *address* now."""
        folder = self._root / str(int(uid))
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in (address, *([f"{address}.{diff}"] if diff is not None else [])):
            (folder / name).touch(mode=0o600)

    def used_at_s(self, uid: int, address: str, diff: str | None) -> float | None:
        """Return when the account *uid* last used the snapshot with *diff*, in seconds since 1970; None if never."""
        name = address if diff is None else f"{address}.{diff}"
        try:
            return (self._root / str(int(uid)) / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def of(self, uid: int) -> dict[str, Held]:
        """Return the snapshots of the account *uid* by address."""
        found: dict[str, Held] = {}
        for mark in sorted((self._root / str(int(uid))).glob("*")):  # an address comes before its differences
            address, _, diff = mark.name.partition(".")
            with contextlib.suppress(FileNotFoundError):
                if not diff:
                    found[address] = Held(mark.stat().st_mtime)
                elif address in found:
                    found[address].diffs.append(diff)
        return found

    def remove(self, uid: int, address: str) -> None:
        """Remove the record of the snapshot at *address* from the account *uid*."""
        for mark in (self._root / str(int(uid))).glob(f"{address}*"):
            mark.unlink(missing_ok=True)

    def remove_everywhere(self, sha256: str) -> None:
        """Remove a snapshot, or a difference, that is no longer stored from all accounts."""
        for pattern in (f"*/{sha256}*", f"*/*.{sha256}"):
            for mark in self._root.glob(pattern):
                mark.unlink(missing_ok=True)
