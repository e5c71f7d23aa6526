"""Senders of notifications about ended jobs. Each sender announces its capabilities, for checks at submit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.queue import keys
from gpuqueue.queue.store import Store, answering
from gpuqueue.text.json_fields import loaded

#: The interval of a sender's announcements in seconds, and the number of intervals after which it counts as gone.
ANNOUNCE_S, PATIENCE = 60.0, 3


class Senders:
    """The senders of notifications."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def announce(self, host: str, *, targets: Sequence[str], schemes: Sequence[str], urls: bool) -> None:
        """Announce the capabilities of the sender on *host*. The sender must repeat this every ANNOUNCE_S."""
        can = {"at": self._store.now_ms(), "targets": list(targets), "schemes": list(schemes), "urls": urls}
        self._store.client.hset(keys.SENDERS, host, json.dumps(can))

    @answering
    def all(self) -> list[Sender]:
        """Return the current senders, sorted by host; skip unreadable entries."""
        now, found = self._store.now_ms(), []
        for host, text in sorted(cast("dict[str, str]", self._store.client.hgetall(keys.SENDERS)).items()):
            try:
                can = loaded(text, "what a sender can")
                if now - can.whole("at") <= 1000 * ANNOUNCE_S * PATIENCE:
                    targets, schemes = can.texts("targets"), can.texts("schemes")
                    urls = can.flag("urls")
                    found.append(Sender(host=host, targets=targets, schemes=schemes, urls=urls))
            except Unreadable:
                continue
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    """One recorder's sender: the names of its targets, without their addresses, and the URL schemes it supports.

    Without ``schemes`` Apprise is not installed there, and the sender sends nothing.
    """

    host: str
    targets: tuple[str, ...]
    schemes: tuple[str, ...]
    #: Whether it accepts the URLs of jobs.
    urls: bool
