"""Reads what the jobs themselves have written."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

FIRST = "first"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a job: ``at`` is wall-clock time in seconds, computed from its monotonic stamp."""

    token: str
    role: str
    pid: int
    what: str
    at: float
    argument: str

    def __str__(self) -> str:
        return f"{self.at:.3f} run {self.token} {self.role} ({self.pid}) {self.what} {self.argument}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """All lines of one run, in the order of writing."""

    token: str
    lines: tuple[Line, ...]

    @property
    def first_at(self) -> float:
        """Return when the run was first seen alive, in wall-clock seconds."""
        return min(line.at for line in self.lines)

    @property
    def last_at(self) -> float:
        """Return when the run was last seen alive, in any of its processes, in wall-clock seconds."""
        return max(line.at for line in self.lines)

    def of(self, what: str, role: str = FIRST) -> list[Line]:
        """Return the lines of one kind that one role wrote."""
        return [line for line in self.lines if line.what == what and line.role == role]


def read_effects(place: Path, *, wall_minus_monotonic_s: float) -> dict[str, list[Trace]]:
    """Return the traces of each job by its name; incomplete lines are left out."""
    found: dict[str, list[Trace]] = {}
    for file in place.iterdir():
        if file.suffix == ".lock":
            continue
        by_token: dict[str, list[Line]] = defaultdict(list)
        for text in file.read_text(errors="replace").splitlines():
            words = text.split(" ")
            if len(words) != 6:  # noqa: PLR2004 - the fields of a line
                continue
            token, role, pid, what, stamp, argument = words
            line = Line(
                token=token,
                role=role,
                pid=int(pid),
                what=what,
                at=float(stamp) + wall_minus_monotonic_s,
                argument=argument,
            )
            by_token[token].append(line)
        found[file.name] = [Trace(token=token, lines=tuple(lines)) for token, lines in by_token.items()]
    return found
