"""Integration with Celery: the bootstep that starts a worker, and the handover of a run to Celery's thread pool.

The step belongs to the *worker* blueprint. Celery rebuilds the consumer blueprint at every reconnection with the
broker, so the step must not belong to that one.
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

TASK = "gpuqueue.run"
#: How long to wait for the consumer before the run goes over the broker queue, in seconds.
READY_TIMEOUT_S = 10.0


class ServeDevice(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Starts the gpuqueue worker after Celery's pool is up, and detaches it before the pool stops."""

    requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - Celery reads this class attribute

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._parent = parent
        self._worker: Worker = parent.app.gpuqueue_worker
        self._starter: threading.Thread | None = None

    def start(self, parent: Any) -> None:
        """Start the worker in a separate thread.

        The worker hands runs to the consumer, and Celery starts the consumer after this step returns.
        """
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
        os.kill(os.getpid(), signal.SIGTERM)  # Celery handles SIGTERM in every state

    def stop(self, parent: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Detach the worker. The runs continue in their shims, and the pool's threads return."""
        self._worker.detach()

    def terminate(self, parent: Any) -> None:
        """Detach the worker when Celery terminates at once."""
        self.stop(parent)


def hand_over(parent: Any, run: LiveRun) -> None:
    """Pass *run* to Celery's task strategy inside this process, without the broker.

    This is the only place that uses a private name of Celery (``consumer.strategies``). If that name is missing, the
    run goes over the worker's broker queue instead, which is slower but a public API.
    """
    app, device = parent.app, run.held.devices[0].uuid
    args, kwargs = (run.held.job_id, run.held.token), {"name": run.spec.name if run.spec else "(adopted)"}
    task_id = f"gpuqueue-{run.held.job_id}-{run.held.token}"
    strategy = _strategy(parent)
    if strategy is None:
        log.warning("%s goes over the broker: this Celery has no strategies to hand it to", run)
        app.tasks[TASK].apply_async(args, kwargs, task_id=task_id, queue=f"gpu.{device}")
        return
    # Celery's own formatting of these takes longer than the rest of the envelope. Plain repr() is safe here, because
    # the values are a number and short strings.
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
    """Return the task's strategy once the consumer is ready, or None after ``READY_TIMEOUT_S``."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        consumer = getattr(parent, "consumer", None)
        strategies = getattr(consumer, "strategies", None)
        if strategies:
            return strategies.get(TASK)
        time.sleep(0.01)
    return None


def _ignore(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing on acknowledge or reject, because no broker holds the message."""
