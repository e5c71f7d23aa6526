"""The deliveries of a host: which runs have logs or kept files that the relay must still send or pack.

``<state>/deliveries/JOB.TOKEN`` is written before the first process of the run starts. The relay removes it when
nothing is left to do. The directory is small, so the relay finds its work without a search of all run directories.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.settings.settings import Settings
from workers.run.files import put, read_fields, warn_once

log = logging.getLogger(__name__)

#: Name of the directory below the state directory.
DIRECTORY = "deliveries"
#: The name of an entry: the job and the token of the run, which begins with the attempt.
_NAME = re.compile(r"([0-9]{1,16})\.(([0-9]{1,9})\.[0-9A-Za-z]{1,64})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """What is left to do for one run. ``keep`` are the patterns of the files to keep."""

    job_id: int
    token: str
    keep: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its entry."""
        return f"{self.job_id}.{self.token}"

    def run_directory(self, settings: Settings) -> Path:
        """Return the path of the run directory."""
        return settings.runs_dir / str(self.job_id) / self.token


def run_named(name: str) -> Delivery | None:
    """Return the run with the *name* ``JOB.TOKEN``, without its patterns; None if no run can have that name."""
    match = _NAME.fullmatch(name)
    return None if match is None else Delivery(job_id=int(match[1]), token=match[2])


def add(settings: Settings, delivery: Delivery) -> None:
    """Write the entry of a run.

    Raises:
        OSError: The entry cannot be written.

    """
    attempt = int(delivery.token.partition(".")[0])
    plain = {"job": delivery.job_id, "attempt": attempt, "token": delivery.token, "keep": list(delivery.keep)}
    path = settings.state_dir / DIRECTORY / delivery.name
    try:
        put(path, json.dumps(plain))
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        put(path, json.dumps(plain))


def remove(settings: Settings, delivery: Delivery) -> None:
    """Remove the entry of a run, if there is one."""
    with contextlib.suppress(OSError):
        (settings.state_dir / DIRECTORY / delivery.name).unlink()


def is_pending(settings: Settings, job: str, token: str) -> bool:
    """Return whether something of the run *token* of the job is still to be delivered."""
    return os.path.lexists(settings.state_dir / DIRECTORY / f"{job}.{token}")


def names(settings: Settings) -> list[str]:
    """Return the names of all entries, ``JOB.TOKEN``."""
    try:
        found = os.listdir(settings.state_dir / DIRECTORY)  # noqa: PTH208 - each second
    except OSError:
        return []
    return [name for name in found if not name.startswith(".")]  # others are half-written


def settled(settings: Settings) -> Iterator[Delivery]:
    """Yield the deliveries whose runs are settled, in the order of their jobs. Nothing is written there any more."""
    runs = sorted(filter(None, map(run_named, names(settings))), key=lambda each: (each.job_id, each.token))
    for run in runs:
        if not os.path.lexists(f"{settings.runs_dir}/{run.job_id}/{run.token}/claim"):
            whole = _with_patterns(settings, run)
            if whole is not None:
                yield whole


def _with_patterns(settings: Settings, run: Delivery) -> Delivery | None:
    """Return the delivery in the entry of *run*, or None if it cannot be read now."""
    path = settings.state_dir / DIRECTORY / run.name
    try:
        plain = read_fields(path)
        return None if plain is None else Delivery(job_id=run.job_id, token=run.token, keep=plain.texts("keep"))
    except Unreadable as error:  # after a power cut. The name has all that the logs need
        warn_once(path, f"the log is sent, and no file is kept: {error}")
        return run
    except OSError as error:
        log.warning("the delivery %s cannot be read, it waits: %s", run.name, error)
        return None
