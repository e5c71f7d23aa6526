from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from one_shim import RUN_TOKEN, Shim
from short_host import dead_server

from gpuqueue.model.run import EndingKind
from gpuqueue.system.process import ProcessIdentity
from workers.run import process_tree
from workers.run.directory import unsettled
from workers.run.environment import TOKEN


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "exit 0"),
        ("exit 42", "exit 42"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("kill -9 $$", "killed by SIGKILL"),
    ],
)
def test_exit_codes_and_signals_come_back_true(shims: Any, script: str, words: str) -> None:
    """Exit codes and signals are reported as the kernel reported them."""
    assert words == str(shims("sh", "-c", script).ended().ending)


def test_what_it_says_takes_no_file_more_than_it_must(shims: Any, tmp_path: Path) -> None:
    """The exit file reuses the inode of the spec, which is no longer needed.

    The file system would have to search an inode for each new file.
    """
    runs, spec = tmp_path / "runs", []
    place = runs / "1" / RUN_TOKEN / "spec"
    shim = shims("true", runs=runs, before=lambda: spec.append(place.stat()))

    shim.ended()

    assert spec[0].st_ino == (shim.directory.path / "exit").stat().st_ino
    assert not (shim.directory.path / "spec").exists()
    assert shim.directory.may_have_started()
    assert 2 == len((shim.directory.path / "pid").read_text().splitlines())


def test_a_spec_that_a_job_has_given_another_name_is_not_written_over(shims: Any, tmp_path: Path) -> None:
    """If the spec has another hard link, the exit file gets a new inode.

    The other name may belong to a file that is still needed.
    """
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    kept.write_text("mine")
    shim = shims("sh", "-c", f"ln -f {kept} {runs}/1/{RUN_TOKEN}/spec; exit 4", runs=runs)

    assert "exit 4" == str(shim.ended().ending)
    assert "mine" == kept.read_text()


def test_output_and_errors_are_in_one_log_in_order(shims: Any) -> None:
    """Both streams are in one log, in the order of writing."""
    shim = shims("sh", "-c", "echo one; echo two >&2; echo three; echo four >&2")

    shim.ended()

    assert "one\ntwo\nthree\nfour\n" == shim.log()


def test_arguments_that_are_no_text_arrive_unchanged(shims: Any) -> None:
    """Undecodable bytes, newlines and quotes reach the job unchanged."""
    shim = shims("printf", "%s", "a\udcff\n'\"$(x)")

    shim.ended()

    assert "a\udcff\n'\"$(x)" == shim.log()


@pytest.mark.parametrize(
    ("argv", "changes", "words"),
    [
        (["/no/such/program"], {}, "cannot start /no/such/program: No such file or directory"),
        (["true"], {"cwd": "/no/such/place"}, "cannot enter the working directory /no/such/place"),
        (["/etc/passwd"], {}, "cannot start /etc/passwd: Permission denied"),
    ],
)
def test_what_cannot_start_is_refused_with_the_reason(
    shims: Any, argv: list[str], changes: dict[str, Any], words: str
) -> None:
    """A job with a missing program or directory is refused with the reason, and never succeeds."""
    end = shims(*argv, **changes).ended()

    assert EndingKind.REFUSED is end.ending.kind
    assert words in end.ending.detail


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (EndingKind.CANCELLED, {}),
        (EndingKind.PREEMPTED, {}),
        (EndingKind.TIMED_OUT, {"time_limit_s": 1.0}),
        (EndingKind.LOST, {"renew_s": 3.0}),
    ],
)
def test_a_job_that_hangs_before_it_begins_can_be_ended(
    shims: Any, tmp_path: Path, kind: EndingKind, changes: dict[str, float]
) -> None:
    """A job that hangs before its start ends as one that runs: its working directory is on a dead file server."""
    with dead_server(tmp_path / "dead") as dead:
        shim = shims("true", cwd=str(dead), **changes)
        until((shim.directory.path / "pid").exists)
        if kind is EndingKind.CANCELLED:
            shim.directory.ask_end(EndingKind.CANCELLED)
        if kind is EndingKind.PREEMPTED:
            shim.directory.ask_preempt(5, 60.0)

        end = shim.ended()

    assert kind is end.ending.kind
    assert "its working directory or its program does not answer" == end.ending.detail


