"""Every way in which a job of a submitter ends, ends all its processes (promise P5)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from bounded import until
from one_shim import RUN_TOKEN, Shim
from submitters import Launcher, People
from unanswered import unanswered

from gpuqueue.model.run import EndingKind
from workers.launcher.cgroup import name_of
from workers.measure.active_runs import root_of
from workers.measure.monitor import owners
from workers.run import process_tree
from workers.run.environment import TOKEN
from workers.run.orphans import sweep_run
from workers.run.start_health import try_out

Start = Callable[..., Shim]

#: A daemon that has left its session and ignores SIGTERM, a process without the token, and a first process.
TREE = """
setsid sh -c "trap '' TERM; while :; do sleep 1; done" &
env -i setsid /bin/sleep 1001 &
echo up
exec sleep 1000
"""


@pytest.fixture
def tree(as_user: Start) -> Callable[..., Shim]:
    """Return a function that starts alice's tree of processes, and waits until it is complete."""

    def start(**changes: object) -> Shim:
        run = as_user("/bin/sh", "-c", TREE, env={TOKEN: RUN_TOKEN, "PATH": "/usr/bin:/bin"}, **changes)
        until(lambda: run.log() == "up\n" and len(run.directory.processes()) == 3, what="its processes")
        return run

    return start


def pids_of(run: Shim) -> list[int]:
    """Return the pids of the shim, the first process and the guard."""
    return [each.pid for each in run.directory.processes() if each is not None]


def left_by(launcher: Launcher) -> int:
    """Return how many processes outlive a killed guard: without a control group, the one that has no token."""
    return 1 if launcher.cgroups is None else 0


def test_cancel_ends_daemons_and_stopped_processes(tree: Start, people: People) -> None:
    """A cancel ends a daemon in a session of its own that ignores SIGTERM, and a stopped process."""
    run = tree()
    assert 0 == people.shell(people.alice, f"kill -STOP {pids_of(run)[1]}").returncode

    run.directory.ask_end(EndingKind.CANCELLED)

    assert EndingKind.CANCELLED is run.ended().ending.kind
    assert [] == people.running(people.alice)


def test_processes_are_attributed_by_their_guard(tree: Start, people: People) -> None:
    """The memory of a process counts for its run, also if it has left the session and thrown the token away."""
    run = tree()

    def lost_child() -> int | None:
        words = {pid: people.command_of(pid) for pid in people.running(people.alice)}
        return next((pid for pid, word in words.items() if word == b"/bin/sleep\0001001\0"), None)

    pid = until(lost_child, what="the process without the token")
    assert pid is not None
    assert {pid: RUN_TOKEN} == owners([pid], {RUN_TOKEN: root_of(run.directory.processes())})
    assert pid in process_tree.below(pids_of(run)[2])


@pytest.mark.full
def test_the_time_limit_warns_and_ends(as_user: Start, people: People) -> None:
    """The warning signal reaches the first process, and the time limit ends the job."""
    words = "trap 'echo warned' USR1; while :; do sleep 0.1; done"

    run = as_user("/bin/sh", "-c", words, time_limit_s=1.5, signal=(signal.SIGUSR1.value, 1.0))

    assert EndingKind.TIMED_OUT is run.ended().ending.kind
    assert "warned\n" == run.log()
    assert [] == people.running(people.alice)


def test_a_preempted_job_gets_sigterm_and_reads_the_request(as_user: Start) -> None:
    """Preemption sends SIGTERM at once; the job may read which job preempts it and by when, and ends by itself."""
    run_dir = "$(dirname $(readlink /proc/$$/fd/1))"
    words = f"trap 'cat {run_dir}/preempt.json; exit 3' TERM; echo up; while :; do sleep 0.05; done"

    run = as_user("/bin/sh", "-c", words)
    until(lambda: "up" in run.log(), what="its trap")

    assert run.directory.ask_preempt(17, 30.0)

    end = run.ended()
    assert (EndingKind.PREEMPTED, "preempted for job 17") == (end.ending.kind, end.ending.detail)
    assert 17 == json.loads(next(line for line in run.log().splitlines() if line.startswith("{")))["by"]


def test_the_end_of_the_first_process_ends_the_rest(as_user: Start, people: People) -> None:
    """When the first process exits, what it has left in the background is ended too."""
    run = as_user("/bin/sh", "-c", "setsid sleep 1000 & exit 4")

    end = run.ended()
    assert 4 == end.ending.exit_code
    assert ["sleep 1000"] == [item.partition(" (")[0] for note in end.notes for item in note.items]
    assert [] == people.running(people.alice)


@pytest.mark.full
def test_without_heartbeats_the_shim_ends_the_job(tree: Start, people: People) -> None:
    """The fence: without a worker's heartbeat the whole tree ends, before another host may start the job."""
    run = tree(renew_s=3.0, fence_grace_s=0.2)

    end = run.ended()

    assert (EndingKind.LOST, "no worker renewed its lease in time") == (end.ending.kind, end.ending.detail)
    assert [] == people.running(people.alice)


