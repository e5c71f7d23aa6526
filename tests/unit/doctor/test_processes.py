from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_device, make_status
from findings import by_check

from gpuqueue.doctor import processes
from gpuqueue.doctor.processes import CHECKS, is_meant
from gpuqueue.doctor.site import Site
from gpuqueue.embedded.machine import Machine
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.queue.diagnostics import DeviceFacts
from gpuqueue.settings.settings import Settings
from gpuqueue.system.logind import Logind, LogoutTrouble
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.version import VERSION

ENVIRON = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_HOST": "nodeA"}
HOST = ProcessIdentity(7, 7, "boot")
WITHOUT_LOGIND = Logind(Path("/nowhere"))
GENEROUS = {"open files": "1048576", "processes": "96364", "address space": "unlimited"}
WORKER, RECORDER = ["gpuqueue-worker", "run", "--device", "GPU-0", ""], ["gpuqueue-worker", "record", ""]


def make_served(
    uuid: str, *, version: str | None = VERSION, seen_s_ago: float = 1.0, kind: DeviceKind = DeviceKind.GPU
) -> DeviceFacts:
    """Return a device that a worker of this machine serves."""
    status = make_status(device=replace(make_device(uuid), kind=kind), seen_s_ago=seen_s_ago)
    return DeviceFacts(status=status, version=version, clock_ahead_s=0.0)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that examines a machine, by default a healthy one: a host process, one worker, a recorder."""

    def examine(
        *,
        host: ProcessIdentity | None = HOST,
        children: Sequence[list[str]] = (WORKER, RECORDER),
        environ: Mapping[str, str] | None = ENVIRON,
        devices: Sequence[DeviceFacts] | None = (make_served("GPU-0"),),
        state_dir: str = "/s",
        limits: Mapping[str, str] = GENEROUS,
        logind: Any = WITHOUT_LOGIND,
        **settings: str,
    ) -> dict[str, Finding]:
        monkeypatch.setattr(Machine, "host_running", lambda _: host)
        monkeypatch.setattr(Machine, "served", lambda *_: "auto")
        monkeypatch.setattr(processes, "_children", lambda _: iter(children))
        monkeypatch.setattr(processes, "_environ", lambda _: environ)
        monkeypatch.setattr(processes, "_limits_of", lambda _: limits)
        monkeypatch.setattr(processes, "_owner_of", lambda _: 1000)
        monkeypatch.setattr(processes.logout, "__defaults__", (lambda: logind,))

        def queue() -> Any:
            if devices is None:
                raise CallFailed("the store does not answer")
            return SimpleNamespace(devices=devices)

        site = Site(Settings.load({**ENVIRON, "GPUQUEUE_STATE_DIR": state_dir, **settings}), (), ENVIRON)
        site.queue = queue
        return dict(by_check(CHECKS, site))

    return examine


def test_a_machine_that_is_well_needs_nothing(examined: Any) -> None:
    """A healthy machine passes every check."""
    found = examined()

    assert len(CHECKS) == len(found)
    del found["bytecode"]  # pytest keeps that of its modules elsewhere
    assert {Grade.OK} == {each.grade for each in found.values()}


def test_limits_by_which_jobs_fail_are_named(examined: Any) -> None:
    """Jobs get the limits of the workers. Where they run as their submitters, those are not the workers'."""
    assert "open files: 1048576, processes: 96364" == examined()["limits"].seen
    few = examined(limits={**GENEROUS, "open files": "1024"})["limits"]
    assert (Grade.WARNING, "a process of a job can open only 1024 files: data loaders with many workers fail") == (
        few.grade,
        few.seen,
    )
    tight = examined(limits={**GENEROUS, "address space": "8589934592"})["limits"]
    assert (Grade.WARNING, "the address space of each process of a job is limited to 8589934592: it fails there") == (
        tight.grade,
        tight.seen,
    )
    assert Grade.UNKNOWN is examined(limits={})["limits"].grade
    assert "limits" not in examined(GPUQUEUE_RUN_AS="submitter")


