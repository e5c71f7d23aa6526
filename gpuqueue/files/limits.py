"""The limits of a snapshot, and the message about what is above them. Standard library only."""

from __future__ import annotations

import heapq
import os.path
from collections import Counter
from collections.abc import Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.files.errors import SnapshotTooLarge
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief, plain
from gpuqueue.text.units import MIB, format_apart, format_bytes

#: File in a snapshot's directory with patterns of what to leave out, in the syntax of ``.gitignore``.
IGNORE_FILE = ".gpuqueueignore"
#: Largest text about the difference from a commit, in bytes.
DIFF_BYTES = 2**20
#: Most files that the message names.
LARGEST = 10
#: Longest path in the message, in characters, so that the end of the message, which says what to do, is not cut off.
_SHOWN = 80
_SPECIAL = frozenset("\\*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest snapshot, the largest file, and the most files. Links count as files of no size."""

    total_bytes: int = 200 * MIB
    file_bytes: int = 20 * MIB
    files: int = 20_000

    def __post_init__(self) -> None:
        """Validate the limits.

        Raises:
            BadRequest: a limit is no whole number above 0.

        """
        for limit in (self.total_bytes, self.file_bytes, self.files):
            if type(limit) is not int or limit < 1:
                raise BadRequest(f"{brief(limit)} is no limit of a snapshot: it must be a whole number above 0")


#: The limits where nobody has set any.
DEFAULT = Limits()


def check(sizes: Sequence[tuple[str, int]], limits: Limits) -> None:
    """Check the paths and sizes in bytes of all files against *limits*.

    Raises:
        SnapshotTooLarge: a limit is exceeded.

    """
    total_bytes = sum(size for _, size in sizes)
    largest = tuple(heapq.nlargest(LARGEST, sizes, key=lambda each: each[1]))
    if len(sizes) > limits.files:
        what = f"more than {limits.files} files, which is the limit"
        raise _too_large(what, largest, _crowded([path for path, _ in sizes]) or _similar(largest))
    if largest and largest[0][1] > limits.file_bytes:
        size, limit = format_apart(largest[0][1], limits.file_bytes)
        what = f"a file of {size}, above the limit of {limit} for a file"
        above = [(path, size) for path, size in largest if size > limits.file_bytes]
        raise _too_large(what, largest, _similar(above))
    if total_bytes > limits.total_bytes:
        size, limit = format_apart(total_bytes, limits.total_bytes)
        raise _too_large(f"{size} in {len(sizes)} files, above the limit of {limit}", largest, _similar(largest))


def ignore_line(path: str) -> str:
    """Return the line of an ignore file that leaves out *path*. Each character that cannot be shown becomes ``?``."""
    escaped = "".join(f"\\{char}" if char in _SPECIAL else char if char.isprintable() else "?" for char in path)
    return f"/{escaped[:-1]}\\ " if escaped.endswith(" ") else f"/{escaped}"


def _too_large(what: str, largest: tuple[tuple[str, int], ...], line: str) -> SnapshotTooLarge:
    named = ", ".join(f"{_shown(path)} {format_bytes(size)}" for path, size in largest)
    return SnapshotTooLarge(
        f"the snapshot would have {what}. The largest: {named}. Leave out what the job does not need by a line in "
        f"{IGNORE_FILE}, for example {line}",
        largest,
        line,
    )


def _shown(path: str) -> str:
    return plain(path) if len(path) <= _SHOWN else f"…{plain(path[1 - _SHOWN :])}"


def _similar(largest: Sequence[tuple[str, int]]) -> str:
    """Return the line for the largest file, and for those beside it with the same suffix if there are some."""
    path = largest[0][0]
    folder, name = os.path.split(path)
    suffix = os.path.splitext(name)[1]
    beside = [each for each, _ in largest[1:] if os.path.split(each)[0] == folder and each.endswith(suffix)]
    if not suffix or not beside or any(char.isspace() for char in suffix):
        return ignore_line(path)
    return f"{ignore_line(folder)}/*{ignore_line(suffix)[1:]}" if folder else f"/*{ignore_line(suffix)[1:]}"


def _crowded(paths: Sequence[str]) -> str:
    """Return the line for the deepest directory with more than half as many files as any has, "" if there is none."""
    below: Counter[str] = Counter()
    for path in paths:
        folder = os.path.dirname(path)
        while folder:
            below[folder] += 1
            folder = os.path.dirname(folder)
    half = max(below.values(), default=0) / 2
    crowded = [each for each in below if below[each] > half]
    return f"{ignore_line(max(crowded, key=lambda each: (each.count('/'), below[each])))}/" if crowded else ""
