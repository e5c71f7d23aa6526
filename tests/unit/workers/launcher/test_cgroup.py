"""Tests of control groups: real groups of cgroup v2, where this machine permits them.

Limits are tested where the kernel has the controllers, and where there are none, in a directory of plain files.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bounded import until

from workers.launcher import cgroup_place, guard
from workers.launcher.account import Rules
from workers.launcher.become import LaunchRequest
from workers.launcher.cgroup import Limits, RunGroup, default_processes, name_of
from workers.shim.host_memory import HostMemory
from workers.shim.launch_protocol import SWEEP, TOKEN
from workers.shim.tree import Tree

FIND = "import sys; from workers.launcher.cgroup_place import of_launcher; print(of_launcher(sys.argv[1]))"
SOCKET = "/run/gpuqueue/launcher.sock"
#: Touches as much memory as its argument says, in bytes.
EATER = "import sys; held = b'x' * int(sys.argv[1])"
MIB = 2**20
#: The control group of the run 1.abc.
NAME = name_of("1.abc")


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a new control group, such as systemd makes for a unit."""
    found = cgroup_place._mount_and_own()
    if found is None or not os.access(Path(found[0], found[1].strip("/")), os.W_OK):
        pytest.skip("this machine permits no control groups (cgroup v2)")
    made = Path(found[0], found[1].strip("/"), f"gpuqueue-test-{secrets.token_hex(4)}")
    made.mkdir()
    yield made
    for each in sorted(made.rglob("*"), reverse=True):
        if each.is_dir():
            each.rmdir()
    made.rmdir()


def name_of(group: Path) -> str:
    """Return *group* as in ``/proc/PID/cgroup``."""
    found = cgroup_place._mount_and_own()
    assert found is not None
    return f"/{group.relative_to(found[0])}"


def start_in(group: Path, *words: str) -> subprocess.Popen[str]:
    """Start a program in *group*."""
    enter = ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group)]
    return subprocess.Popen([*enter, *words], stdout=subprocess.PIPE, text=True)


def found_in(group: Path) -> str:
    """Return what a launcher finds that runs in *group*."""
    with start_in(group, sys.executable, "-c", FIND, SOCKET) as process:
        assert process.stdout is not None
        return process.stdout.read().strip()


def test_a_group_that_systemd_has_not_delegated_is_left_alone(group: Path) -> None:
    """Without Delegate=yes the group belongs to systemd, so a launcher makes no groups below it."""
    assert "None" == found_in(group)
    with pytest.raises(OSError, match=r"gpuqueue-test-\w+ has no Delegate=yes"):
        cgroup_place.of_unit(name_of(group), SOCKET)
    assert not [each for each in group.iterdir() if each.is_dir()]


def test_a_delegated_group_is_divided(group: Path) -> None:
    """With Delegate=yes there is a directory for the runs of each launcher."""
    os.setxattr(group, "user.delegate", b"1")

    assert str(group / "run-gpuqueue-launcher.sock") == found_in(group)


def test_an_empty_group_of_a_dead_guard_is_removed(group: Path) -> None:
    """The next launcher removes the group of a run whose guard was killed."""
    os.setxattr(group, "user.delegate", b"1")
    left = group / "run-gpuqueue-launcher.sock" / "1.abc"
    left.mkdir(parents=True)

    found_in(group)
    assert not left.exists()


def test_the_process_of_the_unit_is_moved_aside(group: Path) -> None:
    """The unit's own process goes into a group beside the runs, as the kernel demands before it limits any of them."""
    os.setxattr(group, "user.delegate", b"1")
    with start_in(group, "sleep", "600") as sleeper:
        try:
            until(lambda: "sleep" in Path(f"/proc/{sleeper.pid}/comm").read_text(), what="the process of the unit")
            made = cgroup_place.of_unit(name_of(group), SOCKET)
            again = cgroup_place.of_unit(name_of(group), SOCKET)  # a launcher that was restarted
        finally:
            aside = (group / cgroup_place.ASIDE / "cgroup.procs").read_text().split()
            sleeper.kill()

    assert made == again == str(group / "run-gpuqueue-launcher.sock")
    assert [str(sleeper.pid)] == aside
    there = (group / "cgroup.controllers").read_text().split()
    assert set(cgroup_place.CONTROLLERS).intersection(there) == cgroup_place.limitable(made)


@pytest.mark.usefixtures("group")
def test_a_unit_that_does_not_run_is_named() -> None:
    """The reason names the control group that is missing."""
    with pytest.raises(OSError, match=r"there is no control group /system.slice/none.service: start its unit"):
        cgroup_place.of_unit("/system.slice/none.service", SOCKET)