#: The header of a program for another machine type (ELF for IBM S/390).
OTHER_MACHINE = b"\x7fELF\x02\x02\x01" + bytes(9) + b"\x00\x02\x00\x16" + bytes(44)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Exec format error: it is no program for this kind of machine, and no script that begins with #!"),
        (b"echo hello\n", "Exec format error: it is no program for this kind of machine"),
        (OTHER_MACHINE, "Exec format error: it is no program for this kind of machine"),
        (b"#!/no/such/interpreter\n", "No such file or directory: the interpreter that its first line names"),
        (b"#!/usr/bin/env no-such-interpreter\n", None),
        (None, "Permission denied: it is a directory"),
    ],
    ids=["empty", "no first line", "other machine", "interpreter gone", "env", "directory"],
)
def test_a_script_that_cannot_run_says_more_than_the_kernel(
    shims: Any, tmp_path: Path, content: bytes | None, words: str | None
) -> None:
    """The reason says more than the kernel's message.

    The kernel reports `No such file or directory` for a file that exists, and `Permission denied` for a directory.
    """
    script = tmp_path / "script"
    if content is None:
        script.mkdir()
    else:
        script.write_bytes(content)
        script.chmod(0o755)
    shim = shims(str(script))

    end = shim.ended()

    if words is None:  # env(1) itself starts, and reports what it cannot find
        assert ("exit 127", True) == (str(end.ending), "no-such-interpreter" in shim.log())
    else:
        assert (EndingKind.REFUSED, False) == (end.ending.kind, end.hosts_fault)
        assert f"cannot start {script}: {words}" in end.ending.detail


