"""Wake-up channels: the store publishes work, room, cancellations, preemptions, extensions and ends."""

from __future__ import annotations

from types import TracebackType

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.queue import keys
from gpuqueue.queue.connect import Connect, WhyAway, connect, translated

#: Prefix of a message for the worker of one device.
FOR = "for:"
#: Longest wait in one call, in seconds.
MAX_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A wake-up message: ``work`` (poll the queue), ``cancel`` or ``preempt`` (*token*'s run), ``end`` (of *job_id*).

    A run is preempted by the job *by* and has *left_s* seconds to end. ``extend``: the time limit of
    *token*'s run is *limit_s* seconds now. *device* is the device whose worker should poll for work; None means all
    devices.
    """

    what: str
    job_id: int | None = None
    token: str | None = None
    by: int | None = None
    left_s: float | None = None
    limit_s: float | None = None
    device: str | None = None


def wake_of(channel: str, text: str) -> WakeUp:
    """Return the meaning of a message. Any client can publish, so an invalid message only means work."""
    words = text.split(":", 2)
    try:
        if channel == keys.END:
            return WakeUp("end", job_id=int(text))
        if channel == keys.CONTROL and words[0] == "cancel":
            return WakeUp("cancel", job_id=int(words[1]), token=words[2])
        if channel == keys.CONTROL and words[0] == "preempt":
            token, by, left_ms = words[2].split(":")
            return WakeUp("preempt", job_id=int(words[1]), token=token, by=int(by), left_s=int(left_ms) / 1000)
        if channel == keys.CONTROL and words[0] == "extend":
            token, limit_ms = words[2].split(":")
            return WakeUp("extend", job_id=int(words[1]), token=token, limit_s=int(limit_ms) / 1000)
        if channel == keys.WAKEUP_CHANNEL and text.startswith(FOR):
            return WakeUp("work", device=text.removeprefix(FOR))
    except (ValueError, IndexError):
        pass
    return WakeUp("work")


class Subscriber:
    """A subscriber with its own connection. Messages may be lost, so the caller must also poll at intervals."""

    def __init__(self, url: str, *channels: str, by: Connect = connect, why_away: WhyAway | None = None) -> None:
        self._url, self._why_away = url, why_away
        self._client = by(url, wait_s=MAX_WAIT_S)
        self._channels = channels or (keys.WAKEUP_CHANNEL, keys.CONTROL)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
        try:
            with translated(url, why_away):
                self._pubsub.subscribe(*self._channels)
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float) -> WakeUp | None:
        """Return the next message, or None after *timeout_s* seconds, at most MAX_WAIT_S.

        Raises:
            StoreUnreachable: the connection is lost; make a new subscriber.

        """
        with translated(self._url, self._why_away):
            message = self._pubsub.get_message(timeout=min(timeout_s, MAX_WAIT_S))
        if message is None:
            return None
        return wake_of(message["channel"], message["data"])

    def __enter__(self) -> Subscriber:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the subscription and the connection."""
        self._pubsub.close()
        self._client.close()
