from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_device

from gpuqueue.doctor import processes
from gpuqueue.doctor.processes import CHECKS, ProcessFacts, is_meant
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.finding import Finding, Grade, examined
from gpuqueue.queue.diagnostics import DeviceFacts
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.version import VERSION

ENVIRON = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_HOST": "nodeA"}


def make_served(uuid: str, *, version: str | None = VERSION, seen_s_ago: float = 1.0) -> DeviceFacts:
    """Return a device that a worker of this machine serves."""
    status = DeviceStatus(
        device=make_device(uuid),
        host="nodeA",
        worker="w",
        worker_pid=1,
        headroom_bytes=0,
        external_bytes=0,
        allocated_bytes=0,
        jobs=(),
        slots=8,
        pool="",
        seen_s_ago=seen_s_ago,
    )
    return DeviceFacts(status=status, version=version, clock_ahead_s=0.0)


def make_facts(**changes: object) -> ProcessFacts:
    """Return the facts of a healthy machine: a host process, a worker for its device, a recorder."""
    facts = ProcessFacts(
        settings=Settings.load(ENVIRON),
        expected=True,
        host=ProcessIdentity(7, 7, "boot"),
        workers=frozenset({"GPU-0"}),
        recorder=True,
        reported="auto",
        environ=ENVIRON,
        file_changed=False,
        devices=(make_served("GPU-0"),),
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def found(facts: ProcessFacts, check: str) -> Finding:
    """Return the finding of one check."""
    return next(each for each in examined("processes", facts, CHECKS) if each.check == check)


def test_a_machine_that_is_well_needs_nothing() -> None:
    """A healthy machine passes every check."""
    findings = list(examined("processes", make_facts(), CHECKS))

    assert {Grade.OK} == {each.grade for each in findings}
    assert len(CHECKS) == len(findings)


def test_a_device_whose_worker_ends_again_and_again_is_named_with_its_log() -> None:
    """A device whose worker keeps ending is named with the worker's log.

    The host process exists and keeps starting the worker.
    """
    finding = found(make_facts(devices=(make_served("GPU-0"), make_served("GPU-1"))), "workers")

    assert Grade.PROBLEM is finding.grade
    assert "GPU-1" in finding.seen
    assert finding.remedy.endswith("/s/log/GPU-1.log")


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
        (None, DeviceKind.SIMULATED, 0, True),
    ],
)
def test_what_the_workers_were_started_for(reported: str | None, kind: DeviceKind, index: int, *, meant: bool) -> None:
    """A device outside of the selected ones gets no worker, however often a user runs `gpuqueue up`."""
    assert meant is is_meant(reported, replace(make_device("X"), kind=kind, index=index))


def test_a_device_without_a_worker_is_reported_with_a_remedy() -> None:
    """A device outside of the host process's --devices is reported with a remedy.

    Regression: after a killed host process and an `up` without its --devices, doctor said that the worker keeps ending
    and pointed to its log.
    """
    gone = make_served("sim-nodeA-0")
    gone = replace(gone, status=replace(gone.status, device=replace(gone.status.device, kind=DeviceKind.SIMULATED)))

    finding = found(make_facts(devices=(make_served("GPU-0"), gone)), "workers")

    assert Grade.WARNING is finding.grade
    assert "(sim-nodeA-0) is not one of those that the workers were started for (--devices auto)" in finding.seen
    assert finding.remedy.startswith("gpuqueue down, then gpuqueue up with the same --devices as before")


def test_how_many_workers_there_should_be_only_the_store_knows() -> None:
    """Without the store the expected number of workers is unknown."""
    assert Grade.UNKNOWN is found(make_facts(devices=None), "workers").grade


@pytest.mark.parametrize("version", ["0.0.9", None])
def test_workers_of_an_older_version_are_reported(version: str | None) -> None:
    """An old worker is reported with the command that upgrades it without ending a job.

    A worker that is gone does not count.
    """
    old = make_served("GPU-0", version=version)

    finding = found(make_facts(devices=(old,)), "version")

    assert Grade.WARNING is finding.grade
    assert "--leave-jobs" in finding.remedy
    gone = make_served("GPU-0", version=version, seen_s_ago=1000)
    assert Grade.OK is found(make_facts(devices=(gone,)), "version").grade


def test_workers_that_somebody_else_keeps_alive_are_no_fault() -> None:
    """Workers under another supervisor are no fault, as in containers without `gpuqueue up`."""
    alone = {"host": None, "expected": False, "workers": frozenset[str](), "recorder": False, "environ": None}

    assert Grade.OK is found(make_facts(**alone), "host").grade
    assert Grade.NOTE is found(make_facts(**alone, devices=()), "host").grade
    assert Grade.PROBLEM is found(make_facts(**{**alone, "expected": True}), "host").grade
    assert {Grade.OK} == {each.grade for each in examined("processes", make_facts(**alone), CHECKS)}


def test_a_recorder_elsewhere_is_worth_a_note() -> None:
    """A recorder on another host is a note, as it may be intended.

    Another check reports whether the history is up to date.
    """
    assert Grade.NOTE is found(make_facts(recorder=False), "recorder").grade


def test_a_host_process_of_another_account_is_unknown() -> None:
    """The settings of a host process of another account are unknown, because its environment is private."""
    assert Grade.UNKNOWN is found(make_facts(environ=None), "settings").grade


def test_settings_that_only_clients_read_are_not_compared() -> None:
    """Settings that only clients read are not compared, because workers do not use them."""
    facts = make_facts(environ={**ENVIRON, "GPUQUEUE_DEFAULT_MEM": "4G"})

    assert Grade.OK is found(facts, "settings").grade
    assert Grade.NOTE is found(make_facts(environ={**ENVIRON, "GPUQUEUE_HEARTBEAT": "3s"}), "settings").grade


def test_a_host_that_has_joined_needs_no_recorder() -> None:
    """The host of the service records the history."""
    joined = Settings.load({**ENVIRON, "GPUQUEUE_RECORD": "false"})

    assert Grade.OK is found(make_facts(settings=joined, recorder=False), "recorder").grade
    assert Grade.NOTE is found(make_facts(recorder=False), "recorder").grade


def test_modules_without_bytecode_are_a_warning_with_the_command() -> None:
    """An installation by uv as root has no bytecode, and no other account can write it."""
    bare = make_facts(uncompiled=231, code=(Path("/opt/a b/site-packages"),))

    assert Grade.OK is found(make_facts(), "bytecode").grade
    finding = found(bare, "bytecode")
    assert (Grade.WARNING, True) == (finding.grade, finding.seen.startswith("231 modules are not compiled here"))
    assert finding.remedy.endswith("python -m compileall -qq '/opt/a b/site-packages'")


@pytest.mark.parametrize("dont_write", ["1", ""])
def test_missing_bytecode_is_found_where_it_cannot_be_written(tmp_path: Path, dont_write: str) -> None:
    """A module that Python has just compiled and kept does not count."""
    code = (
        "from gpuqueue.doctor import processes\n"
        "specs = list(processes._without_bytecode())\n"
        "print(len(specs), *{processes._directory_of(each) for each in specs}, sep='\\n')\n"
    )
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": dont_write}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)

    number, *places = done.stdout.splitlines()
    if dont_write:
        assert int(number) > 50
        assert str(Path(processes.__file__).parents[2]) in places
    else:
        assert ("0", []) == (number, places)
