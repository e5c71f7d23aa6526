"""Why the embedded store does not answer, and what to do about it. Its supervisor records each of its deaths."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

from gpuqueue.errors import START_ONE, no_queue
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.queue.connect import START_THERE
from gpuqueue.settings.settings import Settings
from gpuqueue.system import ownership
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import format_duration

#: How long a death of the store is shown.
RECENT = timedelta(days=1)
#: What separates the first reason of an outage from the latest, and the way of an end from the last lines of a log.
THEN, LAST_LINES = "; then: ", "; the end of its log: "

#: What to do about a full disk.
MAKE_ROOM = "make room there, and the store starts"


class StoreState(str, Enum):
    """What the supervisor does about the store."""

    #: It answers.
    SERVING = "serving"
    #: It was started, and has not answered yet.
    STARTING = "starting"
    #: It died, and is started after a pause.
    PAUSING = "pausing"
    #: It died, and waits for room on its disk.
    NO_ROOM = "no room"
    #: It is not started again: its files are damaged, or it failed too often.
    GIVEN_UP = "given up"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreTrouble:
    """The last death of the store that the host process has noticed."""

    at: datetime
    why: str
    state: StoreState
    #: For how long the store was away, in seconds. None while it is, or if nobody knows.
    away_s: float | None = None

    @classmethod
    def read(cls, settings: Settings) -> StoreTrouble | None:
        """Return the record, or None if there is none that can be read."""
        return _read(settings)[0]

    @property
    def text(self) -> str:
        """Return when and why it died, and for how long it was away."""
        back = "" if self.away_s is None else f"; it was back after {format_duration(self.away_s)}"
        return f"{self._begin}: {self.why}{back}"

    @property
    def brief(self) -> str:
        """Return when and why it died, without the last lines of its log; or why it cannot be started."""
        first, _, latest = self.why.partition(THEN)
        if self.state in {StoreState.NO_ROOM, StoreState.GIVEN_UP}:
            return (latest or first).removesuffix(f": {MAKE_ROOM}")
        return f"{self._begin}: {first.partition(LAST_LINES)[0]}"

    @property
    def _begin(self) -> str:
        return f"it died at {self.at.astimezone():%Y-%m-%d %H:%M:%S}"

    @property
    def is_recent(self) -> bool:
        """Return whether it died within the last day."""
        return datetime.now(timezone.utc) - self.at < RECENT

    def plain(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        return {"at": self.at.isoformat(), "why": self.why, "state": self.state.value, "away_s": self.away_s}


#: What to do about a store that is not given up, while its supervisor lives.
_BY_ITSELF = {
    StoreState.NO_ROOM: MAKE_ROOM,
    **dict.fromkeys(
        (StoreState.SERVING, StoreState.STARTING, StoreState.PAUSING), "it is started again, try again in a moment"
    ),
}


def record_of(settings: Settings) -> Path:
    """Return the path of the record of the store's last death."""
    return settings.state_dir / "store" / "trouble"


def start_of(settings: Settings) -> str:
    """Return the command that starts store and recorder of *settings*: those of a service run as a unit."""
    return "gpuqueue up" if settings.store_socket is None else "systemctl start gpuqueue-store"


def why_away(settings: Settings) -> tuple[str, str]:
    """Return why the store of *settings* does not answer, empty if nobody knows, and what to do about it."""
    if settings.store_through_service:
        return _why_not_through_service(settings)
    if not settings.embedded:
        return "", START_THERE
    original = ownership.original_of(settings.state_dir)
    if original is not None:
        return ownership.copy_words(settings.state_dir, original), ownership.IN_A_COPY
    server = ownership.process_of(settings.state_dir, ownership.STORE_PID)
    if server is not None and server.alive():
        return f"it runs (pid {server.pid}), and reads its data or hangs", f"wait, then see {settings.logs_dir}"
    if settings.store_socket is None and not record_of(settings).parent.exists():  # a store leaves its directory
        return no_queue(settings.state_dir), START_ONE
    return _why_ended(settings, server)


def _why_not_through_service(settings: Settings) -> tuple[str, str]:
    """Return why this host does not reach the store through the service, and what to do about it."""
    host = ownership.process_of(settings.state_dir, "host.pid")
    if host is None or not host.alive():
        return "gpuqueue is not up on this host", "run gpuqueue up"
    try:
        known = (settings.state_dir / ownership.TUNNEL_TROUBLE).read_text(errors="replace").strip()
    except OSError:
        return "", f"it is reached through {settings.service_url}: try again in a moment"
    return known, "mend that; this host tries again each few seconds"


def _why_ended(settings: Settings, server: ProcessIdentity | None) -> tuple[str, str]:
    """Return why the store does not run whose process was *server*, empty if nobody knows, and what to do about it."""
    start, (trouble, supervisor) = start_of(settings), _read(settings)
    if server is None or trouble is None:
        return "", f"is it running? Start it with {start}"
    if supervisor is not None and supervisor.alive():
        return trouble.brief, _BY_ITSELF.get(trouble.state, f"repair its files, then {start}")
    # A store that served until its supervisor ended, too, died for an unknown reason.
    is_known = trouble.state in {StoreState.NO_ROOM, StoreState.GIVEN_UP}
    return (trouble.brief, f"mend that, then {start}") if is_known else ("", f"is it running? Start it with {start}")


def _read(settings: Settings) -> tuple[StoreTrouble | None, ProcessIdentity | None]:
    """Return the record and the supervisor that wrote it, each None if it cannot be read."""
    try:
        plain: dict[str, Any] = json.loads(record_of(settings).read_bytes())
        trouble = StoreTrouble(
            at=datetime.fromisoformat(plain["at"]),
            why=str(plain["why"]),
            state=StoreState(plain["state"]),
            away_s=None if plain["away_s"] is None else float(plain["away_s"]),
        )
        return trouble, ProcessIdentity.parse(str(plain.get("supervisor")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, None
