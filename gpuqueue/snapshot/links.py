"""The rule for links in a snapshot: none leads out of it, also not by way of other links. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping

from gpuqueue.snapshot.errors import InvalidManifest
from gpuqueue.snapshot.names import MAX_DEPTH, quoted

#: Most links that one path may go through, as in Linux (MAXSYMLINKS).
MAX_STEPS = 40


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
