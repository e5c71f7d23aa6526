"""Celery as its documentation recommends where no task may be lost (redis, acks late)."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.peers import tasks

app = Celery("peers", broker=f"redis+socket://{os.environ['PEERS_SOCKET']}")
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=True)
app.conf.update(worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)
run = app.task(tasks.run, name="run")
