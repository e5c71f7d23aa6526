"""The route by which the owner of a running job types on its terminal. Its output is the stream of the log."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fastapi import APIRouter, Request, Response

from gpuqueue.client.run_logs import own_log
from gpuqueue.errors import Refused
from gpuqueue.model.access import Action
from gpuqueue.model.api import TerminalInput, Whether
from gpuqueue.model.run import Record
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import route
from gpuqueue.service.routes.logs import logs_of
from gpuqueue.service.site import answered, body_of, site_of
from gpuqueue.system.terminal_socket import TerminalSocket

router = APIRouter(tags=["logs"])
#: How long a request waits for the output that its input causes, in seconds, so that followers get it at once.
ECHO_S = 0.05
GONE = Whether(answer=False, why="the job has no terminal now")


@route(router, "POST", "/jobs/{name}/terminal", answer=Whether, body=TerminalInput)
async def type_to_job(request: Request, name: str) -> Response:
    """Type on the terminal of a job of the caller's, or resize it. Never send the same input twice.

    The job must have a terminal that takes input, and run on the host of the service. ``answer`` is false if it has no
    terminal any more. The output is that of ``/jobs/{name}/log/stream``.
    """
    wanted = await body_of(request, TerminalInput)
    found, job_id = await site_of(request).work(request, lambda call: _typed(call, name, wanted))
    site_of(request).ends.wake(job_id)
    return answered(found)


def _typed(call: Call, name: str, wanted: TerminalInput) -> tuple[Whether, int]:
    record = call.client.jobs.newest(name)
    owner = record.job.spec.account
    if wanted.window is None:  # one entry for each time that a terminal is attached or resized, not for each key
        call.must(Action.ATTACH, owner)
        return _sent(_log_here(call, record), wanted), record.job.id
    with call.change(Action.ATTACH, "attach", record.job.label, owner=owner):
        return _sent(_log_here(call, record), wanted), record.job.id


def _log_here(call: Call, record: Record) -> Path:
    """Return the path of the newest run's log, beside which the terminal is.

    Raises:
        Refused: it is on another host.

    """
    run = next((run for run in reversed(record.runs) if run.log_path), None)
    if run is not None and own_log(call.connection.settings, run) is None:
        raise Refused(f"job {record.job.label} runs on another host than the service, and its terminal is there")
    return logs_of(call).path_in(record)


def _sent(log: Path, wanted: TerminalInput) -> Whether:
    try:
        with contextlib.closing(TerminalSocket(log)) as line:
            if wanted.window is not None:
                line.resize(wanted.window)
            if wanted.typed:
                line.type(wanted.typed.encode("utf-8", "surrogateescape"))
                line.wait(ECHO_S)
    except (FileNotFoundError, ConnectionRefusedError, BrokenPipeError, ConnectionResetError):
        return GONE
    except OSError as error:
        raise Refused(f"the terminal of the job cannot be used: {error.strerror}") from None
    return Whether(answer=True)
