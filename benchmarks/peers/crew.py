"""The daemons of a peer: started in the foreground, restarted after a kill, and swept with all their children."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.measure.place import ROOT
from benchmarks.measure.rounds import until

#: The longest wait, in seconds. A peer that hangs is reported, and the next one is measured.
PATIENCE_S = 60.0
#: The variable of everything that is started for a peer, even outside its parent, group and session.
MARK = "PEERS_PLACE"


class Crew:
    """Processes that are started, and restarted after a kill. Their output is kept in the peer's directory."""

    def __init__(self, commands: Sequence[Sequence[str]], environ: Mapping[str, str]) -> None:
        self._commands, self._environ = commands, environ
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all processes that do not run."""
        for number, command in enumerate(self._commands):
            running = self._running.get(number)
            if running is None or running.poll() is not None:
                self._running[number] = self._started(command)

    def _started(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log(command).open("ab") as log:
            return subprocess.Popen(
                command,
                env=dict(self._environ),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, command: Sequence[str]) -> Path:
        return Path(self._environ[MARK]) / f"{Path(command[0]).name}.log"

    def await_up(self, is_up: Callable[[], object], what: str) -> None:
        """Wait until *is_up* returns a true value.

        Raises:
            RuntimeError: one of the processes has ended; the message has its last line.
            TimeoutError: it did not come up.
        """

        def answered() -> object:
            for number, process in self._running.items():
                if process.poll() is not None:
                    command = self._commands[number]
                    raise RuntimeError(f"{command[0]} ended with {process.returncode}: {_last(self._log(command))}")
            return is_up()

        until(answered, what, timeout_s=PATIENCE_S, every_s=0.1)

    def mains(self) -> list[psutil.Process]:
        """Return the main process of each."""
        return [psutil.Process(each.pid) for each in self._running.values() if each.poll() is None]

    def end(self) -> None:
        """End all processes, including children that they left behind."""
        sweep(self._environ[MARK])
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=PATIENCE_S)


@contextmanager
def running(commands: Sequence[Sequence[str]], environ: Mapping[str, str]) -> Iterator[Crew]:
    """Yield the started processes; afterwards none of them is left."""
    crew = Crew(commands, environ)
    try:
        crew.start()
        yield crew
    finally:
        crew.end()


def sweep(place: str) -> None:
    """Kill the processes of a peer in *place* until none is left.

    A process may start another one before it dies.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (left := marked(place)) and time.monotonic() < deadline:
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        time.sleep(0.02)


def marked(place: str) -> list[psutil.Process]:
    """Return every process that was started for a peer in *place*, without this one."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.pid != os.getpid() and each.environ().get(MARK) == place:
                found.append(each)
    return found


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run."""
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def _last(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
