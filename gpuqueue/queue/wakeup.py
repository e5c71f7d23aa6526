"""Waking up at once: the store rings when there is work, room, a cancellation or an end."""

from __future__ import annotations

from types import TracebackType

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.queue import keys
from gpuqueue.queue.connect import Connect, connect, translated

#: A ring on the bell that is for one device's worker begins so.
FOR = "for:"
#: Longest wait in one call, in seconds.
MAX_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Ring:
    """One ring: ``work`` (look at the queue), ``cancel`` or ``preempt`` (of *token*'s run) or ``end`` (of *job_id*).

    A run that is preempted makes place for the job *by*, in *left_s*. *device* is the one whose worker should look for
    work; None means all.
    """

    what: str
    job_id: int | None = None
    token: str | None = None
    by: int | None = None
    left_s: float | None = None
    device: str | None = None


def ring_of(channel: str, text: str) -> Ring:
    """Return what a message means. Anybody who reaches the store can ring: nonsense only says to look."""
    words = text.split(":", 2)
    try:
        if channel == keys.END:
            return Ring("end", job_id=int(text))
        if channel == keys.CONTROL and words[0] == "cancel":
            return Ring("cancel", job_id=int(words[1]), token=words[2])
        if channel == keys.CONTROL and words[0] == "preempt":
            token, by, left_ms = words[2].split(":")
            return Ring("preempt", job_id=int(words[1]), token=token, by=int(by), left_s=int(left_ms) / 1000)
        if channel == keys.BELL and text.startswith(FOR):
            return Ring("work", device=text.removeprefix(FOR))
    except (ValueError, IndexError):
        pass
    return Ring("work")


class Doorbell:
    """Listens on a connection of its own. Rings may be lost: whoever listens also looks by the clock."""

    def __init__(self, url: str, *channels: str, by: Connect = connect) -> None:
        self._url = url
        self._client = by(url, wait_s=MAX_WAIT_S)
        self._channels = channels or (keys.BELL, keys.CONTROL)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
        try:
            with translated(url):
                self._pubsub.subscribe(*self._channels)
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float) -> Ring | None:
        """Return the next ring, or None after *timeout_s*.

        Raises:
            StoreUnreachable: the connection is gone; make a new doorbell.

        """
        with translated(self._url):
            message = self._pubsub.get_message(timeout=min(timeout_s, MAX_WAIT_S))
        if message is None:
            return None
        return ring_of(message["channel"], message["data"])

    def __enter__(self) -> Doorbell:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._pubsub.close()
        self._client.close()
