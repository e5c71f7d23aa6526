"""Celery as the host of the worker: one bootstep, and one way to hand a run to Celery's pool.

The step belongs to the *worker* blueprint, not to the consumer's, which is torn down and built again at every
reconnection with the broker.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from typing import Any

from celery import bootsteps
from kombu.message import Message

from gpuqueue.errors import GpuQueueError
from workers.measure.active_runs import LiveRun
from workers.worker import Worker

log = logging.getLogger(__name__)

TASK = "gpuqueue.model.run"
#: How long the consumer may take to be ready (again) before the public way is taken, in seconds.
READY_TIMEOUT_S = 10.0


class ServeDevice(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Starts our worker once Celery's pool is up, and detaches it before the pool goes down."""

    requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - Celery's own way to say it

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._parent = parent
        self._worker: Worker = parent.app.gpuqueue_worker
        self._starter: threading.Thread | None = None

    def start(self, parent: Any) -> None:
        """Start in a thread of our own: the consumer, which takes the runs, comes up after this step."""
        self._starter = threading.Thread(target=self._start, args=(parent,), name="gpuqueue-start", daemon=True)
        self._starter.start()

    def _start(self, parent: Any) -> None:
        try:
            self._worker.start(lambda run: hand_over(parent, run))
        except GpuQueueError as error:
            log.critical("the worker cannot serve %s: %s", self._worker.device.uuid, error)
            self._give_up(parent)
        except Exception:
            log.exception("the worker cannot serve %s", self._worker.device.uuid)
            self._give_up(parent)

    def _give_up(self, parent: Any) -> None:
        parent.app.gpuqueue_failed = True
        os.kill(os.getpid(), signal.SIGTERM)  # Celery's own way out, from whatever state it is in

    def stop(self, parent: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Detach: the runs go on in their shims, and the pool's threads come home."""
        self._worker.detach()

    def terminate(self, parent: Any) -> None:
        """Do the same when Celery is in a hurry."""
        self.stop(parent)


def hand_over(parent: Any, run: LiveRun) -> None:
    """Give *run* to Celery's own task strategy, in this process: no broker ever holds it.

    This is the one place with names that Celery does not promise to keep (``consumer.strategies``). Where they
    are gone the run goes over the worker's own broker queue instead: slower, but public.
    """
    app, device = parent.app, run.held.devices[0].uuid
    args, kwargs = (run.held.job_id, run.held.token), {"name": run.spec.name if run.spec else "(adopted)"}
    task_id = f"gpuqueue-{run.held.job_id}-{run.held.token}"
    strategy = _strategy(parent)
    if strategy is None:
        log.warning("%s goes over the broker: this Celery has no strategies to hand it to", run)
        app.tasks[TASK].apply_async(args, kwargs, task_id=task_id, queue=f"gpu.{device}")
        return
    # Celery's own way to write these takes longer than all the rest of the envelope; they are a number and short texts.
    envelope = app.amqp.as_task_v2(task_id, TASK, args, kwargs, argsrepr=repr(args), kwargsrepr=repr(kwargs))
    message = Message(
        body=json.dumps(envelope.body),
        headers=envelope.headers,
        properties=envelope.properties,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={"exchange": "", "routing_key": f"gpu.{device}"},
    )
    strategy(message, None, _ignore, _ignore, [])


def _strategy(parent: Any) -> Any:
    """Return the task's strategy as soon as the consumer is ready, None if there is no such thing."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        consumer = getattr(parent, "consumer", None)
        strategies = getattr(consumer, "strategies", None)
        if strategies:
            return strategies.get(TASK)
        time.sleep(0.01)
    return None


def _ignore(*_args: Any, **_kwargs: Any) -> None:
    """Acknowledge or reject nothing: there is no message in any broker."""
