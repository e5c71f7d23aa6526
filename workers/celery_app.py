"""The Celery application of a device's worker: its single task and the broker URL.

``celery -A workers.celery_app inspect active`` lists the active runs. Flower takes the same ``-A``.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery
from kombu.entity import Queue

from gpuqueue.queue.keys import PREFIX
from gpuqueue.settings.settings import Settings
from workers.bootstep import TASK, ServeDevice
from workers.worker import ADOPTED, Worker


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
        },
        control_queue_expires=60.0,
        task_acks_late=False,
        task_default_queue=queue,
        task_ignore_result=True,
        task_queues=[Queue(queue)],
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
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
    celery_app.worker_main(
        [
            "worker",
            *("--pool", "threads"),
            # Adopted runs do not count against the worker's slots.
            *("--concurrency", str(worker.slots + ADOPTED)),
            *("--queues", f"gpu.{worker.device.uuid}"),
            *("--hostname", f"{worker.device.uuid}@{worker.settings.host}"),
            *("--loglevel", "INFO"),
            "--without-gossip",
            "--without-mingle",
            "--task-events",
        ]
    )
    worker.close()
    return 1 if getattr(celery_app, "gpuqueue_failed", False) else 0


def __getattr__(name: str) -> Any:
    """Create ``app`` only when the celery command asks for it. A worker imports this module without it."""
    if name in {"app", "celery"}:
        return make_app(Settings.load())
    raise AttributeError(name)
