"""Tests of jobs that share a GPU through MPS, on the fake driver: what is refused, and what is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bounded import until
from fake_driver.fake_driver import HERE, MPS_CONTROL, MPS_LIST, UNKNOWN, FakeGpus, build, compiler
from site_of_one import BIN, Site

from gpuqueue.model.device import PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB
from workers.devices import mps

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")

SUPPORT = HERE.parent
RESERVED = GIB // 2

#: Prints its variables of MPS, and holds 2 GiB as a client until that was measured.
JOB = f"""
import os, sys
sys.path.insert(0, {str(SUPPORT)!r})
from fake_driver.fake_driver import FakeGpus
from metered import until_seen
print(*(f"{{name[9:]}}={{value}}" for name, value in sorted(os.environ.items()) if name.startswith("CUDA_MPS_")))
FakeGpus.here().hold_here(2 * 2**30, mps=True)
until_seen(samples=2, peak_bytes=2 * 2**30)
"""

#: A process with the name of a server, which the kernel cuts.
SERVER = "open('/proc/self/comm', 'w').write('nvidia-cuda-mps-server'); print('ready', flush=True); input()"


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return the state of a fake driver with a 24 GiB card."""
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB,), reserved_bytes=RESERVED)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return the pipe directory of the daemon. It does not exist yet."""
    return tmp_path / "mps"


@pytest.fixture
def environ(fake: FakeGpus, pipe: Path, tmp_path: Path) -> dict[str, str]:
    """Return what the environment of a host with MPS on the fake driver has in addition."""
    return {
        **fake.environ(build(tmp_path)),
        "PATH": f"{HERE}{os.pathsep}{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "GPUQUEUE_DEVICES": "gpu",
        "GPUQUEUE_MPS": "true",
        "GPUQUEUE_MPS_PIPE_DIRECTORY": str(pipe),
    }


@pytest.fixture
def daemon(environ: dict[str, str], pipe: Path) -> None:
    """Start a control daemon."""
    subprocess.run([MPS_CONTROL, "-d"], env={**os.environ, **environ, mps.PIPE_DIRECTORY: str(pipe)}, check=True)


@pytest.fixture
def site(tmp_path: Path, store_url: str, environ: dict[str, str]) -> Iterator[Site]:
    """Return a site on that host; no worker runs yet."""
    made = Site(tmp_path / "state", store_url, **environ)
    yield made
    made.stop()


@contextmanager
def server_on(fake: FakeGpus, held_bytes: int) -> Iterator[None]:
    """Run a server that holds *held_bytes* of the first card."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout
        assert "ready\n" == process.stdout.readline()
        fake.hold(0, process.pid, held_bytes)
        try:
            yield
        finally:
            process.kill()


def control(site: Site, *words: str, command: str = "") -> None:
    """Run the control program of MPS on the host of *site*."""
    environ = {**site.environ, mps.PIPE_DIRECTORY: site.environ["GPUQUEUE_MPS_PIPE_DIRECTORY"]}
    subprocess.run([MPS_CONTROL, *words], env=environ, input=command, text=True, check=True)


