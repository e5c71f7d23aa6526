"""Checks that a worker host names only its own runs."""

from __future__ import annotations

import threading
from collections import OrderedDict

from gpuqueue.files.blob_store import blob_store_of
from gpuqueue.files.manifest import ACCEPTED_BEFORE, Manifest, read_manifest
from gpuqueue.model.access import Action
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.service.call import Call
from gpuqueue.service.relay_requests import HostRun
from gpuqueue.service.responses import NotHere

#: Most runs that are kept in memory. The one that was named longest ago is forgotten first.
MOST = 10_000


class HostRuns:
    """Remembers the users of runs, since the host of a run never changes. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: OrderedDict[HostRun, str] = OrderedDict()

    def user_of(self, call: Call, run: HostRun) -> str:
        """Return the name of the user of *run*, which must be one of the caller's, a worker host.

        Raises:
            NotAuthenticated: the caller is no worker host.
            NotHere: *run* is none of this host, or the history does not have it yet.

        """
        call.must(Action.SERVE_JOBS)
        with self._lock:
            known = self._users.get(run)
            if known is not None:
                self._users.move_to_end(run)
                return known
        user = _user_of(call, run)
        with self._lock:
            self._users[run] = user
            if len(self._users) > MOST:
                self._users.popitem(last=False)
        return user


def _user_of(call: Call, run: HostRun) -> str:
    connection = call.connection
    for read in (connection.queue.jobs.record, connection.recorded):  # the queue has the current run
        record = read(run.job_id)
        if record is not None and any((each.token, each.host) == (run.token, run.host) for each in record.runs):
            return record.job.spec.account.name
    raise NotHere(f"host {run.host} has no such run of job {run.job_id}")


def code_of(call: Call, host: str, job_id: int) -> Manifest:
    """Return the manifest of the code of a job that holds a device of *host* now.

    Raises:
        NotAuthenticated: the caller is no worker host.
        NotHere: no run of the job goes on at *host*, or the job has no snapshot.

    """
    call.must(Action.SERVE_JOBS)
    record = call.connection.queue.jobs.record(job_id)
    run = None if record is None else record.last_run
    if record is None or run is None or not record.job.state.is_active:
        raise NotHere(f"no run of job {job_id} goes on at host {host}")
    if (run.host, run.attempt) != (host, record.job.attempt):
        raise NotHere(f"no run of job {job_id} goes on at host {host}")
    if record.job.spec.snapshot is None:
        raise NotHere(f"the code of job {job_id} did not travel with it")
    address = CodeSnapshot.parse(record.job.spec.snapshot).address
    return read_manifest(blob_store_of(call.connection.settings).manifest_text(address), ACCEPTED_BEFORE)
