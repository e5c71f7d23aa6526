"""Submits the jobs that it reads, one JSON line each, and prints their ids; runs in the peer's own environment.

python -m benchmarks.peers.submitter NAME

A list is a command to submit. A string is the id of a running job to cancel, in the way that the peer documents.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.measure.ended import patient

Submit = Callable[[list[str]], object]
Cancel = Callable[[str], object]
#: How long a command of a peer may take, in seconds.
PATIENCE_S = 30.0


def to_celery() -> tuple[Submit, Cancel]:
    """Return functions that submit to Celery and cancel there."""
    from benchmarks.peers.celery_app import app, run  # noqa: PLC0415 - each is installed somewhere else

    submit: Any = run.delay
    return submit, lambda job_id: app.control.revoke(job_id, terminate=True)


def to_rq() -> tuple[Submit, Cancel]:
    """Return functions that submit to RQ and cancel there."""
    from redis import Redis  # noqa: PLC0415 - as above
    from rq import Queue  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - as above
    from rq.command import (  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - as above
        send_stop_job_command,
    )

    connection: Any = Redis(unix_socket_path=os.environ["PEERS_SOCKET"])
    queue = Queue(connection=connection)
    return (
        lambda words: queue.enqueue("benchmarks.peers.tasks.run", words).id,
        lambda job_id: send_stop_job_command(connection, job_id),
    )


def to_huey() -> tuple[Submit, Cancel]:
    """Return functions that submit to Huey and revoke there: Huey cannot end a running task."""
    from benchmarks.peers.huey_app import huey, run  # noqa: PLC0415 - as above

    return lambda words: run(words).id, huey.revoke_by_id


def to_task_spooler() -> tuple[Submit, Cancel]:
    """Return functions that submit to task-spooler and cancel there."""
    return lambda words: _reported("tsp", *words), lambda job_id: _reported("tsp", "-k", job_id)


def to_gflow() -> tuple[Submit, Cancel]:
    """Return functions that submit to gflow and cancel there, by commands, as gflow has no library."""

    def submit(words: list[str]) -> str:
        printed = _reported("gbatch", *words)  # Submitted batch job 12 (name)
        return printed.split()[3]

    return submit, lambda job_id: _reported("gcancel", job_id)


def to_slurm() -> tuple[Submit, Cancel]:
    """Return functions that submit to Slurm and cancel there."""
    quietly = ("--parsable", "--output=/dev/null", "--wrap")
    return lambda words: _reported("sbatch", *quietly, shlex.join(words)), lambda job_id: _reported("scancel", job_id)


def to_jobd() -> tuple[Submit, Cancel]:
    """Return functions that submit to jobd and cancel there."""
    from jobd.client import JobdClient  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - as above

    client: Any = JobdClient()
    job = {"cwd": os.environ["HOME"], "project": "peers"}
    return lambda words: client.submit({**job, "cmd": words})["id"], lambda job_id: client.cancel(int(job_id))


def to_gpuqu() -> tuple[Submit, Cancel]:
    """Return functions that submit to gpuqu and cancel there, with the modules that its command imports."""
    from gpuq.cli import Client  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - as above

    client: Any = Client(f"http://127.0.0.1:{os.environ['GPUQ_PORT']}")
    return (
        lambda words: client.request("POST", "/api/tasks", {"command": words})["data"]["id"],
        lambda job_id: client.request("DELETE", f"/api/tasks/{job_id}"),
    )


def to_gpuqueue() -> tuple[Submit, Cancel]:
    """Return functions that submit to gpuqueue and cancel there."""
    from gpuqueue import Client  # noqa: PLC0415 - as above

    client = Client()
    place = os.environ["PEERS_PLACE"]  # outside a repository, so that git costs nothing
    return lambda words: client.jobs.submit(words, mem="1M", cwd=place).id, lambda job_id: client.jobs.cancel(
        int(job_id)
    )


TO = {
    "celery": to_celery,
    "rq": to_rq,
    "huey": to_huey,
    "task-spooler": to_task_spooler,
    "gflow": to_gflow,
    "gflow-process": to_gflow,
    "jobd": to_jobd,
    "gpuqu": to_gpuqu,
    "slurm": to_slurm,
    "slurm-undelayed": to_slurm,
    "gpuqueue": to_gpuqueue,
}


def _reported(name: str, *words: str) -> str:
    """Return the stdout of a peer's command."""
    program = shutil.which(name) or name
    pipe = subprocess.PIPE
    with patient([program, *words], patience_s=PATIENCE_S, stdout=pipe, stderr=pipe) as process:
        printed, complaint = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}: {complaint.strip()}")
    return printed.strip()


if __name__ == "__main__":
    submit, cancel = TO[sys.argv[1]]()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            print(f"ok {submit(asked) if isinstance(asked, list) else cancel(asked)}", flush=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it was not done
            print(f"{error!r}", flush=True)
