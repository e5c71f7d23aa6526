"""Celery as its documentation recommends where no task may be lost (redis, acks late)."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.chaos.peers import tasks

#: The visibility timeout, in seconds. The documentation requires more than the longest task, which takes 6 s here; the
#: default is an hour.
VISIBILITY_S = 30

app = Celery("chaos", broker=os.environ["CHAOS_BROKER"])
app.conf.update(
    broker_transport_options={"visibility_timeout": VISIBILITY_S},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
)
run = app.task(tasks.run, name="chaos.run")