def listed(environ: dict[str, str], tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``gpuqueue-worker devices``, which ``gpuqueue up`` calls first."""
    return subprocess.run(
        [str(BIN / "gpuqueue-worker"), "devices", *words],
        env={**os.environ, "GPUQUEUE_STATE_DIR": str(tmp_path / "state"), "GPUQUEUE_CONFIG": os.devnull, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refusal(environ: dict[str, str], tmp_path: Path) -> str:
    """Return the one line with which it is refused."""
    done = listed(environ, tmp_path)
    assert (5, "") == (done.returncode, done.stdout), done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_a_daemon_that_does_not_run_is_refused(environ: dict[str, str], pipe: Path, tmp_path: Path) -> None:
    """Without a pipe directory or a daemon the refusal says what is missing and how to start it."""
    assert f"mps is on, and there is no pipe directory {pipe}: start {MPS_CONTROL} -d" in refusal(environ, tmp_path)
    pipe.mkdir()
    line = refusal(environ, tmp_path)
    assert f"its control daemon at {pipe} does not answer (Cannot find MPS control daemon process): start" in line


def test_a_host_process_lists_its_devices_without_the_daemon(environ: dict[str, str], tmp_path: Path) -> None:
    """Its workers wait for the daemon, which may start later than the unit of the host process."""
    assert 0 == listed(environ, tmp_path, "--unchecked").returncode


@pytest.mark.usefixtures("daemon")
def test_a_daemon_that_hangs_is_refused(
    environ: dict[str, str], pipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that does not answer in time, and a missing control program, are reasons as well."""
    monkeypatch.setenv("PATH", environ["PATH"])

    assert mps._daemon_trouble(pipe) is None
    monkeypatch.setattr(mps, "ANSWER_S", 0.2)
    monkeypatch.setenv("FAKE_MPS_HANGS", "1")
    assert "does not answer within 0.2 s" in (mps._daemon_trouble(pipe) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"the program {MPS_CONTROL} is not on the worker's PATH" in (mps._daemon_trouble(pipe) or "")


@pytest.mark.full
@pytest.mark.usefixtures("daemon")
def test_a_driver_that_cannot_is_refused(fake: FakeGpus, environ: dict[str, str], tmp_path: Path) -> None:
    """A driver without limits or a list of clients, an old GPU and a MIG instance are refused, each with its reason."""
    fake.state.cuda = 11040
    assert "it supports CUDA up to 11.4, and needs 11.5" in refusal(environ, tmp_path)
    fake.state.cuda, fake.state.gpus[0].capability = 11050, 61
    assert f"{fake.uuid(0)} cannot limit the memory of a job: it is older than Volta" in refusal(environ, tmp_path)
    fake.state.gpus[0].capability, fake.state.gpus[0].unsupported = 70, MPS_LIST
    assert f"does not list the jobs on {fake.uuid(0)}" in refusal(environ, tmp_path)
    (instance,) = fake.divide(0, {0: 10 * GIB})
    assert f"{instance} is a MIG instance" in refusal(environ, tmp_path)


@pytest.mark.usefixtures("daemon")
def test_a_gpu_that_does_not_answer_leaves_mps_to_the_others(tmp_path: Path, environ: dict[str, str]) -> None:
    """Nobody knows whether a failed GPU can be shared. It is closed, and no reason to refuse the others."""
    fake = FakeGpus.create(tmp_path / "gpus", (24 * GIB, 24 * GIB))
    fake.state.gpus[1].error = UNKNOWN

    done = listed(environ, tmp_path)

    assert 0 == done.returncode, done.stderr
    assert 2 == len(done.stdout.splitlines())


@pytest.mark.full
def test_a_worker_does_not_start_without_the_daemon(site: Site) -> None:
    """A worker ends with the reason, and starts once the daemon runs."""
    worker = site.spawn("run", "--plain")

    assert 5 == worker.wait(timeout=60)
    assert "mps is on, and there is no pipe directory" in site.log()
    control(site, "-d")
    site.start_worker()


@pytest.mark.full
@pytest.mark.usefixtures("daemon")
def test_a_daemon_that_ends_closes_its_devices_until_it_is_back(site: Site, pipe: Path) -> None:
    """No job runs without MPS: the device takes none and says why, and goes on by itself."""
    site.make_tables()
    site.start_worker()
    control(site, command="quit\n")
    until(lambda: site.client.devices.list()[0].trouble is not None, what="a closed device")

    job = int(site.cli("submit", "--mem", "6G", "--", "printenv", mps.PIPE_DIRECTORY).stdout)

    why = f"mps is on, and its control daemon at {pipe} has ended: start {MPS_CONTROL} -d"
    assert f"closed: {why}" in site.cli("gpus").stdout
    reported = site.cli("why", str(job)).stdout
    assert f"start  not before {site.settings.host}:0 takes jobs again: {why}\n" in reported
    assert f"closed: {why}" in reported
    assert JobState.QUEUED is site.client.jobs.get(job).state
    control(site, "-d")
    site.until_state(job, JobState.SUCCEEDED)
    assert f"{pipe}\n" == site.client.logs.path(job).read_text()


@pytest.mark.full
@pytest.mark.usefixtures("daemon")
def test_a_client_is_limited_and_measured_and_the_server_is_no_external_process(
    site: Site, fake: FakeGpus, pipe: Path
) -> None:
    """A job has its limits in its environment, and its peak is what it held itself as a client of MPS.

    The server belongs to nobody: it is not listed beside the run, and its own memory is not free.
    """
    site.environ["GPUQUEUE_MPS_THREAD_PERCENTAGE"] = "40"
    site.start_recorder()
    with server_on(fake, 32 * MIB):
        site.start_worker()

        job = int(site.cli("submit", "--mem", "6G", "--", sys.executable, "-c", JOB).stdout)

        run = site.until_recorded(job).last_run
        until(
            lambda: site.client.devices.list()[0].external_bytes == RESERVED + 32 * MIB,
            what="the memory of the job is free again",
        )
        assert () == site.client.devices.list()[0].external_processes
    limits = f"ACTIVE_THREAD_PERCENTAGE=40 PINNED_DEVICE_MEM_LIMIT=0=6144M PIPE_DIRECTORY={pipe}\n"
    assert limits == site.client.logs.path(job).read_text()
    assert run is not None
    peak = run.devices[0].peak
    assert (2 * GIB, PeakSource.NVML_SAMPLED, False) == (peak.bytes, peak.source, peak.shared)


def test_the_default_pipe_directory_is_in_the_state_directory() -> None:
    """In /tmp, where the daemon has it without a variable, another account could put one of its own."""
    found = Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s"})
    assert Path("/s/mps") == found.mps_pipe_directory


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o770])
@pytest.mark.parametrize("above", [False, True])
def test_a_pipe_directory_that_others_can_write_is_refused(
    environ: dict[str, str], tmp_path: Path, mode: int, *, above: bool
) -> None:
    """Another account could put its own daemon there, which jobs would then talk to."""
    pipe = tmp_path / "open" / "mps"
    pipe.mkdir(parents=True)
    place = pipe.parent if above else pipe
    place.chmod(mode)

    line = refusal({**environ, "GPUQUEUE_MPS_PIPE_DIRECTORY": str(pipe)}, tmp_path)
    assert f"mps is on, and other accounts can write in {place}, and could put a daemon there: choose" in line
