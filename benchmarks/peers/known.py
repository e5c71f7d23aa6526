"""The peers that can be started: each with four slots, and as durable as possible."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from benchmarks.peers.gflow import gflow
from benchmarks.peers.gpuqu import gpuqu
from benchmarks.peers.jobd import jobd
from benchmarks.peers.own import gpuqueue
from benchmarks.peers.peer import Peer
from benchmarks.peers.python_queues import celery, huey, rq
from benchmarks.peers.slurm import slurm
from benchmarks.peers.task_spooler import task_spooler

PEERS: dict[str, Callable[[], AbstractContextManager[Peer]]] = {
    "gpuqueue": gpuqueue,
    "celery": celery,
    "rq": rq,
    "huey": huey,
    "task-spooler": task_spooler,
    "gflow": gflow,
    # The executor without tmux starts at once, and checks every ten seconds which jobs have ended.
    "gflow-process": partial(gflow, name="gflow-process", executor="process"),
    "jobd": jobd,
    "gpuqu": gpuqu,
    "slurm": slurm,
    # The other extreme of the one setting that limits Slurm: how long it gathers jobs before it considers any.
    "slurm-undelayed": partial(slurm, name="slurm-undelayed", batch_delay_s=0),
}