def test_a_working_directory_that_was_deleted_is_refused(shims: Any, tmp_path: Path) -> None:
    """A job whose working directory was deleted between submit and start is refused."""
    place = tmp_path / "place"
    place.mkdir()
    place.rmdir()

    end = shims("true", cwd=str(place)).ended()

    assert EndingKind.REFUSED is end.ending.kind
    assert f"cannot enter the working directory {place}: No such file or directory" == end.ending.detail


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.environ.clear()
        print("daemon", os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(float(sys.argv[1]))
"""


def daemon_of(shim: Shim) -> int:
    """Wait for the daemon's pid and return it."""

    def reported() -> str:
        return shim.log().partition("daemon ")[2].strip()

    return int(until(reported, what="the daemon"))


def test_cancel_ends_daemons_that_left_their_session_twice(shims: Any) -> None:
    """A cancel ends a daemon that left its session twice, because it is still below the shim."""
    shim = shims(sys.executable, "-c", DAEMON, "1000")
    daemon = daemon_of(shim)

    shim.directory.ask_end(EndingKind.CANCELLED)

    end = shim.ended()
    assert (EndingKind.CANCELLED, signal.SIGTERM) == (end.ending.kind, end.ending.signal)
    assert ProcessIdentity.of(daemon) is None


def test_nothing_outlives_a_job_that_ended_by_itself(shims: Any) -> None:
    """A background process ends with its job."""
    shim = shims(sys.executable, "-c", DAEMON, "0.5")
    daemon = daemon_of(shim)

    end = shim.ended()

    assert "exit 0" == str(end.ending)
    assert ProcessIdentity.of(daemon) is None


@pytest.mark.parametrize(
    ("script", "count", "words"),
    [
        ("nohup sleep 1000 > out 2>&1 & exit 0", 1, ["sleep 1000 (pid "]),
        ("setsid sleep 1000 & exit 3", 1, ["sleep 1000 (pid "]),
        ("for i in 1 2 3 4 5; do sleep 100$i & done; exit 0", 5, ["sleep 100", "sleep 100", "sleep 100"]),
        ("exec -a 'two\n\nlines \x1b' sleep 1000 & exit 0", 1, ["two lines "]),
        (f"exec -a {'a' * 90} sleep 1000 & exit 0", 1, ["a" * 59 + "… (pid "]),
        ("sleep 1000 & kill -SEGV $$", 0, []),
        ("exit 0", 0, []),
    ],
)
def test_processes_that_still_run_after_the_script_are_named(
    shims: Any, tmp_path: Path, script: str, count: int, words: list[str]
) -> None:
    """A run that ended by itself notes what it left running and the shim ended: the number, and the first three.

    Nothing is named after a crash.
    """
    end = shims("bash", "-c", script, cwd=str(tmp_path)).ended()

    assert ["ended_processes"] * bool(count) == [note.kind for note in end.notes]
    for note in end.notes:
        assert (count, len(words)) == (note.count, len(note.items))
        assert all(item.startswith(expected) for item, expected in zip(note.items, words, strict=True))
        assert all(item.endswith(")") and item.isprintable() for item in note.items)


def test_processes_of_a_run_that_was_ended_are_not_named(shims: Any) -> None:
    """Who cancels a job, or sets a time limit, knows that its processes end."""
    words = ("sh", "-c", "sleep 1000 & echo up; wait")
    cancelled, limited = shims(*words), shims(*words, time_limit_s=0.5)
    until(lambda: "up" in cancelled.log())
    cancelled.directory.ask_end(EndingKind.CANCELLED)

    assert [(EndingKind.CANCELLED, ()), (EndingKind.TIMED_OUT, ())] == [
        (end.ending.kind, end.notes) for end in (cancelled.ended(), limited.ended())
    ]


def test_a_job_that_ignores_term_is_killed_after_its_grace(shims: Any) -> None:
    """A job that ignores SIGTERM gets SIGKILL after its grace."""
    shim = shims("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done", kill_grace_s=0.3)
    until(lambda: "ready" in shim.log())

    shim.directory.ask_end(EndingKind.CANCELLED)

    assert signal.SIGKILL == shim.ended().ending.signal


def test_a_job_may_use_its_grace_to_save_itself(shims: Any) -> None:
    """The exit code after SIGTERM is kept beside the reason for the ending."""
    shim = shims("sh", "-c", "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: "ready" in shim.log())

    shim.directory.ask_end(EndingKind.CANCELLED)

    end = shim.ended()
    assert (EndingKind.CANCELLED, 7) == (end.ending.kind, end.ending.exit_code)
    assert shim.log().endswith("saved\n")


def test_the_time_limit_ends_a_run(shims: Any) -> None:
    """The shim itself enforces the time limit, so no worker is needed."""
    end = shims("sleep", "1000", time_limit_s=0.2).ended()

    assert EndingKind.TIMED_OUT is end.ending.kind
    assert (end.duration_s or 0) >= 0.2


def test_a_run_without_heartbeats_fences_itself(shims: Any) -> None:
    """A run without heartbeats ends itself before its job can be claimed again."""
    end = shims("sleep", "1000", renew_s=0.3).ended()

    assert EndingKind.LOST is end.ending.kind
    assert "no worker renewed its lease in time" == end.ending.detail


def test_vouching_again_keeps_a_run_alive(shims: Any) -> None:
    """Each heartbeat extends the run's deadline, on the shim's own clock."""
    shim = shims("sleep", "0.8", renew_s=0.4)
    until(lambda: shim.directory.renew(time.monotonic() + 0.4) or shim.process.poll() is not None)

    assert "exit 0" == str(shim.ended().ending)


def test_a_shim_that_comes_too_late_does_not_start_the_job(shims: Any) -> None:
    """A shim that starts too late does not start the job.

    A worker that was frozen between the claim and the start must not make a second copy.
    """
    shim = shims("echo", "alive", start_before=time.monotonic() - 1)

    assert EndingKind.LOST is shim.ended().ending.kind
    assert "" == shim.log()


def test_the_lock_shows_whether_a_shim_or_worker_lives(shims: Any) -> None:
    """The shim holds the lock for as long as it lives, and no process of the job holds it."""
    shim = shims("sh", "-c", "echo ready; sleep 1000")
    until(lambda: "ready" in shim.log())
    assert shim.directory.try_lock() is None

    shim.process.kill()
    shim.process.wait()

    fd = until(shim.directory.try_lock, what="the lock")
    assert fd is not None
    os.close(fd)


def test_the_first_process_dies_with_a_killed_shim_and_the_sweep_finds_the_rest(shims: Any) -> None:
    """After SIGKILL of the shim, the sweep leaves no process of the run."""
    shim = shims("sh", "-c", "setsid sh -c 'echo daemon $$; sleep 1000' & sleep 1000")
    daemon = daemon_of(shim)

    shim.process.kill()
    shim.process.wait()
    process_tree.sweep(TOKEN, RUN_TOKEN)

    assert until(lambda: ProcessIdentity.of(daemon) is None)
    assert [] == process_tree.carrying(TOKEN, RUN_TOKEN)


def test_a_settled_run_keeps_only_its_log(shims: Any) -> None:
    """A settled run keeps only its log and the log's size notes.

    The spec holds the submitter's environment and is deleted as soon as possible.
    """
    shim = shims("echo", "hello")
    shim.ended()
    runs = shim.directory.path.parent.parent
    assert [shim.directory.path] == [each.path for each in unsettled(runs)]

    shim.directory.settle()

    assert ["log", "log.times"] == sorted(entry.name for entry in shim.directory.path.iterdir())
    assert [] == list(unsettled(runs))


def test_a_job_that_took_too_much_is_not_waited_for(shims: Any, tmp_path: Path) -> None:
    """A job that is ended for its memory use gets no long grace.

    The job ignores SIGTERM, and a grace of a minute would be at the cost of its neighbours.
    """
    ready = tmp_path / "ready"
    stubborn = f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
    shim = shims("sh", "-c", stubborn, kill_grace_s=60.0)
    until(ready.exists, what="the job ignores TERM")

    shim.directory.ask_end(EndingKind.OUT_OF_MEMORY)

    ending = shim.ended().ending  # `ended` waits for half the grace at most
    assert (EndingKind.OUT_OF_MEMORY, 9) == (ending.kind, ending.signal)


SAVES = """
import signal, sys, time
def save(number, frame):
    print("saved after", signal.Signals(number).name, flush=True)
signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.full
def test_the_signal_before_the_time_limit_comes_once_and_then_the_limit(shims: Any) -> None:
    """The warning signal comes once, and the time limit still holds."""
    shim = shims(sys.executable, "-c", SAVES, time_limit_s=4.0, signal=(int(signal.SIGUSR1), 1.0))

    end = shim.ended()

    assert EndingKind.TIMED_OUT is end.ending.kind
    assert "ready\nsaved after SIGUSR1\n" == shim.log()


@pytest.mark.full
def test_the_early_signal_is_for_the_first_process_alone(shims: Any) -> None:
    """Only the job's first process gets the warning signal.

    The signal would end the child processes, and the job would fail although it had saved its state.
    """
    shim = shims(
        "sh", "-c", "trap 'echo told; kill $child; exit 7' USR1; sleep 60 & child=$!; echo ready; wait; wait",
        time_limit_s=30.0, signal=(int(signal.SIGUSR1), 27.0),
    )  # fmt: skip

    assert "exit 7" == str(shim.ended().ending)
    assert "ready\ntold\n" == shim.log()


@pytest.mark.parametrize("command", [("sleep", "60"), ("sh", "-c", "sleep 60; echo after")])
def test_a_job_that_does_not_catch_the_warning_signal_is_ended_by_it(shims: Any, command: tuple[str, ...]) -> None:
    """A job that does not catch the warning signal ends as at its time limit, with words that name the option.

    Regression: it ended as one that a signal from outside the queue had killed, and was retried as such.
    """
    shim = shims(*command, time_limit_s=30.0, signal=(int(signal.SIGUSR2), 29.0))

    end = shim.ended()

    assert "timed out: killed by SIGUSR2 of --signal, which it does not catch" == str(end.ending)
    assert (EndingKind.TIMED_OUT, signal.SIGUSR2) == (end.ending.kind, end.ending.signal)
    assert "" == shim.log()


def test_the_same_signal_from_elsewhere_is_no_warning_signal(shims: Any) -> None:
    """Before the time of the warning, the signal comes from outside the queue."""
    shim = shims("sh", "-c", "kill -USR2 $$", time_limit_s=30.0, signal=(int(signal.SIGUSR2), 1.0))

    assert "killed by SIGUSR2" == str(shim.ended().ending)


MAKES_PLACE = """
import json, os, signal, sys, time
def leave(number, frame):
    request = json.load(open(os.path.join(os.environ["GPUQUEUE_RUN_DIR"], "preempt.json")))
    words = f"saved for {request['by']} {request['deadline'] > time.time()}\\n"
    os.write(1, words.encode())  # a print would fail while the first one still holds the buffer
    time.sleep(float(sys.argv[1]))
    os._exit(int(sys.argv[2]))
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("code", "left_s", "words"),
    [
        (75, 60.0, "preempted: preempted for job 12"),
        (1, 60.0, "preempted: preempted for job 12"),
        (0, 60.0, "exit 0"),
        (75, 1.0, "preempted: preempted for job 12"),
    ],
    ids=["asks for more", "gives up", "was done", "is too slow"],
)
def test_a_preempted_job_is_warned_and_has_its_grace(
    shims: Any, tmp_path: Path, code: int, left_s: float, words: str
) -> None:
    """A preempted job gets SIGTERM, a file with reason and deadline, and its own grace, and is ended after it.

    That grace can be much longer than the kill grace of a cancel.
    """
    nap_s = 1.5 if left_s > 1.0 else 60.0
    env = {"PATH": os.environ["PATH"], TOKEN: RUN_TOKEN, "GPUQUEUE_RUN_DIR": str(tmp_path / "runs0" / "1" / RUN_TOKEN)}
    shim = shims(sys.executable, "-c", MAKES_PLACE, str(nap_s), str(code), env=env, kill_grace_s=0.2)
    until(lambda: "ready" in shim.log())

    shim.directory.ask_preempt(12, left_s)

    assert words == str(shim.ended().ending)
    assert "ready\nsaved for 12 True\n" == shim.log(), "it was warned once"
    assert 0 == process_tree.sweep(TOKEN, RUN_TOKEN)


@pytest.mark.full
def test_what_is_below_a_shell_has_the_same_grace(shims: Any) -> None:
    """A program below a shell keeps its grace although the shell ends at the first SIGTERM."""
    saves = "trap 'sleep 3; echo saved; exit 75' TERM; echo ready; while :; do sleep 0.1; done"
    shim = shims("sh", "-c", f'sh -c "{saves}"; echo never', kill_grace_s=0.2)
    until(lambda: "ready" in shim.log())

    shim.directory.ask_preempt(12, 60.0)

    assert EndingKind.PREEMPTED is shim.ended().ending.kind
    assert "ready\nsaved\n" == shim.log().replace("Terminated\n", "")


@pytest.mark.parametrize(("kill_grace_s", "left_s"), [(0.2, 3600.0), (3600.0, 2.0)])
def test_a_cancel_during_the_grace_wins_and_makes_it_no_longer(shims: Any, kill_grace_s: float, left_s: float) -> None:
    """A cancel during a preemption's grace ends the job for good, and never extends the grace.

    The preempting job already has a deadline.
    """
    ignores = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    shim = shims("sh", "-c", ignores, kill_grace_s=kill_grace_s)
    until(lambda: "ready" in shim.log())
    shim.directory.ask_preempt(12, left_s)

    shim.directory.ask_end(EndingKind.CANCELLED)

    assert EndingKind.CANCELLED is shim.ended().ending.kind


@pytest.mark.full
def test_a_time_limit_holds_during_the_grace(shims: Any) -> None:
    """A job that is preempted shortly before its time limit still ends at the limit."""
    ignores = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    shim = shims("sh", "-c", ignores, kill_grace_s=0.2, time_limit_s=3.0)
    until(lambda: "ready" in shim.log())

    shim.directory.ask_preempt(12, 60.0)

    assert EndingKind.TIMED_OUT is shim.ended().ending.kind


def test_a_notice_that_makes_no_sense_is_one_all_the_same(shims: Any) -> None:
    """An unreadable preemption file still preempts, with the grace of a cancel.

    The job may have overwritten the file.
    """
    shim = shims("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done", kill_grace_s=0.2)
    until(lambda: "ready" in shim.log())

    (shim.directory.path / "preempt.json").write_text("{")

    assert "preempted" == str(shim.ended().ending)
