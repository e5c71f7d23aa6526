"""The rules for a path and for a link in a snapshot or an archive of results. Standard library only.

A path names the same file on each host, shows as it is on each terminal, and cannot lead out of the directory that it
is unpacked into. So it may not use what only some file systems or terminals accept. No link leads out of a snapshot,
also not by way of other links.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping

from gpuqueue.files.errors import InvalidManifest
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: Longest path or link target, and longest part of one between two slashes, in bytes. Linux allows 4095 and 255; the
#: rest is for the directory that the snapshot is unpacked into.
MAX_PATH_BYTES = 1000
MAX_PART_BYTES = 255
#: Most parts of a path.
MAX_DEPTH = 100
#: Most links that one path may go through, as in Linux (MAXSYMLINKS).
MAX_STEPS = 40
#: The last member of an archive of results from which something was left out: a text that says what, line by line.
#: No file of this name travels. And its largest size, in bytes.
LEFT_OUT_NOTES, MOST_NOTES_BYTES = ".gpuqueue-left-out", 16 * 1024

#: Unicode categories of characters that control a terminal or do not show: controls, format characters (direction
#: marks, zero width), surrogates (bytes that are not UTF-8), line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Most paths: no part begins with a dot, and no character has a meaning. They need no closer check.
_PLAIN = pattern(r"[A-Za-z0-9_+-][A-Za-z0-9_+.-]{0,99}(?:/[A-Za-z0-9_+-][A-Za-z0-9_+.-]{0,99}){0,31}")


def path_fault(path: str) -> str | None:
    """Return why *path* cannot be a path in a snapshot, in words that follow the path, or None if it can."""
    if len(path) <= MAX_PATH_BYTES and _PLAIN.fullmatch(path):
        return None
    return target_fault(path) or next(filter(None, map(_part_fault, path.split("/"))), None)


def target_fault(target: str) -> str | None:
    """Return why *target* cannot be the target of a link, in words that follow it, or None. It may still leave."""
    fault = _text_fault(target)
    if fault is not None:
        return fault
    if target.startswith("/"):
        return "is an absolute path"
    if target.count("/") >= MAX_DEPTH:
        return f"has more than {MAX_DEPTH} parts"
    return None


def quoted(path: str) -> str:
    """Return *path* in quotes for a message, with what a terminal would obey escaped, cut if it is long."""
    return brief(path, 120)


def folded(path: str) -> str:
    """Return the form of *path* that file systems without upper and lower case, as of macOS, compare."""
    if path.isascii():
        return path.lower()
    import unicodedata  # noqa: PLC0415 - rare, and imports slow down the start of a command

    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def inside(root: str, path: str, target: str) -> str:
    """Return *target* relative to the link *path* if it is an absolute path within *root*, else unchanged."""
    if not target.startswith(f"{root}/"):
        return target
    return os.path.relpath(target[len(root) + 1 :] or ".", os.path.dirname(path) or ".")


def _part_fault(part: str) -> str | None:
    if part in {"", ".", ".."}:
        return f"has the part {part!r}" if part else "has an empty part"
    if len(part.encode()) > MAX_PART_BYTES:
        return f"has a part of more than {MAX_PART_BYTES} bytes"
    # The configuration of a repository names programs that git runs: who unpacks it and calls git runs them.
    return "belongs to a git directory, which is never taken" if part.casefold() == ".git" else None


def _text_fault(text: str) -> str | None:
    if not text:
        return "is empty"
    if "\\" in text:
        return "has a backslash"
    if not (text.isascii() and text.isprintable()):
        import unicodedata  # noqa: PLC0415 - as above

        kinds = {unicodedata.category(char) for char in text} & _HIDDEN
        if "Cs" in kinds:
            return "is not UTF-8"
        if kinds:
            return "has control characters"
    if len(text.encode()) > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    return None


def check_links(targets: Mapping[str, str]) -> None:
    """Check the links of a snapshot; *targets* has the target of each link by its path. Both are valid names.

    A target that the snapshot does not contain is allowed, since the job may make it.

    Raises:
        InvalidManifest: a link leads out of the snapshot, or goes round in circles.

    """
    ends = _Ends(targets)
    for link in targets:
        ends.of(link, MAX_STEPS)


def faulty_links(targets: Mapping[str, str]) -> set[str]:
    """Return the links of *targets* that ``check_links`` would refuse. A target may also be an absolute path."""
    ends, found = _Ends(targets), set()
    for link in targets:
        try:
            ends.of(link, MAX_STEPS)
        except InvalidManifest:
            found.add(link)
    return found


class _Ends:
    """Follows links as the kernel does, and each only once, so that many links on top of each other stay cheap."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = targets
        self._known: dict[str, tuple[tuple[str, ...], int]] = {}

    def of(self, link: str, steps_left: int) -> tuple[tuple[str, ...], int]:
        """Return the parts of the path at the end of *link*, and how many links lead there."""
        if link in self._known:
            return self._known[link]
        if steps_left < 1:
            raise InvalidManifest(f"the link {quoted(link)} goes through more than {MAX_STEPS} links or in a circle")
        if self._targets[link].startswith("/"):
            raise InvalidManifest(f"the link {quoted(link)} leads to an absolute path")
        place = link.split("/")[:-1]
        steps = 1
        for part in self._targets[link].split("/"):
            if part in {"", "."}:
                continue
            if part == "..":
                if not place:
                    raise InvalidManifest(
                        f"the link {quoted(link)} to {quoted(self._targets[link])} leads out of the snapshot"
                    )
                place.pop()
                continue
            place.append(part)
            name = "/".join(place)
            if name in self._targets:
                end, more = self.of(name, steps_left - steps)
                place, steps = list(end), steps + more
            if steps > MAX_STEPS or len(place) > 2 * MAX_DEPTH:
                raise InvalidManifest(f"the link {quoted(link)} goes through too many links or directories")
        self._known[link] = tuple(place), steps
        return self._known[link]
