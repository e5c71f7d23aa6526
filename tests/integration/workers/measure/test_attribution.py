"""Tests that find the run of a process.

The processes are real: forked twice, orphaned, external, and with a reused pid.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from fake_driver.fake_driver import FakeGpus, build, compiler
from fake_driver.far_backend import FarBackend

from gpuqueue.clock import SystemClock
from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import GIB
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.monitor import DeviceMonitor, owners, pids_by_run
from workers.run.directory import Held, RunDir
from workers.run.environment import TOKEN

#: User ids of no account of the machine: of the workers, and of a submitter whose environment they cannot read.
WORKERS, SUBMITTER = 54320, 54321

#: A subreaper, like the shim, with a child and a daemon that left its session twice. Prints all three pids.
FAMILY = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
out, told = os.pipe()
if os.fork() == 0:
    for uid in map(int, sys.argv[1:]):
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.write(told, f"{os.getpid()} ".encode())
            signal.pause()
        os._exit(0)
    os.wait()
    os.write(told, f"{os.getpid()} ".encode())
    signal.pause()
words = b""
while words.count(b" ") < 2:
    words += os.read(out, 100)
print(os.getpid(), *sorted(map(int, words.split())), flush=True)
signal.pause()
"""


@contextmanager
def family(token: str | None = None, *uids: int) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a shim-like process with its process tree, of another user with *uids*; yield it and the pids below it."""
    environ = {name: value for name, value in os.environ.items() if name != TOKEN}
    if token is not None:
        environ[TOKEN] = token
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY, *map(str, uids)], stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout
    top, *below = map(int, process.stdout.readline().split())
    assert top == process.pid
    try:
        yield process, below
    finally:
        for pid in (*below, process.pid):
            os.kill(pid, 9)
        with process:
            pass


def shim(pid: int) -> ProcessIdentity:
    """Return the identity of *pid*."""
    identity = ProcessIdentity.of(pid)
    assert identity is not None
    return identity


def test_every_process_below_a_shim_is_its_runs_and_nobody_elses() -> None:
    """Every process below a shim belongs to its run, without any token.

    Children, and daemons that left their session twice, are found by their parents.
    """
    with family() as (one, ours), family() as (other, theirs):
        shims = {"1.a": shim(one.pid), "1.b": shim(other.pid), "1.c": None}

        found = owners([*ours, *theirs, os.getpid(), 4_000_001], shims)

        assert dict.fromkeys(ours, "1.a") | dict.fromkeys(theirs, "1.b") == found


def test_a_run_whose_shim_was_killed_is_known_by_its_token() -> None:
    """A process whose shim was killed is found by its token in the environment.

    Its parents then end at init. A token of another run is not matched.
    """
    with family("1.a") as (process, below):
        identity = shim(process.pid)
        process.kill()
        process.wait()

        assert dict.fromkeys(below, "1.a") == owners(below, {"1.a": identity})
        assert {} == owners(below, {"1.b": None})
        process.returncode = 0
        process.pid = below[0]  # lets `family` end the process


def test_a_later_process_with_the_shims_number_owns_nothing() -> None:
    """A later process with the shim's pid owns nothing, because its start time differs."""
    with family() as (process, below):
        earlier = ProcessIdentity(process.pid, shim(process.pid).started - 1, shim(process.pid).boot)

        assert {} == owners(below, {"1.a": earlier})


def test_hidden_processes_are_external(tmp_path: Path) -> None:
    """Processes that /proc hides, as with hidepid, count as external, without an error."""
    assert {} == owners([os.getpid()], {"1.a": shim(os.getppid())}, proc=tmp_path)


@pytest.mark.parametrize("kind", [DeviceKind.CPU, DeviceKind.GPU])
def test_a_gpu_lists_its_processes_and_the_cpu_has_all_of_them(kind: DeviceKind) -> None:
    """On a GPU only the listed processes of a run count; on the CPU all of them do."""
    device = Device(uuid="d", index=0, name="d", kind=kind, total_bytes=100)
    with family() as (process, below):
        reading = Reading(total_bytes=100, free_bytes=10, processes={below[1]: 80, os.getpid(): 10})

        found = pids_by_run(device, reading, {"1.a": shim(process.pid), "1.b": None})

        assert {"1.a": frozenset(below if kind is DeviceKind.CPU else below[1:])} == found


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """Return a directory that every account may enter, unlike pytest's own."""
    made = Path(mkdtemp(prefix="gpuqueue-open-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def as_workers(monitor: DeviceMonitor, device: Device) -> dict[str, Any]:
    """Return what the account of the workers sees in a sample of *device*: runs, external processes, and peaks."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(WORKERS)
            os.setuid(WORKERS)
            sample = monitor.sample(device)
            seen = {
                "runs": [[run.job_id, run.was_given, sorted(run.pids), run.used_bytes] for run in sample.runs],
                "external": [[each.pid, each.job_id] for each in sample.external_processes],
            }
            os.write(writer, json.dumps(seen).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as words:
        text = words.read()
    os.waitpid(child, 0)
    return dict(json.loads(text))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other accounts")
@pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")
def test_a_submitters_process_on_another_card_is_of_its_job(tmp_path: Path, open_dir: Path) -> None:
    """Where jobs run as their submitters, workers cannot read their environments, and still know whose they are.

    Each worker finds all runs of the host by their directories, also those of which another worker takes care.
    """
    fake = FakeGpus.create(tmp_path / "gpus", (24 * GIB, 24 * GIB))
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(open_dir / "state"), "GPUQUEUE_CONFIG": os.devnull})
    with (
        closing(FarBackend("gpu", fake.environ(build(tmp_path)))) as backend,
        family("1.a", SUBMITTER) as (guard, (job, daemon)),
        family(None) as (_, (stranger, _)),
    ):
        given, other = backend.devices()
        held = Held(job_id=7, token="1.a", devices=(RunDevice(uuid=given.uuid, lease_bytes=6 * GIB),))
        directory = RunDir.create(settings.runs_dir, held)
        lines = (shim(os.getpid()), shim(job), shim(guard.pid))
        (directory.path / "pid").write_text("".join(f"{each}\n" for each in lines))
        for pid, gib in ((job, 2), (daemon, 3), (stranger, 1)):
            fake.hold(1, pid, gib * GIB)
        live = LiveRuns()
        live.add(LiveRun(held=held, directory=directory, since_s=0.0))
        monitors = [DeviceMonitor(settings, backend, runs, SystemClock()) for runs in (live, LiveRuns())]
        monitors[0].sample(given)  # imports what the account of the workers may not be able to read
        for path in (settings.state_dir, *settings.state_dir.rglob("*")):
            os.chown(path, WORKERS, WORKERS, follow_symlinks=False)

        seen = [as_workers(monitor, other) for monitor in monitors]

    pids = sorted((job, daemon))
    runs = [[7, False, pids, 5 * GIB]]
    external = sorted([[job, 7], [daemon, 7], [stranger, None]])
    assert [{"runs": runs, "external": external}] * 2 == seen
