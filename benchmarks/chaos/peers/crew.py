"""The workers of one peer: started, killed, and restarted at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MARK = "CHAOS_CREW"


@dataclass(kw_only=True)
class Crew:
    """Keeps *commands* running. With *sweep* everything that a dead worker left is ended before its restart.

    The first *spared* commands are no workers and are not killed.
    """

    place: Path
    commands: Sequence[Sequence[str]]
    environ: Mapping[str, str]
    sweep: bool
    spared: int = 0
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    #: When a run was first seen alive without a parent of this crew, in monotonic seconds, by token.
    alone_since: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Start every worker."""
        self.workers = [self._spawn(number) for number in range(len(self.commands))]

    def supervise(self) -> None:
        """Record runs that are alive without a parent of this crew, and restart dead workers."""
        for pid, token in self._jobs():
            if not self._is_ours(_parent(pid)):
                self.alone_since.setdefault(token, time.monotonic())
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None:
                if self.sweep:
                    _kill_all(pid for pid, mark in self._marked() if mark == str(number))
                self.workers[number] = self._spawn(number)

    def kill(self, rng: random.Random) -> str:
        """Kill a worker, or one of its child processes; return in words what was done."""
        worker = rng.choice(self.workers[self.spared :])
        how = rng.choices(("main SIGKILL", "child SIGKILL", "main SIGTERM"), weights=(5, 3, 2))[0]
        below = [pid for pid, _ in self._marked() if _parent(pid) == worker.pid]
        if how == "child SIGKILL" and below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(below), signal.SIGKILL)
        else:
            worker.send_signal(signal.SIGTERM if how == "main SIGTERM" else signal.SIGKILL)
        return how

    def restart(self) -> None:
        """Stop every worker as an operator would, and start it again."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait(60)
        self.supervise()

    def end(self) -> None:
        """End all processes."""
        place = f"CHAOS_PLACE={self.place}".encode()
        for _ in range(20):
            if not _kill_all(pid for pid, environ in _environs() if place in environ):
                break
        for worker in self.workers:
            worker.kill()
            worker.wait()

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        with (self.place / f"worker-{number}.log").open("ab") as log:
            environ = {**self.environ, MARK: f"{self.place}:{number}"}
            command = list(self.commands[number])
            return subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)

    def _marked(self) -> Iterator[tuple[int, str]]:
        """Yield every process of this crew with the number of its worker."""
        mark = f"{MARK}={self.place}:".encode()
        for pid, environ in _environs():
            for entry in environ:
                if entry.startswith(mark):
                    yield pid, entry.rpartition(b":")[2].decode()

    def _jobs(self) -> Iterator[tuple[int, str]]:
        place = f"CHAOS_PLACE={self.place}".encode()
        for pid, environ in _environs():
            token = next((each for each in environ if each.startswith(b"GPUQUEUE_TOKEN=")), None)
            if token is not None and place in environ:
                yield pid, token.partition(b"=")[2].decode()

    def _is_ours(self, pid: int | None) -> bool:
        if pid is None:
            return True  # the process has ended meanwhile
        with contextlib.suppress(OSError):
            return str(self.place).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False


def _kill_all(pids: Iterator[int]) -> int:
    killed = 0
    for pid in list(pids):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def _environs() -> Iterator[tuple[int, list[bytes]]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                yield int(entry.name), Path(entry.path, "environ").read_bytes().split(b"\0")


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return None