def test_the_limits_are_those_of_the_process() -> None:
    """Jobs get the hard limit of open files, and the soft one of all others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        assert str(hard) == processes._limits_of(os.getpid())["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


ALONE: dict[str, Any] = {"host": None, "children": (), "environ": None}
OLD, NONE_SET = make_served("GPU-0", version="0.0.9"), make_served("GPU-0", version=None)


@pytest.mark.parametrize(
    ("situation", "check", "grade", "seen", "remedy"),
    [
        # The host process exists and keeps starting the worker.
        (
            {"devices": (make_served("GPU-0"), make_served("GPU-1"))},
            "workers",
            Grade.PROBLEM,
            "no worker serves device 0 (GPU-1): it ends again and again",
            "why: /s/log/GPU-1.log",
        ),
        # After a killed host process and an `up` without its --devices, doctor said that the worker keeps ending.
        (
            {"devices": (make_served("GPU-0"), make_served("sim-nodeA-0", kind=DeviceKind.SIMULATED))},
            "workers",
            Grade.WARNING,
            "(sim-nodeA-0) is not one of those that the workers were started for (--devices auto)",
            "gpuqueue down, then gpuqueue up with the same --devices as before",
        ),
        ({"devices": None}, "workers", Grade.UNKNOWN, "1 run; for how many devices, only the store knows", ""),
        # The remedy upgrades without ending a job. A worker that is gone does not count.
        ({"devices": (OLD,)}, "version", Grade.WARNING, "workers of 0.0.9 still run", "gpuqueue down --leave-jobs"),
        ({"devices": (NONE_SET,)}, "version", Grade.WARNING, "of an older one still run", "gpuqueue down --leave-jobs"),
        ({"devices": (make_served("GPU-0", version="0.0.9", seen_s_ago=1000),)}, "version", Grade.OK, VERSION, ""),
        # Workers under another supervisor are no fault, as in containers without `gpuqueue up`.
        (ALONE, "host", Grade.OK, "none: 1 workers of this machine are started by another program", ""),
        ({**ALONE, "devices": ()}, "host", Grade.NOTE, "no workers run on this machine", "gpuqueue up"),
        # A recorder on another host may be intended. A host that has joined needs none: the service records.
        ({"children": (WORKER,)}, "recorder", Grade.NOTE, "none runs here", "right if one runs elsewhere"),
        ({"children": (WORKER,), "GPUQUEUE_RECORD": "false"}, "recorder", Grade.OK, "none: the host of the", ""),
        # Workers do not use the settings that only clients read.
        ({"environ": {**ENVIRON, "GPUQUEUE_DEFAULT_MEM": "4G"}}, "settings", Grade.OK, "the same", ""),
        ({"environ": {**ENVIRON, "GPUQUEUE_HEARTBEAT": "3s"}}, "settings", Grade.NOTE, "_HEARTBEAT", "gpuqueue"),
        ({"environ": None}, "settings", Grade.UNKNOWN, "cannot be read", "run this as its account"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_processes(
    examined: Any, situation: dict[str, Any], check: str, grade: Grade, seen: str, remedy: str
) -> None:
    """Each fault is found, with its remedy."""
    finding = examined(**situation)[check]

    assert grade is finding.grade
    assert seen in finding.seen
    assert finding.remedy.startswith(remedy)


def test_a_host_process_that_died_is_a_problem(examined: Any, tmp_path: Path) -> None:
    """`down` removes the file that it leaves. The other checks have nothing to say."""
    (tmp_path / "host.pid").touch()

    found = examined(**ALONE, state_dir=str(tmp_path))

    assert (Grade.PROBLEM, True) == (found["host"].grade, found["host"].remedy.endswith(f"{tmp_path}/log/host.log"))
    assert {"host", "version", "bytecode"} == set(found)


@pytest.mark.parametrize(
    ("reported", "kind", "index", "meant"),
    [
        ("auto", DeviceKind.SIMULATED, 0, False),
        ("sim:2x1G", DeviceKind.SIMULATED, 1, True),
        ("sim:2x1G", DeviceKind.SIMULATED, 2, False),
        ("sim:1x8G+2x16G,cpu", DeviceKind.SIMULATED, 2, True),
        ("sim:8G + 16G", DeviceKind.SIMULATED, 1, True),
        ("sim:24G", DeviceKind.SIMULATED, 1, False),
        ("sim:2x1G", DeviceKind.CPU, 0, False),
        ("gpu,cpu", DeviceKind.CPU, 0, True),
        ("gpu", DeviceKind.CPU, 0, False),
        ("auto", DeviceKind.CPU, 0, True),
        ("auto", DeviceKind.GPU, 9, True),
        ("cpu", DeviceKind.GPU, 0, False),
        ("gpu:0,2", DeviceKind.GPU, 2, True),
        ("gpu:0,2,cpu", DeviceKind.GPU, 1, False),
        ("gpu:0,2,cpu", DeviceKind.CPU, 1, True),
        (None, DeviceKind.SIMULATED, 0, True),
    ],
)
def test_what_the_workers_were_started_for(reported: str | None, kind: DeviceKind, index: int, *, meant: bool) -> None:
    """A device outside of the selected ones gets no worker, however often a user runs `gpuqueue up`."""
    assert meant is is_meant(reported, replace(make_device("X"), kind=kind, index=index))


@pytest.mark.parametrize("dont_write", ["1", ""])
def test_missing_bytecode_is_found_where_it_cannot_be_written(tmp_path: Path, dont_write: str) -> None:
    """An installation by uv as root has no bytecode, and no other account can write it.

    The finding has the command. A module that Python has just compiled and kept does not count.
    """
    code = (
        "from gpuqueue.doctor.processes import bytecode\n"
        "finding = bytecode(None)\n"
        "print(finding.grade, finding.seen, finding.remedy, sep='\\n')\n"
    )
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": dont_write}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)

    grade, seen, *remedy = done.stdout.splitlines()
    if dont_write:
        assert ("warning", True) == (grade, int(seen.partition(" modules are not compiled here")[0]) > 50)
        assert f"{shlex.quote(sys.executable)} -m compileall -qq" in remedy[0]
        assert str(Path(processes.__file__).parents[2]) in remedy[0]
    else:
        assert ("ok", "the modules of this command are compiled") == (grade, seen)


def test_a_logout_that_ends_the_queue_or_takes_memory_from_jobs_is_warned_of(
    examined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of a person is examined where its host process is, that of a team for the members of its group."""
    queue, jobs = LogoutTrouble("ends it", "linger"), LogoutTrouble("deletes it", "RemoveIPC=no")
    logind = SimpleNamespace(trouble_of_queue=lambda *_: queue, trouble_of_jobs=lambda people: jobs if people else None)
    monkeypatch.setattr(processes, "members_of", lambda _: [("ann", 1000)])
    monkeypatch.setattr(processes, "runs_have_sessions", lambda: False)
    monkeypatch.setattr(processes, "users_group", lambda: "lab")
    team = {"GPUQUEUE_RUN_AS": "submitter", "logind": logind}

    found = [examined(logind=logind)["logout"], examined(host=None, **team)["logout"]]

    assert [Grade.WARNING] * 2 == [each.grade for each in found]
    assert [tuple(queue), tuple(jobs)] == [(each.seen, each.remedy) for each in found]
    monkeypatch.setattr(processes, "runs_have_sessions", lambda: True)  # a session keeps the person logged in
    assert Grade.OK is examined(**team)["logout"].grade
    assert "logout" not in examined(host=None, logind=logind)
