"""A worker on a plain thread pool instead of Celery, for tests and manual use."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from workers.measure.active_runs import LiveRun
from workers.worker import ADOPTED, Worker


def serve(worker: Worker, stopping: threading.Event) -> None:
    """Serve the worker's device until *stopping* is set, then leave the runs to their shims."""
    # Adopted runs do not count against the worker's slots.
    with ThreadPoolExecutor(max_workers=worker.slots + ADOPTED, thread_name_prefix="gpuqueue-run") as pool:

        def hand_over(run: LiveRun) -> None:
            pool.submit(worker.work, run.held.token)

        worker.start(hand_over)
        try:
            stopping.wait()
        finally:
            worker.detach()
    worker.close()
