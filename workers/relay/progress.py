"""Reads the progress of the runs of this host from the ends of their logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuqueue.model.progress import TAIL_BYTES, progress_in
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logs import LOGS, last_bytes
from workers.run import deliveries

#: Longest text next to a progress bar, in characters.
MOST_WORDS = 200


def progress_of_runs(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the progress of each run that goes on and reports any, as the service takes it.

    Each run of this host has an entry among the deliveries, so no other run directory is read.
    """
    for run in filter(None, map(deliveries.run_named, deliveries.names(settings))):
        directory = run.run_directory(settings)
        if not os.path.lexists(directory / "claim"):
            continue
        progress = next(filter(None, map(progress_in, _ends(directory))), None)
        if progress is not None:
            words = progress.words[:MOST_WORDS]
            yield {"job": run.job_id, "token": run.token, "share": progress.share, "words": words}


def _ends(directory: Path) -> Iterator[bytes]:
    for name in LOGS[::-1]:  # programs draw their bars on standard error, if that is separate
        yield last_bytes(directory / name, TAIL_BYTES)
