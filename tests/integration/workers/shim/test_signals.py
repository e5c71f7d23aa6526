"""Signals to the processes below this one, as shim and guard send them: real processes in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest
from bounded import until
from unanswered import unanswered, waiting_in_exec

from workers.run.process_tree import below
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


#: Prints the scheduling policy after a signal of a user, and after the one that ends the run.
POLICY = """
import os, signal
from workers.shim import tree
for number in (signal.SIGUSR1, signal.SIGTERM):
    tree.signal_all(number)
    print(os.sched_getscheduler(0))
"""


def test_the_process_that_ends_a_run_goes_before_those_of_the_run() -> None:
    """A shim of root gets the processor before a fork bomb, of which each process has a session of its own.

    Such a bomb of 2500 processes lived for seven minutes, since the shim got one of 2500 shares of the processor.
    """
    may = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    if subprocess.run([sys.executable, "-c", may], check=False, capture_output=True).returncode:
        pytest.skip("this account may not choose a real-time policy")

    done = subprocess.run([sys.executable, "-c", POLICY], capture_output=True, text=True, check=True, timeout=60)

    assert [os.SCHED_OTHER, os.SCHED_RR] == [int(word) for word in done.stdout.split()]


#: Ends a child of which a child waits in the kernel, and prints what it has left; then waits for its end.
UNKILLABLE = """
import os, sys
from workers.shim import tree
tree.prctl(36, 1, 0, 0, 0)
tree.UNKILLABLE_S = 0.2
pid = os.fork()
if pid == 0:
    if os.fork() == 0:
        os.execvp("stat", ["stat", sys.argv[1]])
    os.execvp("sleep", ["sleep", "1000"])
input()
found = tree.Tree(pid)
found.end(0.0, lambda: None)
print(found.status, *found.unkillable, flush=True)
"""


def test_a_process_that_cannot_be_killed_is_named_and_left(tmp_path: Path) -> None:
    """The others are ended. Until it is killed, nothing tells it from a process that only waits."""
    command = [sys.executable, "-c", UNKILLABLE, str(tmp_path / "mount" / "x")]
    with ExitStack() as processes, unanswered(tmp_path / "mount") as asked:
        process = processes.enter_context(subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, bufsize=1))
        assert process.stdin
        assert process.stdout
        assert asked.wait(30)
        (stuck,) = (pid for pid in below(process.pid) if Path(f"/proc/{pid}/comm").read_text() == "stat\n")
        assert not tree.is_killed(stuck)
        process.stdin.write("\n")
        assert f"-15 {stuck}\n" == process.stdout.readline()
        assert tree.is_killed(stuck)


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


def test_no_process_of_others_holds_up_a_signal(tmp_path: Path) -> None:
    """A user can have the stat of a process never answer. The processes of other runs are still found and ended."""
    with waiting_in_exec(tmp_path / "place"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "2"], capture_output=True, text=True, check=False, timeout=30
        )

    assert ["2", f"{int(signal.SIGKILL)} 2 0"] == done.stdout.splitlines(), done.stderr


#: A run whose first process has ended, and another that ends by itself once the first one's output is at its end.
LIKE_TEE = """
import os, signal
from workers.shim import tree
tree.prctl(36, 1, 0, 0, 0)
tree.SETTLE_S = 60.0
signal.pthread_sigmask(signal.SIG_BLOCK, tree.WAKE)
reader, writer = os.pipe()
first = os.fork()
if first == 0:
    os._exit(0)
if os.fork() == 0:
    os.close(writer)
    os.read(reader, 1)
    print("its last line", flush=True)
    os._exit(0)
run = tree.Tree(first)
while run.status is None:
    run.reap()
run.end(60.0, lambda: os.closerange(writer, writer + 1), by_itself=True)
print(run.left, run.reap())
"""


def test_a_process_that_ends_by_itself_after_the_first_one_is_not_named() -> None:
    """``tee`` writes its last lines after the program whose output it reads has ended. It gets no signal for it."""
    done = subprocess.run([sys.executable, "-c", LIKE_TEE], capture_output=True, text=True, check=True, timeout=60)

    assert ["its last line", "(0, []) False"] == done.stdout.splitlines()


def test_a_command_line_that_never_answers_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user can have the memory of a process never answer, and the shim must end the process all the same."""
    answered = threading.Event()
    monkeypatch.setattr(tree, "descendants", lambda _: (answered.wait(), {})[1])

    try:
        assert (0, []) == tree.running()
    finally:
        answered.set()
