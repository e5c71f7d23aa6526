"""Tests that find the run of a process.

The processes are real: forked twice, orphaned, external, and with a reused pid.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from bounded import until
from fake_driver.fake_driver import FakeGpus, build, compiler
from fake_driver.far_backend import FarBackend
from site_of_one import Site

from gpuqueue.clock import SystemClock
from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import GIB
from workers.devices.cpu import CpuBackend
from workers.devices.simulated import SimulatedBackend
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.meter import ADOPTED_GAP_S
from workers.measure.monitor import DeviceMonitor, external_process_of, owners, pids_by_run
from workers.run import process_tree
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


# ---- A run whose memory was not measured for a time, on the fake driver ----------------------------------------------

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")

SUPPORT = Path(__file__).parents[3] / "support"
#: Holds a gibibyte on its card until the gate file is there.
JOB = """
import pathlib, sys, time
sys.path.insert(0, {tests!r})
from fake_driver.fake_driver import FakeGpus
FakeGpus.here().hold_here(2**30)
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.02)
"""


@pytest.fixture
def site(tmp_path: Path, store_url: str) -> Iterator[Site]:
    """Return a site on the fake driver, with a recorder."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="auto")
    made.environ.update(FakeGpus.create(tmp_path / "gpus", (24 * GIB,)).environ(build(tmp_path)))
    made.start_recorder()
    yield made
    made.stop()


def observed_bytes(site: Site) -> int:
    """Return what the last heartbeat has reported of the only run."""
    (status,) = site.queue.devices.all()
    return max((holding.observed_bytes or 0 for holding in status.holdings), default=0)


def test_a_peak_is_at_least_what_was_measured_while_a_worker_was_there(site: Site, tmp_path: Path) -> None:
    """After a time without a worker the peak is a lower bound. `show` says so, and gives no advice."""
    script = tmp_path / "job.py"
    script.write_text(JOB.format(tests=str(SUPPORT), gate=str(tmp_path / "gate")))
    worker = site.start_worker()
    job_id = int(site.cli("submit", "--mem", "6G", "--", sys.executable, str(script)).stdout)
    until(lambda: observed_bytes(site) >= GIB, what="the first samples")

    site.end(worker)
    ended_s = time.monotonic()
    until(lambda: time.monotonic() - ended_s > ADOPTED_GAP_S, what="a time without samples")
    site.start_worker()
    until(lambda: "adopted" in site.log(), what="the adoption")
    (tmp_path / "gate").touch()

    run = site.until_recorded(job_id).last_run
    assert run is not None
    assert ["peak_in_part"] == [note.kind for note in run.notes]
    shown = site.cli("show", str(job_id)).stdout
    assert "peak at least 1G" in shown
    assert "used at least 1G: its memory was not measured for" in shown


CLONE_NEWNS, MS_REC, MS_PRIVATE, PR_SET_DUMPABLE, NOBODY = 0x20000, 0x4000, 1 << 18, 4, 65534


def under_hidepid(how: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of *work* under an account to which /proc hides other processes.

    Skips where that needs root.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        reported: dict[str, Any] = {"failed": "it did not come so far"}
        try:
            reported = _hidden(how, work)
        except Exception as error:  # noqa: BLE001 - the other side must hear of it
            reported = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            os.write(writer, json.dumps(reported).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as words:
        reported = json.load(words)
    os.waitpid(child, 0)
    if "skip" in reported:
        pytest.skip(reported["skip"])
    assert "failed" not in reported, reported
    return reported


def _hidden(how: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    work()  # imports lazily imported modules now: the account ``nobody`` may not be able to read them
    libc = ctypes.CDLL(None, use_errno=True)
    private = libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
    if not private or libc.mount(b"proc", b"/proc", b"proc", 0, f"hidepid={how}".encode()) != 0:
        return {"skip": f"a /proc of its own needs root: {os.strerror(ctypes.get_errno())}"}
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # like any process that this account has started
    return work()


def surroundings() -> dict[str, Any]:
    """Do all that a worker does with /proc, with another process of its own account beside it."""
    token = f"1.hidden-{os.getpid()}"
    child = os.fork()
    if child == 0:
        os.execve("/bin/sleep", ["sleep", "1000"], {TOKEN: token})  # noqa: S606 - no shell is wanted
    deadline = time.monotonic() + 30
    while not process_tree.carrying(TOKEN, token) and time.monotonic() < deadline:
        os.sched_yield()
    identity = ProcessIdentity.of(child)
    simulated, cpu = SimulatedBackend("h", "sim:1x1G"), CpuBackend("h")
    (device,), (processor,) = simulated.devices(), cpu.devices()
    external = external_process_of(1, 5)
    return {
        "hidden": process_tree.hides_others(),
        "init": str(ProcessIdentity.of(1)),
        "below": child in process_tree.below(os.getpid()),
        "alive": identity is not None and identity.alive(),
        "owned": owners([1, child], {token: None}).get(child) == token,
        "simulated": simulated.reading(device).total_bytes,
        "cpu": cpu.reading(processor).free_bytes > 0,
        "used": (cpu.used_by(cpu.reading(processor), [1, child]) or 0) > 0,
        "external": [external.user, external.command],
        "swept": process_tree.sweep(TOKEN, token),
        "ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
    }


@pytest.mark.parametrize("how", [1, 2], ids=["no access", "invisible"])
def test_a_proc_that_hides_others_hides_nothing_of_ours(how: int) -> None:
    """With hidepid only external processes cannot be named.

    Runs are still found, measured and swept.
    """
    reported = under_hidepid(how, surroundings)

    nameless = reported.pop("external")
    assert nameless[1] is None
    assert {
        "hidden": True,
        "init": "None",
        "below": True,
        "alive": True,
        "owned": True,
        "simulated": 2**30,
        "cpu": True,
        "used": True,
        "swept": 1,
        "ended": -signal.SIGKILL,
    } == reported


def test_a_usual_proc_hides_nobody() -> None:
    """A /proc without hidepid is not reported as hiding processes.

    Otherwise every worker would warn without a reason.
    """
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    if any(where == "/proc" and "hidepid=" in options for _, where, _, options, *_ in mounts):
        pytest.skip("this very /proc hides others")

    assert not process_tree.hides_others()
    assert ProcessIdentity.of(1) is not None
