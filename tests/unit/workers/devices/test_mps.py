"""Tests of MPS without a driver: who gets its variables, what is refused before anything is asked, and its servers."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories import make_device

from gpuqueue.errors import Refused
from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB
from workers.devices import mps
from workers.measure.sample import external_bytes

CLIENT, SERVER, GONE = 11, 12, 13


def settings(**environ: str) -> Settings:
    """Return the settings of a host with MPS."""
    here = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_MPS": "true"}
    return Settings.load({**here, **environ})


def test_a_job_gets_the_variables_of_a_client_only_where_mps_is_on() -> None:
    """The variables name the site's pipe directory, and the share of the threads if the site limits it."""
    limited = settings(GPUQUEUE_MPS_PIPE_DIRECTORY="/run/mps", GPUQUEUE_MPS_THREAD_PERCENTAGE="40")

    assert {} == mps.client_environment(settings(GPUQUEUE_MPS="false"))
    assert {"CUDA_MPS_PIPE_DIRECTORY": "/s/mps"} == mps.client_environment(settings())
    assert {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
    } == mps.client_environment(limited)


def test_jobs_of_several_accounts_are_refused() -> None:
    """A server of MPS has one account, so jobs that run as their submitters would wait for each other."""
    with pytest.raises(Refused, match=r"^mps is on, and run_as is submitter, .*one account"):
        mps.check(settings(GPUQUEUE_RUN_AS="submitter"), [make_device()])


def test_a_mig_instance_is_refused() -> None:
    """A MIG instance would need a control daemon of its own."""
    instance = make_device("MIG-1", mig_parent="GPU-0")

    with pytest.raises(Refused, match=r"MIG-1 is a MIG instance.*leave out mps"):
        mps.check(settings(), [make_device(), instance])


@pytest.mark.parametrize(
    ("environ", "device"),
    [
        ({}, make_device(kind=DeviceKind.CPU)),
        ({}, make_device(kind=DeviceKind.SIMULATED)),
        ({"GPUQUEUE_MPS": "false", "GPUQUEUE_RUN_AS": "submitter"}, make_device(mig_parent="GPU-9")),
    ],
)
def test_nothing_is_asked_of_a_host_without_gpus_or_without_mps(environ: dict[str, str], device: Device) -> None:
    """A CPU beside the GPUs is served, and without MPS nothing is refused. No driver is asked."""
    mps.check(settings(**environ), [device])


def test_a_server_is_neither_listed_nor_counted_twice(tmp_path: Path) -> None:
    """A server is left out of a reading, whether the driver charges its clients' memory to it or not.

    What it holds itself stays in the used bytes of the device, as memory that belongs to no process.
    """
    for pid, name in ((CLIENT, "python"), (SERVER, "nvidia-cuda-mps")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    others = {CLIENT: 2 * GIB, GONE: None}

    for of_server in (30 * MIB, 2 * GIB + 30 * MIB, None):
        reading = Reading(total_bytes=24 * GIB, free_bytes=22 * GIB - 30 * MIB, processes={**others, SERVER: of_server})
        without = mps.without_servers(reading, proc=tmp_path)

        assert others == without.processes
        assert (reading.used_bytes, reading.listed) == (without.used_bytes, without.listed)
        assert 30 * MIB == external_bytes(
            used=without.used_bytes, processes={CLIENT: 2 * GIB}, ours={CLIENT}, external_processes={}, leased=0
        )


def test_a_reading_without_a_server_is_unchanged(tmp_path: Path) -> None:
    """Without a server the reading is the same object. A process that has ended is kept."""
    reading = Reading(total_bytes=GIB, free_bytes=GIB, processes={GONE: MIB})

    assert mps.without_servers(reading, proc=tmp_path) is reading


@pytest.fixture
def pipe() -> Iterator[Path]:
    """Return a pipe directory with a short name, because the name of a socket is short."""
    with tempfile.TemporaryDirectory(prefix="mps-") as directory:
        yield Path(directory)


def listening(pipe: Path) -> socket.socket:
    """Return the socket of a daemon in *pipe*, which replaces that of an earlier one."""
    control = pipe / mps.CONTROL_SOCKET
    control.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(control))
    made.listen(0)
    return made


def test_a_daemon_that_ends_is_noticed_until_it_is_back(pipe: Path) -> None:
    """A killed daemon leaves its socket, which the next start of a job finds. After that, each check connects to it."""
    watch = mps.DaemonWatch(settings(GPUQUEUE_MPS_PIPE_DIRECTORY=str(pipe)), make_device())
    ended = f"mps is on, and its control daemon at {pipe} has ended: start nvidia-cuda-mps-control -d"

    daemon = listening(pipe)
    assert [None, None] == [watch.trouble(), watch.trouble(at_start=True)]
    daemon.close()
    assert [None, ended, ended] == [watch.trouble(), watch.trouble(at_start=True), watch.trouble()]
    daemon = listening(pipe)
    assert [None, None] == [watch.trouble(), watch.trouble(at_start=True)]
    daemon.close()
    (pipe / mps.CONTROL_SOCKET).unlink()
    assert [ended, ended] == [watch.trouble(), watch.trouble(at_start=True)]
    pipe.rmdir()
    assert ended == watch.trouble()
    pipe.mkdir()


def test_only_a_socket_that_refuses_is_a_daemon_that_has_ended(pipe: Path) -> None:
    """A daemon with a full queue of connections runs, and what is no socket is not judged."""
    watch = mps.DaemonWatch(settings(GPUQUEUE_MPS_PIPE_DIRECTORY=str(pipe)), make_device())
    with listening(pipe), socket.socket(socket.AF_UNIX) as first:
        first.connect(str(pipe / mps.CONTROL_SOCKET))

        assert [None] * 3 == [watch.trouble(at_start=True) for _ in range(3)]
    (pipe / mps.CONTROL_SOCKET).unlink()
    (pipe / mps.CONTROL_SOCKET).touch()
    assert watch.trouble(at_start=True) is None


@pytest.mark.parametrize(
    ("environ", "device"), [({}, make_device(kind=DeviceKind.CPU)), ({"GPUQUEUE_MPS": "false"}, make_device())]
)
def test_no_daemon_is_needed_without_mps_or_for_a_cpu(pipe: Path, environ: dict[str, str], device: Device) -> None:
    """The CPU beside the GPUs takes jobs while the daemon is away."""
    watch = mps.DaemonWatch(settings(GPUQUEUE_MPS_PIPE_DIRECTORY=str(pipe), **environ), device)

    assert [None, None] == [watch.trouble(), watch.trouble(at_start=True)]
