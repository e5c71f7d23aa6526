"""A machine whose only device is a private Slurm, and what a person sees of its whole jobs."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from bounded import until
from own_home import Home
from private_slurm import PrivateSlurm

from gpuqueue.settings.settings import Settings
from workers.whole.prepare import site_of


class Site:
    """A machine whose only device is Slurm."""

    def __init__(self, home: Home, slurm: PrivateSlurm) -> None:
        self.home = home
        self.slurm = slurm
        home.environ |= {name: slurm.environ[name] for name in ("SLURM_CONF",)}
        home.environ["PATH"] += f"{os.pathsep}{slurm.environ['PATH']}"

    def up(self) -> None:
        """Start the queue."""
        self.home("up", "--devices", "slurm")

    def submit(self, script: str, *options: str) -> str:
        """Submit a whole job of a shell script, and return its id."""
        return self.home.output_of("submit", "--on", "slurm", *options, "--", "sh", "-c", script).strip()

    def record(self, job: str) -> dict[str, Any]:
        """Return what ``show`` says of a job."""
        found: dict[str, Any] = json.loads(self.home.output_of("show", job, "--json"))
        return found

    def ended(self, job: str, timeout_s: float = 120) -> dict[str, Any]:
        """Wait for the end of a job, and return its record."""
        ends = {"succeeded", "failed", "cancelled", "lost"}
        return until(
            lambda: found if (found := self.record(job))["job"]["state"] in ends else None,
            what=f"the end of job {job}", timeout_s=timeout_s,
        )  # fmt: skip

    def until_in_log(self, job: str, words: str) -> None:
        """Wait until the log of a job has *words*."""
        until(lambda: words in self.home.output_of("logs", job), what=f"{words!r} in the log", timeout_s=90)

    def at_slurm(self, job: str) -> list[tuple[str, str]]:
        """Return id and state of all jobs that Slurm has, or had, for a job."""
        site = site_of(self.settings)
        text = self.slurm.command("squeue", "--noheader", "--states=all", "--format=%i %T %j")
        rows = [line.split() for line in text.splitlines()]
        return [(row[0], row[1]) for row in rows if row[2].startswith(f"gpuqueue-w{site}j{job}n")]

    @property
    def settings(self) -> Settings:
        """Return the settings of the machine."""
        return Settings.load({name: value for name, value in self.home.environ.items() if name.startswith("GPUQUEUE_")})

    def follower(self, job: str) -> int:
        """Return the pid of the process that follows a job."""
        mark = f"{self.home.state}/runs/{job}/"

        def found() -> int | None:
            for entry in Path("/proc").iterdir():
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else []
                    if "workers.whole.follower" in words and any(word.startswith(mark) for word in words):
                        return int(entry.name)
            return None

        return until(found, what="the follower")


def last_run(record: dict[str, Any]) -> dict[str, Any]:
    """Return the last run of a job."""
    found: dict[str, Any] = record["runs"][-1]
    return found
