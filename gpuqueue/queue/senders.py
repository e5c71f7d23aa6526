"""Who sends the messages about ended jobs, and what they can: told by each sender, for those who submit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.queue import keys
from gpuqueue.queue.connect import answering
from gpuqueue.queue.store import Store
from gpuqueue.text.json_fields import loaded

if TYPE_CHECKING:
    from gpuqueue.queue import sender as sending
    from gpuqueue.queue.sender import Sender
else:
    sending = later("gpuqueue.queue.sender")

#: How often a sender says that it is there, in seconds, and after how many times of that it is taken for gone.
ANNOUNCE_S, PATIENCE = 60.0, 3


class Senders(Store):
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` that is about messages."""

    @answering
    def announce_sender(self, host: str, *, targets: Sequence[str], schemes: Sequence[str], urls: bool) -> None:
        """Tell what the sender on *host* can. It must be told again every ANNOUNCE_S."""
        can = {"at": self.now_ms(), "targets": list(targets), "schemes": list(schemes), "urls": urls}
        self._redis.hset(keys.SENDERS, host, json.dumps(can))

    @answering
    def senders(self) -> list[Sender]:
        """Return the senders that are there, by host; what cannot be read is none."""
        now, found = self.now_ms(), []
        for host, text in sorted(cast("dict[str, str]", self._redis.hgetall(keys.SENDERS)).items()):
            try:
                can = loaded(text, "what a sender can")
                if now - can.whole("at") <= 1000 * ANNOUNCE_S * PATIENCE:
                    targets, schemes = can.texts("targets"), can.texts("schemes")
                    urls = can.flag("urls", default=True)
                    found.append(sending.Sender(host=host, targets=targets, schemes=schemes, urls=urls))
            except Unreadable:
                continue
        return found