def test_a_run_above_its_memory_is_ended_and_says_so(group: Path) -> None:
    """The kernel ends all processes of a run that needs more memory than it may use, and the reason has the limit."""
    os.setxattr(group, "user.delegate", b"1")
    base, limits = cgroup_place.of_unit(name_of(group), SOCKET), Limits(memory_bytes=64 * MIB, cpus=0.5)
    if limits.unsupported(base) is not None:
        pytest.skip("the control groups of this machine limit no memory or processor time")
    run = RunGroup.create(base, "1.abc", limits)
    assert run is not None
    with start_in(Path(base, NAME), "sleep", "600") as other:
        assert run.shortage() == ""
        eater = start_in(Path(base, NAME), sys.executable, "-c", EATER, str(256 * MIB))
        assert (-9, -9) == (eater.wait(timeout=60), other.wait(timeout=60))

    assert run.shortage() == "it needed more host memory than the 64M that it may use on this host"
    assert "50000 100000\n" == Path(base, NAME, "cpu.max").read_text()
    run.end()


def test_a_run_from_before_an_upgrade_is_swept(group: Path) -> None:
    """Its group is below that of the launcher before, which had no unit for the runs."""
    os.setxattr(group, "user.delegate", b"1")
    now, before = (group / name for name in ("now", "before"))
    now.mkdir()
    before.mkdir()
    assert RunGroup.create(str(before), "1.abc") is not None
    rules = Rules(os.geteuid(), "lab", 1000, "/runs", cgroups=str(now), earlier_cgroups=str(before))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, start_in(before / NAME, "sleep", "600") as sleeper:
        until(lambda: "sleep" in Path(f"/proc/{sleeper.pid}/comm").read_text(), what="the process of the run")
        ours.send(SWEEP + b" 1.abc")
        guard.serve(theirs, rules)
        assert b"swept 1" == ours.recv(100)
        assert -9 == sleeper.wait(timeout=60)

    assert not (before / NAME).exists()


def test_the_name_of_a_group_does_not_show_the_token(tmp_path: Path) -> None:
    """Everybody on the host may read the names of control groups. The group is found again by the token."""
    assert RunGroup.create(str(tmp_path), "1.abc") is not None

    assert not [path for path in tmp_path.iterdir() if "abc" in path.name]
    assert RunGroup.find(str(tmp_path), "1.abc") is not None
    assert RunGroup.find(str(tmp_path), "1.abd") is None


def test_limits_are_written_before_anything_runs(tmp_path: Path) -> None:
    """The files of the new group have the limits in the kernel's units."""
    run = RunGroup.create(str(tmp_path), "1.abc", Limits(memory_bytes=3 * MIB, cpus=1.5))

    assert run is not None
    written = {each.name: each.read_text() for each in (tmp_path / NAME).iterdir()}
    assert {"memory.max": str(3 * MIB), "memory.oom.group": "1", "cpu.max": "150000 100000"} == written


@pytest.mark.parametrize(
    ("events", "limits", "words"),
    [
        ("low 0\noom 0\noom_kill 0\n", Limits(2**36), ""),
        ("low 0\noom 3\noom_kill 1\n", Limits(2**36), "it needed more host memory than the 64G that it may use"),
        ("low 0\noom 3\noom_kill 1\n", Limits(3 * 2**29), "it needed more host memory than the 1.5G that it may"),
        ("low 0\noom 0\noom_kill 2\n", Limits(2**36), "the host ran out of memory"),
        ("low 0\noom 0\noom_kill 2\n", Limits(), "the host ran out of memory"),
        ("damaged", Limits(), ""),
    ],
)
def test_the_kernels_count_says_what_ran_short(tmp_path: Path, events: str, limits: Limits, words: str) -> None:
    """The reason of a kill by the kernel is the limit of the run, or a host without free memory."""
    run = RunGroup.create(str(tmp_path), "1.abc", limits)
    (tmp_path / NAME / "memory.events").write_text(events)

    shortage = None if run is None else run.shortage()
    assert shortage is not None
    assert shortage.startswith(words)
    assert bool(words) == bool(shortage)


@pytest.mark.parametrize(
    ("own", "kills", "words"),
    [
        (None, 1, b"the host ran out of memory"),
        (None, 0, b""),
        ("oom 0\noom_kill 0\n", 1, b""),
    ],
)
def test_without_a_count_of_its_own_a_group_has_that_of_the_host(
    own: str | None, kills: int, words: bytes, tmp_path: Path
) -> None:
    """Regression: where the launcher's group shares no memory controller, the kernel's kills had no reason."""
    run = RunGroup.create(str(tmp_path), "1.abc")
    if own is not None:
        (tmp_path / NAME / "memory.events").write_text(own)
    host = tmp_path / "vmstat"
    host.write_text("oom_kill 7\n")
    tree: Any = SimpleNamespace(status=-signal.SIGKILL)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with host.open() as counts, ours, theirs:
        memory = HostMemory((counts.fileno(), -1))
        host.write_text(f"oom_kill {7 + kills}\n")
        assert guard.report_end(theirs, tree, run, memory)
        assert b"ended -9 " + words == ours.recv(200)


