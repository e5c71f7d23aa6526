"""Counts what is left out of an archive, and says so in one line for each reason. Standard library only."""

from __future__ import annotations

from gpuqueue.snapshot.names import quoted


class LeftOut:
    """What was left out so far, by the kind of reason: the first path with its reason, and how many there are."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int]] = {}

    def name(self, path: str, fault: str) -> None:
        """Note a path that is no name for an archive, as *fault* says in words that follow it."""
        self._add("name", f"{quoted(path)}, which {fault}")

    def unreadable(self, path: str, error: OSError) -> None:
        """Note a file or directory that cannot be read."""
        self._add("unreadable", f"{quoted(path)}, which cannot be read ({error.strerror or error})")

    def link(self, path: str) -> None:
        """Note a link that leads out of the copy, or round in circles."""
        self._add("link", f"the link {quoted(path)}, which leads out of the copy of the code, or in a circle")

    def lines(self) -> list[str]:
        """Return a line for each kind of reason."""
        return [
            f"left out {first}{f', and {count - 1} more like it' if count > 1 else ''}"
            for first, count in self._found.values()
        ]

    def _add(self, kind: str, text: str) -> None:
        first, count = self._found.get(kind, (text, 0))
        self._found[kind] = first, count + 1
