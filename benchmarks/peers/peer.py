"""What of a peer is needed to measure it: its workers, who submits, one submit as a whole process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from benchmarks.measure.place import ROOT

SLOTS = 4


class NotInstalled(Exception):
    """This peer is not here."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer that is up, with four slots."""

    name: str
    environ: Mapping[str, str]
    #: The Python that has it installed.
    python: str = sys.executable
    #: One submit from a shell; empty where it has no command for that.
    command: Sequence[str] = ()
    #: Return the processes that a crash of "the worker" would end, and start again what does not start itself.
    mains: Callable[[], Sequence[psutil.Process]] = field(repr=False)
    restart: Callable[[], None] = field(repr=False)

    @contextmanager
    def submitter(self) -> Iterator[Submitter]:
        """Give what submits in a process that has imported all it needs."""
        words = [self.python, "-m", "benchmarks.peers.submitter", self.name]
        with subprocess.Popen(
            words, env=dict(self.environ), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            yield Submitter(process)
            if process.stdin is not None:
                process.stdin.close()


@dataclass(frozen=True)
class Submitter:
    """Speaks with the process that submits, one line each way."""

    process: subprocess.Popen[str]

    def submit(self, words: Sequence[str]) -> str:
        """Submit a command; return the id of the job.

        Raises:
            RuntimeError: it was not acknowledged.

        """
        return self._ask(list(words))

    def cancel(self, job_id: str) -> None:
        """Ask the peer to end a job; that it cannot is an answer as well."""
        with contextlib.suppress(RuntimeError):
            self._ask(job_id)

    def _ask(self, what: object) -> str:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("it has no pipes")
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        reply = self.process.stdout.readline().strip()
        if not reply.startswith("ok "):
            raise RuntimeError(reply or "it has ended")
        return reply.removeprefix("ok ")


class Crew:
    """Worker processes that are started by us, and started again after a kill."""

    def __init__(self, commands: Sequence[Sequence[str]], environ: Mapping[str, str]) -> None:
        self._commands, self._environ = commands, environ
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start every worker that does not run."""
        self._running = [each for each in self._running if each.poll() is None]
        for command in self._commands[len(self._running) :]:
            self._running.append(
                subprocess.Popen(
                    command,
                    env=dict(self._environ),
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def mains(self) -> list[psutil.Process]:
        """Return the main process of each worker."""
        return [psutil.Process(each.pid) for each in self._running if each.poll() is None]

    def end(self) -> None:
        """End everything below them, too: some leave their children."""
        place = self._environ["PEERS_PLACE"]
        for _ in range(3):
            for each in marked(place):
                with contextlib.suppress(psutil.Error):
                    each.kill()
        for process in self._running:
            process.wait()


def marked(place: str) -> list[psutil.Process]:
    """Return every process that was started below a peer in *place*, but for this one."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.pid != os.getpid() and each.environ().get("PEERS_PLACE") == place:
                found.append(each)
    return found
