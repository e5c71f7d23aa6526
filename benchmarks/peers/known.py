"""The peers that we can start: each with four slots, and as durable as it can be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks.peers.own import gpuqueue
from benchmarks.peers.peer import Peer
from benchmarks.peers.python_queues import celery, huey, rq
from benchmarks.peers.task_spooler import task_spooler

PEERS: dict[str, Callable[[], AbstractContextManager[Peer]]] = {
    "gpuqueue": gpuqueue,
    "celery": celery,
    "rq": rq,
    "huey": huey,
    "task-spooler": task_spooler,
}
