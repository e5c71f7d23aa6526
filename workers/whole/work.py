"""What the worker writes down for the follower of a whole job, and what the follower writes down at the end."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from gpuqueue.engines.slurm import SlurmAccess
from gpuqueue.engines.whole_job import Account, WholeJob
from gpuqueue.lazy.frozen import dataclass

#: Files in the run directory: the work, which holds secrets until the follower has read it, and how the job ended.
WORK, END = "whole.json", "whole-end.json"
#: How the name of a mark ends that says that the engine was asked for the job of a key.
ASKED = ".asked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A whole job to hand over and follow: its ``key``, and the ``others`` that earlier runs of it may have had."""

    key: str
    others: tuple[str, ...]
    job: WholeJob
    access: SlurmAccess = field(default_factory=SlurmAccess)

    def write(self, run_dir: Path) -> None:
        """Write it into the run directory, where only this account reads it."""
        _put(run_dir / WORK, asdict(self), sync=False)

    @classmethod
    def take(cls, run_dir: Path) -> Work:
        """Return the work in *run_dir*, and remove its file.

        Raises:
            OSError: there is none.

        """
        path = run_dir / WORK
        plain = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        job, access = plain["job"], plain["access"]
        for values, name in ((job, "argv"), (job, "signal"), (access, "wrapper"), (access, "options")):
            values[name] = None if values[name] is None else tuple(values[name])
        others = tuple(plain["others"])
        return cls(key=plain["key"], others=others, job=WholeJob(**job), access=SlurmAccess(**access))


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a whole job ended, as its follower learned it.

    ``account`` is what the engine says, and ``code`` the exit code in the job's own file. ``refused`` is why the engine
    took no such job. ``ref`` is the engine's id.
    """

    ref: str = ""
    account: Account | None = None
    code: int | None = None
    refused: str = ""

    def write(self, run_dir: Path) -> None:
        """Write it into the run directory, on the disk before this returns."""
        _put(run_dir / END, asdict(self), sync=True)

    @classmethod
    def read(cls, run_dir: Path) -> End | None:
        """Return the end in *run_dir*, None if the follower wrote none."""
        with suppress(OSError, ValueError, TypeError):
            plain = json.loads((run_dir / END).read_text(encoding="utf-8"))
            account = plain.pop("account")
            return cls(account=None if account is None else Account(**account), **plain)
        return None


def mark_asked(run_dir: Path, key: str) -> None:
    """Note in the run directory that the engine is asked for the job of *key*, on the disk before this returns."""
    _put(run_dir / f"{key}{ASKED}", {}, sync=True)


def _put(path: Path, plain: dict[str, Any], *, sync: bool) -> None:
    fresh = path.with_name(f".{path.name}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(plain, file)
        file.flush()
        if sync:
            os.fsync(fd)
    fresh.replace(path)
