"""The route by which the owner of a running job types on its terminal. Its output is the stream of the log."""

from __future__ import annotations

import contextlib
import sys
from contextlib import ExitStack
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client.run_logs import own_log
from gpuqueue.errors import Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.api import TerminalInput, Whether
from gpuqueue.model.run import Record
from gpuqueue.service.call import Call
from gpuqueue.service.relay_requests import HostRun
from gpuqueue.service.routes.described import Operations, route
from gpuqueue.service.routes.logs import logs_of
from gpuqueue.service.site import Site, answered, body_of, site_of
from gpuqueue.system.delivered_layout import TOKEN
from gpuqueue.system.terminal_socket import TerminalSocket, size_frame, typed_frames

router = Operations("logs")
#: How long a request waits for the output that its input causes, in seconds, so that followers get it at once.
ECHO_S = 0.05
#: How long the job may not read its input before more of it is refused, in seconds.
UNREAD_S = 5.0
GONE = Whether(answer=False, why="the job has no terminal now")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Elsewhere:
    """A terminal on another host, and what ends with its use: the entry in the audit log."""

    run: HostRun
    entry: ExitStack


@route(router, "POST /jobs/{name}/terminal", answer=Whether, body=TerminalInput)
async def type_to_job(request: Request, name: str) -> Response:
    """Type on the terminal of a job of the caller's, or resize it. Never send the same input twice.

    The job must have a terminal that takes input. ``answer`` is false if it has no terminal any more. The output is
    that of ``/jobs/{name}/log/stream``. 503: the host of the job does not answer, and may have lost the input.
    """
    wanted, site = await body_of(request, TerminalInput), site_of(request)
    found, job_id = await site.work(request, lambda call: _typed(call, name, wanted))
    if isinstance(found, _Elsewhere):
        found = await _sent_elsewhere(site, found, wanted)
    site.ends.wake(job_id)
    return answered(found)


def _typed(call: Call, name: str, wanted: TerminalInput) -> tuple[Whether | _Elsewhere, int]:
    record = call.client.jobs.newest(name)
    owner = record.job.spec.account
    with ExitStack() as entry:
        if wanted.window is None:  # keys: what repeats within minutes is one entry
            call.change_again(Action.ATTACH, "type", record.job.label, owner)
        else:
            entry.enter_context(call.change(Action.ATTACH, "attach", record.job.label, owner=owner))
        run = _run_elsewhere(call, record)
        if run is None:
            return _sent(logs_of(call).path_in(record), wanted), record.job.id
        if not record.job.state.is_active:
            return GONE, record.job.id
        return _Elsewhere(run=run, entry=entry.pop_all()), record.job.id


def _run_elsewhere(call: Call, record: Record) -> HostRun | None:
    """Return the newest run, beside whose log the terminal is, or None if it is on this host."""
    run = next((run for run in reversed(record.runs) if run.log_path), None)
    if run is None or own_log(call.connection.settings, run) is not None or not TOKEN.fullmatch(run.token):
        return None
    return HostRun.of(run)


async def _sent_elsewhere(site: Site, there: _Elsewhere, wanted: TerminalInput) -> Whether:
    """Have the relay of the other host pass on the input. No thread waits for that."""
    frames = (b"" if wanted.window is None else size_frame(wanted.window)) + typed_frames(_bytes(wanted))
    try:
        found = await site.relays.type(there.run, frames)
    except BaseException:
        how = sys.exc_info()
        await site.on_disk(lambda: there.entry.__exit__(*how))
        raise
    await site.on_disk(there.entry.close)
    return Whether(answer=True) if found else GONE


def _sent(log: Path, wanted: TerminalInput) -> Whether:
    try:
        with contextlib.closing(TerminalSocket(log, unread_s=UNREAD_S)) as line:
            if wanted.window is not None:
                line.resize(wanted.window)
            if wanted.typed:
                line.type(_bytes(wanted))
                line.wait(ECHO_S)
    except (FileNotFoundError, ConnectionRefusedError, BrokenPipeError, ConnectionResetError):
        return GONE
    except BlockingIOError:
        raise Refused(f"the job has not read what was typed for {UNREAD_S:g} s") from None
    except OSError as error:
        raise Refused(f"the terminal of the job cannot be used: {error.strerror}") from None
    return Whether(answer=True)


def _bytes(wanted: TerminalInput) -> bytes:
    return wanted.typed.encode("utf-8", "surrogateescape")
