"""What is needed to measure a peer: its workers, a submitter, and one submit as a whole process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from benchmarks.measure.place import ROOT
from benchmarks.peers.crew import MARK, PATIENCE_S
from benchmarks.peers.install import HOME

SLOTS = 4
#: Variables of the user's setup, or of a proxy, that would change a peer's behaviour.
NOT_PASSED_ON = ("XDG_", "CONDA_", "TMUX", "SLURM", "SBATCH", "MUNGE", "JOBD_", "GPUQ_", "GFLOW_", "GPUQUEUE_")


class NotInstalled(Exception):
    """The peer is not installed."""

    def __init__(self, *names: str) -> None:
        super().__init__(f"not installed: python -m benchmarks.peers.install {' '.join(names)}")


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer that is up, with four slots."""

    name: str
    environ: Mapping[str, str]
    #: The Python in which it is installed.
    python: str = sys.executable
    #: One submit from a shell; empty if the peer has no command for that.
    command: Sequence[str] = ()
    #: Functions: one returns the processes that a crash of the worker would end, the other restarts those that do not
    #: restart themselves.
    mains: Callable[[], Sequence[psutil.Process]] = field(repr=False)
    restart: Callable[[], None] = field(repr=False)

    @contextmanager
    def submitter(self) -> Iterator[Submitter]:
        """Yield a submitter in a process that has imported all it needs."""
        words = [self.python, "-m", "benchmarks.peers.submitter", self.name]
        with subprocess.Popen(
            words, env=dict(self.environ), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield Submitter(process)
            finally:
                process.kill()  # the process may hang with its peer, and has nothing to finish


@dataclass(frozen=True)
class Submitter:
    """Talks to the submitting process, one line each way."""

    process: subprocess.Popen[str]
    patience_s: float = PATIENCE_S

    def submit(self, words: Sequence[str]) -> str:
        """Submit a command; return the id of the job.

        Raises:
            RuntimeError: it was not acknowledged.
            TimeoutError: there was no answer.
        """
        return self._ask(list(words))

    def cancel(self, job_id: str) -> None:
        """Ask the peer to end a job; an error is accepted as an answer."""
        with contextlib.suppress(RuntimeError):
            self._ask(job_id)

    def _ask(self, what: object) -> str:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("it has no pipes")
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as answer:  # one line each way, so no part of an answer is in a buffer
            answer.register(self.process.stdout, selectors.EVENT_READ)
            if not answer.select(self.patience_s):
                raise TimeoutError(f"no answer to a submit or a cancel within {self.patience_s:g} s")
        reply = self.process.stdout.readline().strip()
        if not reply.startswith("ok "):
            raise RuntimeError(reply or "it has ended")
        return reply.removeprefix("ok ")


@contextmanager
def private_place(path: Sequence[str] = (), **more: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield a home and an environment in it, without the user's setup and proxies.

    *path* comes before the directory of the installed peers and before the user's ``PATH``.
    """
    with tempfile.TemporaryDirectory(prefix="gq-peer-", ignore_cleanup_errors=True) as place:
        passed_on = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(NOT_PASSED_ON) and not name.lower().endswith("_proxy")
        }
        whole_path = os.pathsep.join((*path, str(HOME / "bin"), os.environ.get("PATH", os.defpath)))
        yield place, {**passed_on, "HOME": place, "PATH": whole_path, MARK: place, **more}
