"""Submits the commands on its standard input, one JSON list a line; prints ok for each acknowledged one.

python -m benchmarks.chaos.peers.submit celery|rq|gpuqueue
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Submit = Callable[[list[str]], Any]


def to_celery() -> Submit:
    """Return a function that submits a command to Celery."""
    from benchmarks.chaos.peers.celery_app import run  # noqa: PLC0415 - each is installed somewhere else

    submit: Submit = run.delay
    return submit


def to_rq() -> Submit:
    """Return a function that submits a command to RQ, with the retries that its documentation offers."""
    from redis import Redis  # noqa: PLC0415 - as above
    from rq import Queue, Retry  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - as above

    queue = Queue(connection=Redis.from_url(os.environ["CHAOS_RQ"]))
    return lambda words: queue.enqueue("benchmarks.chaos.peers.tasks.run", words, retry=Retry(max=3))


def to_gpuqueue() -> Submit:
    """Return a function that submits a command to gpuqueue."""
    from gpuqueue import Client  # noqa: PLC0415 - as above

    client = Client()
    return lambda words: client.jobs.submit(words, mem="1G")


if __name__ == "__main__":
    submit = {"celery": to_celery, "rq": to_rq, "gpuqueue": to_gpuqueue}[sys.argv[1]]()
    for line in sys.stdin:
        try:
            submit(json.loads(line))
        except Exception as error:  # noqa: BLE001 - whatever it is, it was not acknowledged
            print(f"{error!r}", flush=True)
        else:
            print("ok", flush=True)
