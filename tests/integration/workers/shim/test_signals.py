"""Signals to the processes below this one, as shim and guard send them: real processes in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from bounded import until

from workers.shim import tree

#: A tree of COUNT processes below a subreaper, whose last line tells what is left after a signal: COUNT.
PROGRAM = """
import os, signal, sys, time
from workers.shim import tree
tree.prctl(36, 1, 0, 0, 0)
count = int(sys.argv[1])
for _ in range(count):
    if os.fork() == 0:
        os.setsid()
        signal.pause()
print(len(tree.descendants()), flush=True)
sent = []
real = signal.pidfd_send_signal
signal.pidfd_send_signal = lambda fd, number: (sent.append(number), real(fd, number))
tree.signal_all(signal.SIGKILL)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
print(*dict.fromkeys(map(int, sent)), len(sent), len(tree.descendants()), flush=True)
"""


@pytest.mark.parametrize(
    ("count", "signals"),
    [(3, [signal.SIGKILL]), (tree.MANY + 5, [signal.SIGSTOP, signal.SIGKILL])],
    ids=["few", "many"],
)
def test_many_processes_are_stopped_before_they_are_killed(count: int, signals: list[signal.Signals]) -> None:
    """Those of a fork bomb cannot use the room of the killed ones for new processes."""
    command = [sys.executable, "-c", PROGRAM, str(count)]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    began, *sent, total, left = map(int, done.stdout.split())
    assert (count, signals, count * len(signals), 0) == (began, sent, total, left)


def test_a_pid_that_is_another_process_meanwhile_gets_no_signal() -> None:
    """A pid that the kernel has given away since the search belongs to somebody else: its start differs."""
    with subprocess.Popen(["/bin/sleep", "1000"]) as other:
        parent, start = tree.parent_and_start(other.pid)

        tree._send(other.pid, (parent, str(int(start) - 1)), signal.SIGTERM)
        tree._send(other.pid, (parent, start), signal.SIGINT)

        until(lambda: other.poll() is not None, what="the end by the second signal")
        assert -signal.SIGINT == other.returncode


def test_a_child_of_another_process_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes can have started in one tick of the clock. The parent tells them apart."""
    with subprocess.Popen(["/bin/sleep", "1000"]) as other:
        parent, start = tree.parent_and_start(other.pid)
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)

        tree._send(other.pid, (parent + 2, start), signal.SIGTERM)
        tree._send(other.pid, (parent, start), signal.SIGINT)

        until(lambda: other.poll() is not None, what="the end by the second signal")
        assert -signal.SIGINT == other.returncode
