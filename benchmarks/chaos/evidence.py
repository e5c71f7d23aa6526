"""Watches the site while it is broken, and collects everything that is left when it is quiet."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Sequence

from benchmarks.chaos.site import Role, Site
from gpuqueue import Client
from gpuqueue.errors import Unreachable
from gpuqueue.model.event import Event
from gpuqueue.model.run import Record
from gpuqueue.queue.connect import connect
from gpuqueue.queue.keys import LIVE, OUTBOX, PREFIX

#: The polling interval of the history's position, in seconds.
POLL_S = 0.05
#: How long the site must be quiet without interruption, in seconds. By then the workers have emptied the run
#: directories of recorded runs, which they check at each heartbeat.
STILL_S = 3.0
PAGE = 500

#: Keys that a store keeps for good: its identity, the users that it has served, its devices, its notification senders.
_PERMANENT = {
    "epoch",
    "seq",
    "meta",
    "fair",
    "usual",
    "hosts",
    "facts",
    "seen",
    "lc",
    "ev",
    "drained",
    "deaths",
    "senders",
    "machines",
    "submit_limits",
    "open_bytes",
}
#: The devices of each host, and Celery's bindings, which list its queues.
_EXPECTED = re.compile(rf"{re.escape(PREFIX)}(dev|celery):.+")
#: A key that expires within this time, in seconds, is not left behind: a submit's nonce, Celery's own locks.
SOON_S = 600
#: The files of a settled run: its log, the notes of its size, and the name of its user.
_KEPT_FILES = {"log", "log.times", "user"}


class Watch:
    """Records when the history's position moves, and knows when the site is at rest."""

    def __init__(self, site: Site) -> None:
        #: When the history's position was seen to move, in wall-clock seconds.
        self.moves: list[float] = []
        self._client = Client(site.settings)
        self._store = connect(site.settings.redis_url)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="chaos-watch", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()
        self._thread.join()
        self._client.close()

    def _loop(self) -> None:
        last = None
        while not self._stopping.wait(POLL_S):
            with contextlib.suppress(Unreachable):
                cursor = self._client.database.cursor()
                if cursor != last:
                    self.moves.append(time.time())
                    last = cursor

    def until_quiet(self, timeout_s: float) -> bool:
        """Wait until the queue has no job and the history has everything; return False after *timeout_s*."""
        deadline = time.monotonic() + timeout_s
        still_since = None
        while time.monotonic() < deadline:
            if not self._at_rest():
                still_since = None
            elif still_since is None:
                still_since = time.monotonic()
            elif time.monotonic() - still_since > STILL_S:
                return True
            time.sleep(POLL_S)
        return False

    def _at_rest(self) -> bool:
        try:
            return not self._store.zcard(LIVE) and not self._store.xlen(OUTBOX)
        except Exception:  # noqa: BLE001 - the store may be away: then it is not at rest
            return False


def processes_left(site: Site) -> list[str]:
    """Return every process of a run that still exists."""
    return [str(each) for each in site.processes(Role.SHIM, Role.JOB)]


def keys_left(site: Site) -> list[str]:
    """Return every key of the store that belongs to no device, user or site."""
    store = connect(site.settings.redis_url)
    found = []
    for key in sorted(store.scan_iter(count=1000)):
        if key.removeprefix(PREFIX) in _PERMANENT or _EXPECTED.fullmatch(key) or goes_soon(store.ttl(key)):
            continue
        found.append(f"{key!s} ({store.type(key)!s})")
    store.close()
    return found


def goes_soon(ttl: int) -> bool:
    """Return whether a key with this time to live, in seconds, expires soon: -1 means never, -2 that it is gone."""
    return ttl != -1 and ttl <= SOON_S


def files_left(site: Site) -> list[str]:
    """Return every file of a run directory that its settlement should have removed."""
    runs = site.settings.runs_dir
    left = [
        path
        for path in (*runs.glob("live/*"), *runs.glob("reported/*"), *runs.glob("[0-9]*/*/*"))
        if path.name not in _KEPT_FILES
    ]
    return sorted(str(path.relative_to(runs)) for path in left)


def read_history(site: Site) -> tuple[dict[int, Record], dict[int, Sequence[Event]]]:
    """Return every job with its runs, and its events, by id."""
    records: dict[int, Record] = {}
    with Client(site.settings) as client:
        before = None
        while page := client.history.search(limit=PAGE, before_id=before):
            records.update((record.job.id, record) for record in page)
            before = page[-1].job.id
        stories: dict[int, Sequence[Event]] = {job_id: client.jobs.events(job_id) for job_id in records}
    return dict(sorted(records.items())), stories