def test_a_killed_shim_leaves_nothing(tree: Start, people: People, launcher: Launcher) -> None:
    """If the shim is killed, the guard ends the tree at once, also processes without the token."""
    run = tree()

    run.process.kill()

    until(lambda: not people.running(people.alice), what="the end of alice's processes")
    assert run.directory.exit() is None
    assert 0 == sweep_run(RUN_TOKEN, launcher.socket)


def test_a_run_has_a_control_group_of_its_own(tree: Start, people: People, launcher: Launcher) -> None:
    """All processes of a run are in its control group, and nothing of it is left after the end."""
    if launcher.cgroups is None:
        pytest.skip("this machine permits no control groups (cgroup v2)")
    run = tree()
    group = Path(launcher.cgroups, name_of(RUN_TOKEN))

    def members() -> set[int]:
        return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}

    until(lambda: set(people.running(people.alice)) <= members(), what="all processes of alice in the group")
    assert pids_of(run)[1] in members()
    assert not members().intersection(pids_of(run)[::2])  # shim and guard are outside
    run.directory.ask_end(EndingKind.CANCELLED)
    run.ended()
    until(lambda: not group.exists(), what="the end of the control group")


@pytest.mark.full
def test_a_killed_guard_is_a_lost_run(tree: Start, people: People, launcher: Launcher) -> None:
    """If the guard is killed, the shim has the launcher end what carries the token, and reports a loss."""
    run = tree()

    os.kill(pids_of(run)[2], signal.SIGKILL)

    end = run.ended()
    assert (EndingKind.LOST, "the process that guards it was killed") == (end.ending.kind, end.ending.detail)
    assert left_by(launcher) == len(people.running(people.alice))
    people.shell(people.alice, "kill -9 -1")


@pytest.mark.full
def test_a_killed_guard_and_shim_are_swept(tree: Start, people: People, launcher: Launcher) -> None:
    """The worker's sweep finds the processes of a run by the launcher, after both of their keepers were killed."""
    run = tree()
    shim, first, guard = pids_of(run)
    for pid in (guard, shim):
        os.kill(pid, signal.SIGSTOP)  # so that neither acts on the other's end
    for pid in (guard, shim):
        os.kill(pid, signal.SIGKILL)
    until(lambda: first not in people.running(people.alice), what="the end of the first process by the kernel")

    assert 1 <= sweep_run(RUN_TOKEN, launcher.socket)

    assert left_by(launcher) == len(people.running(people.alice))
    people.shell(people.alice, "kill -9 -1")


@pytest.mark.full
def test_a_restart_of_the_launcher_affects_no_job(as_user: Start, launcher: Launcher) -> None:
    """A launcher that was killed leaves its jobs alone; the next one starts new ones."""
    run = as_user("/bin/sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.05; done; exit 9")
    until(lambda: "up" in run.log(), what="the job")
    launcher.kill()
    launcher.start()

    assert 0 == as_user("touch", "go").ended().ending.exit_code

    assert 9 == run.ended().ending.exit_code


def test_without_a_launcher_nothing_starts_and_the_host_is_to_blame(
    as_user: Start, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A launcher that is away is the host's fault, so the claim is released; a trial start says when it is back."""
    launcher.kill()

    end = as_user("true").ended()
    with pytest.raises(ConnectionRefusedError):
        try_out(tmp_path_factory.mktemp("runs"), launcher.socket)
    launcher.start()
    try_out(tmp_path_factory.mktemp("runs"), launcher.socket)

    assert end.hosts_fault
    assert f"the launcher {launcher.socket} cannot be used: Connection refused" == end.ending.detail


@pytest.mark.full
def test_an_unkillable_process_is_left_to_the_guard(as_user: Start, open_dir: Path) -> None:
    """The run has its end. The guard, whose child the process is, stays until it is gone."""
    with unanswered(open_dir / "mount", others=True) as asked:
        run = as_user("/bin/sh", "-c", f"stat {open_dir}/mount/x & wait")
        assert asked.wait(30)
        run.directory.ask_end(EndingKind.CANCELLED)

        end = run.ended()
        assert EndingKind.CANCELLED is end.ending.kind
        assert "unkillable: SIGKILL does not end its process " in end.ending.detail
        guard = run.directory.processes()[2]
        assert guard is not None
        assert guard.alive()
    assert guard.wait(30)


@pytest.mark.full
def test_a_directory_that_never_answers_holds_up_no_cancel(as_user: Start, open_dir: Path) -> None:
    """The process that enters it cannot be killed. The shim does not wait for its guard for ever."""
    with unanswered(open_dir / "mount", others=True) as asked:
        run = as_user("true", cwd=f"{open_dir}/mount/x")
        assert asked.wait(30)
        run.directory.ask_end(EndingKind.CANCELLED)

        assert EndingKind.CANCELLED is run.ended().ending.kind