def test_a_group_of_the_same_name_is_not_taken_over(tmp_path: Path) -> None:
    """A second run with the same token gets no group: it must not end the processes of the first."""
    assert RunGroup.create(str(tmp_path), "1.abc") is not None
    assert RunGroup.create(str(tmp_path), "1.abc") is None
    assert RunGroup.create(None, "1.abc") is None


def test_a_run_that_would_not_be_limited_does_not_start(tmp_path: Path) -> None:
    """Where limits are set, a run without a group of its own is refused."""
    (tmp_path / NAME).mkdir()
    with pytest.raises(FileExistsError):
        RunGroup.create(str(tmp_path), "1.abc", Limits(memory_bytes=2**30))
    with pytest.raises(FileNotFoundError):
        RunGroup(str(tmp_path / "gone"), Limits(cpus=2)).enter()
    assert "memory" == Limits(memory_bytes=2**30).unsupported(None)
    assert "cpu" == Limits(cpus=1).unsupported(str(tmp_path))
    assert Limits().unsupported(None) is None


def request(limits: Limits) -> LaunchRequest:
    """Return a request with *limits*."""
    return LaunchRequest(
        "ada", 1001, ["true"], "/", {TOKEN: "1.abc"}, 0, 1.0, pty=False, typed=False, code=None, limits=limits
    )


@pytest.mark.parametrize(
    ("ours", "asked", "memory_max", "cpu_max", "pids_max"),
    [
        (Limits(), Limits(2 * MIB), str(2 * MIB), None, str(default_processes())),
        (Limits(3 * MIB, 4), Limits(2 * MIB, 8), str(2 * MIB), "400000 100000", str(default_processes())),
        (Limits(3 * MIB, None, 50), Limits(9 * MIB, 0.5, 60), str(3 * MIB), "50000 100000", "50"),
    ],
)
def test_a_job_lowers_the_limits_of_its_run_and_never_raises_them(
    tmp_path: Path, ours: Limits, asked: Limits, memory_max: str, cpu_max: str | None, pids_max: str
) -> None:
    """The smaller one of the host's limit and the job's is written."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")

    assert (
        guard.group_of(request(asked), Rules(0, "lab", 1000, "/runs", cgroups=str(tmp_path), limits=ours)) is not None
    )

    written = {each.name: each.read_text() for each in (tmp_path / NAME).iterdir()}
    assert (memory_max, cpu_max, pids_max) == (written["memory.max"], written.get("cpu.max"), written["pids.max"])


def test_a_run_has_at_most_a_quarter_of_the_pids_of_its_host(tmp_path: Path) -> None:
    """A fork bomb leaves room for the processes of others, also on a host with few pids."""
    for pid_max, expected in ((32_768, 8192), (4_194_304, 32_768)):
        (tmp_path / "pid_max").write_text(f"{pid_max}\n")
        assert expected == default_processes(str(tmp_path / "pid_max"))


def test_a_group_is_killed_before_its_processes_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills all of a control group at once, also what begins meanwhile. Other signals need the search."""
    order: list[str] = []
    (tmp_path / NAME).mkdir()
    monkeypatch.setattr(RunGroup, "_write", lambda _, name, text: order.append(f"{name} {text}"))
    monkeypatch.setattr(guard, "signal_all", lambda number: order.append(str(int(number))))

    for message in (b"signal 15", b"signal 9"):
        guard.obey(message, Tree(os.getpid()), RunGroup(str(tmp_path / NAME)))

    assert ["15", "cgroup.kill 1", "9"] == order


@pytest.mark.parametrize(("asked", "lacking"), [(Limits(2 * MIB), "memory"), (Limits(cpus=1), "cpu")])
def test_a_host_that_cannot_set_the_limits_of_a_job_does_not_start_it(
    tmp_path: Path, asked: Limits, lacking: str
) -> None:
    """Without the controller the run is refused as one that another host may start."""
    for cgroups in (None, str(tmp_path)):
        with pytest.raises(PermissionError, match=f"this host cannot limit the {lacking} of a run"):
            guard.group_of(request(asked), Rules(0, "lab", 1000, "/runs", cgroups=cgroups))
    assert [] == [*tmp_path.iterdir()]
