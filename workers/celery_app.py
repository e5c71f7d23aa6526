"""The Celery application of a device's worker: its single task and the broker URL.

``celery -A workers.celery_app inspect active`` lists the active runs. Flower takes the same ``-A``. Workers send events
about tasks once a tool has asked for them (``enable_events``), as Flower does: three messages for each job.

The step belongs to the *worker* blueprint. Celery rebuilds the consumer blueprint at every reconnection with the
broker, so the step must not belong to that one.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery, bootsteps
from kombu.entity import Queue
from kombu.message import Message

from gpuqueue.errors import GpuQueueError
from gpuqueue.queue.keys import PREFIX
from gpuqueue.queue.scripts import load_all
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import shield, stop_signal
from workers.measure.active_runs import LiveRun
from workers.worker import ADOPTED, Worker

log = logging.getLogger(__name__)

TASK = "gpuqueue.run"
#: How long to wait for the consumer before the run goes over the broker queue, in seconds.
READY_TIMEOUT_S = 10.0
#: How long each question for messages of the broker waits, and the time between two events that say that this worker is
#: there, in seconds. With Celery's 1 and 2 an idle worker asks the store three times as often, and gains nothing: runs
#: are handed over within the process, and remote control has a subscription of its own.
BROKER_POLL_S, EVENT_S = 10, 10

#: Modules that Celery imports when a worker starts.
PRELOADED = ("celery.apps.worker", "celery.concurrency.thread", "celery.worker.autoscale", "kombu.transport.redis")


def broker_url(redis_url: str) -> str:
    """Return the store's URL in kombu's notation, in which a unix socket is ``redis+socket://``."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    asked = parse_qs(parts.query)
    database, password = asked.get("db", ["0"])[0], parts.password or asked.get("password", [""])[0]
    query = f"?virtual_host={database}" if database != "0" else ""
    return f"redis+socket://{f':{password}@' if password else ''}{parts.path}{query}"


def make_app(settings: Settings, device: str | None = None) -> Celery:
    """Return the Celery application, configured for the queue of *device* if one is given."""
    celery_app = Celery("gpuqueue", broker=broker_url(settings.redis_url))
    queue = f"gpu.{device}" if device else "gpu"
    celery_app.conf.update(
        broker_connection_max_retries=None,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "socket_keepalive": urlsplit(settings.redis_url).scheme != "unix",
            # Celery's keys and channels are below the queue's, so that one access rule covers both.
            "global_keyprefix": f"{PREFIX}celery:",
            "polling_interval": BROKER_POLL_S,
        },
        control_queue_expires=60.0,
        task_acks_late=False,
        task_default_queue=queue,
        task_ignore_result=True,
        task_queues=[Queue(queue)],
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=True,
        worker_prefetch_multiplier=1,
    )
    return celery_app


def attach(celery_app: Celery, worker: Worker) -> None:
    """Register the task that executes the runs of *worker*, and the bootstep that starts and stops *worker*."""
    celery_app.gpuqueue_worker = worker

    @celery_app.task(name=TASK)  # type: ignore[untyped-decorator,unused-ignore]  # celery has no types
    def run(job_id: int, token: str, **_shown: Any) -> str:  # noqa: ARG001 - `inspect` and Flower display the arguments
        return worker.work(token)

    celery_app.steps["worker"].add(ServeDevice)


def serve(worker: Worker) -> int:
    """Serve the worker's device until a stop signal arrives, and return the exit code."""
    celery_app = make_app(worker.settings, worker.device.uuid)
    attach(celery_app, worker)
    # Not `worker_main`: the command line of Celery loads Flower and all other plug-ins, which is 20 MiB for nothing.
    celery_app.Worker(
        hostname=f"{worker.device.uuid}@{worker.settings.host}",
        pool="threads",
        # Adopted runs do not count against the worker's slots.
        concurrency=worker.slots + ADOPTED,
        queues=[f"gpu.{worker.device.uuid}"],
        loglevel="INFO",
        without_gossip=True,
        without_mingle=True,
        heartbeat_interval=EVENT_S,
    ).start()
    worker.close()
    return 1 if getattr(celery_app, "gpuqueue_failed", False) else 0


def preload() -> None:
    """Load what a worker loads until its first job has ended, for the parent that forks workers. Nothing is opened."""
    for name in PRELOADED:
        import_module(name)
    load_all()


def __getattr__(name: str) -> Any:
    """Create ``app`` only when the celery command asks for it. A worker imports this module without it."""
    if name in {"app", "celery"}:
        return make_app(Settings.load())
    raise AttributeError(name)


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
        shield()  # Celery has set its handlers before
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
        os.kill(os.getpid(), stop_signal())  # Celery handles SIGTERM in every state

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
