"""Tests of the admission check beside real processes, other workers' runs and the fake driver."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from fake_driver.fake_driver import FakeGpus, build, compiler
from fake_driver.far_backend import FarBackend
from unanswered import unanswered

from gpuqueue.clock import SystemClock
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive
from gpuqueue.settings.parsers import OnMemoryErrors
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import GIB, MIB
from workers.claimer import Claimer
from workers.devices.mps import CONTROL_SOCKET
from workers.measure.active_runs import LiveRun, LiveRuns
from workers.measure.admission import AdmissionCheck
from workers.measure.monitor import MOMENT_S, DeviceMonitor
from workers.measure.sampler import enforce_limit
from workers.run.directory import Held, RunDir
from workers.services.adoption import Adoption
from workers.services.heartbeats import Heartbeats
from workers.shim import tree
from workers.threads import SteadyEvent

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")

RESERVED = GIB // 2
#: A compute mode of NVML, which lets in one process.
EXCLUSIVE = 3


class Later(SystemClock):
    """A clock of a machine that is *ahead* in time."""

    ahead = timedelta(0)
    moments = 0

    def monotonic_s(self) -> float:
        """Return the present time, later by the moments that have passed."""
        return super().monotonic_s() + 2 * MOMENT_S * self.moments

    def now(self) -> datetime:
        """Return the present time plus *ahead*."""
        return datetime.now(timezone.utc) + self.ahead


class Host:
    """A host with two 24 GiB cards, with an admission check and a worker's runs for each."""

    def __init__(self, place: Path, fake: FakeGpus, backend: FarBackend) -> None:
        environ = {"GPUQUEUE_STATE_DIR": str(place / "state"), "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_HEADROOM": "0"}
        self.settings = Settings.load({**environ, "GPUQUEUE_HOST": "testhost"})
        self.fake = fake
        self.clock = Later()
        self.backend = backend
        self.devices = backend.devices()
        self.runs = [LiveRuns() for _ in self.devices]
        self.monitors = [DeviceMonitor(self.settings, backend, runs, self.clock) for runs in self.runs]
        self.checks = [
            AdmissionCheck(self.settings, monitor, device, self.clock)
            for device, monitor in zip(self.devices, self.monitors, strict=True)
        ]

    def run(self, job_id: int, gib: int, *cards: int, token: str | None = None) -> LiveRun:
        """Create the run directory of a job that was just claimed, with a lease of *gib* GiB on each of *cards*."""
        devices = tuple(RunDevice(uuid=self.devices[card].uuid, lease_bytes=gib * GIB) for card in cards)
        held = Held(job_id=job_id, token=token or f"1.{job_id}", devices=devices)
        return LiveRun(held=held, directory=RunDir.create(self.settings.runs_dir, held), since_s=0.0)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Return a host on the fake driver."""
    fake = FakeGpus.create(tmp_path / "gpus", (24 * GIB, 24 * GIB), reserved_bytes=RESERVED)
    with contextlib.closing(FarBackend("gpu", fake.environ(build(tmp_path)))) as backend:
        yield Host(tmp_path, fake, backend)


@pytest.fixture
def shim() -> Iterator[Callable[[LiveRun], int]]:
    """Return a function that starts a shim with one process for a run, and returns the process's pid."""
    started: list[subprocess.Popen[str]] = []

    def start(run: LiveRun) -> int:
        process = subprocess.Popen(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        started.append(process)
        (run.directory.path / "pid").write_text(f"{ProcessIdentity.of(process.pid)}\n")
        assert process.stdout
        below = int(process.stdout.readline())
        pids.append(below)
        return below

    pids: list[int] = []
    yield start
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, 9)
    for process in started:
        process.kill()
        process.communicate()


def kill_and_wait(pid: int) -> None:
    """Kill a process and wait until its parent has reaped it: the driver lists it until then."""
    os.kill(pid, 9)
    until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the process")


def test_an_ended_run_of_another_worker_hides_no_external_process(
    host: Host, queue: JobQueue, shim: Callable[[LiveRun], int]
) -> None:
    """The memory that a heartbeat reported for a run does not count as free after the run ended.

    It used to hide an external process for ten seconds, until the next heartbeat.
    """
    heartbeats = [
        Heartbeats(host.settings, queue, admission, runs, host.clock, Adoption(host.settings, queue, runs, worker="w"))
        for admission, runs in zip(host.checks, host.runs, strict=True)
    ]
    for each in heartbeats:
        each.heartbeat()
    job = queue.requests.submit(make_spec(mem_bytes=10 * GIB, gpus=2))
    claim = queue.runs.claim(host.checks[0].offer(), worker="w0", lease_s=300, nonce="aa")
    assert claim is not None
    pair = host.run(job.id, 10, 0, 1, token=claim.token)
    process = shim(pair)
    host.fake.hold(1, process, 10 * GIB)
    observed = {device.uuid: 10 * GIB for device in host.devices}
    queue.devices.heartbeat(
        host.checks[0].offer(), [Alive(job_id=job.id, token=claim.token, observed=observed)], lease_s=300
    )
    heartbeats[1].heartbeat()

    kill_and_wait(process)
    queue.runs.finish(
        job.id,
        claim.token,
        state=JobState.SUCCEEDED,
        ending=Ending.from_status(0),
        duration_s=1.0,
        devices=pair.held.devices,
    )
    pair.directory.settle()
    host.fake.hold(1, os.getpid(), 20 * GIB)

    offer = host.checks[1].offer()
    assert RESERVED + 20 * GIB == offer.external_bytes
    queue.requests.submit(make_spec(mem_bytes=6 * GIB))
    assert queue.runs.claim(offer, worker="w1", lease_s=300, nonce="bb") is None


def test_the_second_check_counts_grants_to_other_workers(host: Host) -> None:
    """The second check counts what another worker was allocated since the last heartbeat.

    A job on both cards, led by the other worker, was claimed a moment ago. Neither job may start beside an external
    process.
    """
    ours = host.run(1, 10, 1)
    host.runs[1].add(ours)
    pair = host.run(2, 10, 0, 1)
    host.runs[0].add(pair)
    assert [None, None] == [host.checks[0].still_fits(pair), host.checks[1].still_fits(ours)]

    host.fake.hold(1, os.getpid(), 4 * GIB)
    host.clock.moments += 1

    for admission, run in ((host.checks[1], ours), (host.checks[0], pair)):
        output = admission.still_fits(run)
        assert output is not None
        assert output.startswith(f"{GIB // 2} bytes of {host.devices[1].uuid}")


def test_the_sample_of_the_claim_is_reused_at_the_start(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim's own reading is reused a moment later, but not an old one.

    Each short job used to cause two readings within some milliseconds.
    """
    readings: list[object] = []
    reading = host.backend.reading
    monkeypatch.setattr(host.backend, "reading", lambda device: readings.append(device) or reading(device))
    admission, ours, since_s = host.checks[1], host.run(1, 10, 1), host.clock.monotonic_s()
    monkeypatch.setattr(host.clock, "monotonic_s", lambda: since_s)
    admission.offer()
    host.runs[1].add(ours)

    assert admission.still_fits(ours) is None
    assert 1 == len(readings)

    host.fake.hold(1, os.getpid(), 20 * GIB)
    monkeypatch.setattr(host.clock, "monotonic_s", lambda: since_s + 2 * MOMENT_S)
    assert admission.still_fits(ours) is not None
    assert 2 == len(readings)


def test_a_device_takes_no_job_while_the_daemon_of_mps_is_away(host: Host, tmp_path: Path) -> None:
    """Its offer has no slots and the reason, a claimed run does not start, and both end once the daemon is back."""
    control = tmp_path / "mps" / CONTROL_SOCKET
    environ = {"GPUQUEUE_STATE_DIR": str(tmp_path / "state"), "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_MPS": "true"}
    settings = Settings.load({**environ, "GPUQUEUE_MPS_PIPE_DIRECTORY": str(control.parent)})
    admission = AdmissionCheck(settings, host.monitors[0], host.devices[0], host.clock)
    ours = host.run(1, 10, 0)
    control.parent.mkdir()
    control.touch()
    ready = admission.offer()
    assert (None, None) == (ready.trouble, admission.still_fits(ours))

    control.unlink()
    closed = admission.offer()

    assert (0, f"control daemon at {control.parent} has ended" in str(closed.trouble)) == (closed.slots, True)
    assert closed.external_bytes == ready.external_bytes
    assert closed.trouble == admission.still_fits(ours)
    control.touch()
    assert (ready.slots, None, None) == (admission.offer().slots, admission.offer().trouble, admission.still_fits(ours))


def test_a_device_is_closed_while_an_unkillable_process_holds_it(host: Host, tmp_path: Path) -> None:
    """A process that was killed and does not end is named with its memory, which is never given away."""
    with ExitStack() as processes, unanswered(tmp_path / "mount") as asked:
        process = processes.enter_context(subprocess.Popen(["/usr/bin/stat", str(tmp_path / "mount" / "x")]))
        assert asked.wait(30)
        host.fake.hold(0, process.pid, 5 * GIB)
        for killed in (False, True):
            if killed:
                process.kill()
            for _ in range(2):
                assert (None, 5 * GIB + RESERVED) == (
                    host.checks[0].offer().trouble,
                    host.checks[0].offer().external_bytes,
                )
        host.clock.moments += int(tree.UNKILLABLE_S / MOMENT_S)

        offers = [check.offer() for check in host.checks]
        words = f"it is held by an unkillable process: SIGKILL does not end process {process.pid} of "
        assert str(offers[0].trouble).startswith(words)
        assert str(offers[0].trouble).endswith(" (5G)")
        assert (0, 5 * GIB + RESERVED, None) == (offers[0].slots, offers[0].external_bytes, offers[1].trouble)
    assert host.checks[0].offer().trouble is None


def test_an_offer_says_what_the_health_check_has_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offer has the utilisation, temperature and power of the last health check, and asks the driver no second time.

    They used to stay in the worker.
    """
    gpu = host.fake.state.gpus[0]
    gpu.utilisation, gpu.temperature, gpu.power_mw = 97, 71, 312_400
    asked: list[str] = []
    health = host.backend.health
    monkeypatch.setattr(host.backend, "health", lambda device: asked.append(device.uuid) or health(device))

    offers = [host.checks[0].offer() for _ in range(3)]

    for offer in offers:
        assert (0.97, 71.0, 312.4) == (offer.health.utilisation, offer.health.temperature_c, offer.health.power_w)
    assert [host.devices[0].uuid] == asked


def test_a_run_that_ended_after_the_claim_is_sampled_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, shim: Callable[[LiveRun], int]
) -> None:
    """The device is read again if a run has ended since the claim's reading.

    That reading still has the run's memory, which would be taken for that of an external process.
    """
    admission, before, ours, since_s = host.checks[1], host.run(1, 20, 1), host.run(2, 20, 1), host.clock.monotonic_s()
    monkeypatch.setattr(host.clock, "monotonic_s", lambda: since_s)
    host.runs[1].add(before)
    process = shim(before)
    host.fake.hold(1, process, 20 * GIB)
    admission.offer()
    kill_and_wait(process)
    before.directory.settle()
    host.runs[1].remove(before.held.token)
    host.fake.hold(1, process, 0)
    host.runs[1].add(ours)

    assert admission.still_fits(ours) is None


def test_claims_of_the_same_moment_use_one_sample(
    host: Host, queue: JobQueue, monkeypatch: pytest.MonkeyPatch, shim: Callable[[LiveRun], int]
) -> None:
    """A claim uses a sample of a moment ago, unless a run in it has ended since.

    Each short job used to cost a sample for each of its claims.
    """
    admission, runs, monitor, since_s = host.checks[1], host.runs[1], host.monitors[1], host.clock.monotonic_s()
    heartbeats = Heartbeats(
        host.settings, queue, admission, runs, host.clock, Adoption(host.settings, queue, runs, worker="w")
    )
    heartbeats.heartbeat()
    claimer = Claimer(host.settings, queue, monitor, admission, runs, host.clock, worker="w")
    readings: list[object] = []
    reading = host.backend.reading
    monkeypatch.setattr(host.backend, "reading", lambda device: readings.append(device) or reading(device))
    monkeypatch.setattr(host.clock, "monotonic_s", lambda: since_s + 1000 * MOMENT_S)
    before = host.run(77, 20, 1)
    runs.add(before)
    process = shim(before)
    host.fake.hold(1, process, 20 * GIB)
    stopping = SteadyEvent()
    for gib in (1, 2):
        queue.requests.submit(make_spec(mem_bytes=gib * GIB))
        assert claimer._claim(stopping) is not None
    assert 1 == len(readings)

    kill_and_wait(process)
    before.directory.settle()
    runs.remove(before.held.token)
    host.fake.hold(1, process, 0)
    queue.requests.submit(make_spec(mem_bytes=20 * GIB))
    assert claimer._claim(stopping) is not None
    assert 2 == len(readings)


def test_the_used_part_of_a_lease_is_not_counted_twice(host: Host, shim: Callable[[LiveRun], int]) -> None:
    """For another worker's run only the unused part of its lease counts, and none if it used more."""
    pair = host.run(2, 10, 0, 1)
    process = shim(pair)
    ours = host.run(1, 13, 1)
    host.runs[1].add(ours)
    host.fake.hold(1, process, 9 * GIB)
    assert host.checks[1].still_fits(ours) is None

    host.fake.hold(1, process, 11 * GIB)
    host.clock.moments += 1

    assert host.checks[1].still_fits(ours) is not None


def test_a_driver_that_does_not_say_who_holds_what_lets_a_second_job_start(
    host: Host, shim: Callable[[LiveRun], int]
) -> None:
    """A second job starts although the driver reports no memory per process.

    The first job's memory appears as used memory without an owner, and its lease counts it already.
    """
    first, second = host.run(1, 10, 1), host.run(2, 13, 1)
    for run in (first, second):
        host.runs[1].add(run)
    host.fake.hold(1, shim(first), 10 * GIB, not_available=True)

    assert host.checks[1].still_fits(second) is None


def test_a_run_that_nobody_settles_keeps_no_memory_for_ever(host: Host, shim: Callable[[LiveRun], int]) -> None:
    """A run of a worker that is down does not keep its memory for ever.

    Its memory is free once its shim has ended or its claim has expired.
    """
    dead, _never_started = host.run(2, 10, 0, 1), host.run(3, 10, 0, 1)
    ours = host.run(1, 20, 1)
    host.runs[1].add(ours)
    below = ProcessIdentity.of(shim(dead))
    (dead.directory.path / "pid").write_text(f"{replace(below, started=1)}\n")  # a later process has its pid
    output = host.checks[1].still_fits(ours)
    assert output is not None
    assert output.startswith(f"{30 * GIB + RESERVED - 24 * GIB} bytes"), (
        "the claim that is young may still become a run"
    )

    host.clock.ahead = timedelta(seconds=host.settings.lease_s + 1)

    assert host.checks[1].still_fits(ours) is None


def test_a_job_that_uses_memory_allocated_by_another_worker_is_ended(
    host: Host, shim: Callable[[LiveRun], int]
) -> None:
    """A job that exceeds its request at the cost of another job's lease is ended.

    A small excess is tolerated, but not while it takes memory from a job on both cards that is still loading.
    """
    ours = host.run(1, 3, 1)
    host.runs[1].add(ours)
    pair = host.run(2, 20, 0, 1)
    device, held_bytes = host.devices[1], 3 * GIB + 200 * MIB

    def sample() -> bool:
        enforce_limit(ours, host.monitors[1].sample(device))
        return (ours.directory.path / "cancel").exists()

    host.fake.hold(1, shim(ours), held_bytes)
    assert [False, False] == [sample(), sample()]

    host.fake.hold(1, os.getpid(), GIB)
    assert [False, True] == [sample(), sample()]
    assert pair.directory.held() is not None


def test_a_card_in_exclusive_process_mode_takes_one_job_at_a_time(host: Host) -> None:
    """A second process could not use the card. Through MPS all jobs are one process of the card."""
    host.fake.state.gpus[0].compute_mode = EXCLUSIVE
    with_mps = replace(host.settings, mps=True)
    beside = AdmissionCheck(with_mps, host.monitors[0], host.devices[0], host.clock)
    health = host.monitors[0].health(host.devices[0])

    assert [1, host.settings.slots] == [check.offer().slots for check in host.checks]
    assert host.settings.slots == beside._slots(health)


def test_the_site_sets_the_temperature_from_which_a_card_takes_no_job(host: Host) -> None:
    """Without the setting it is a little below the card's own limit of 83 °C."""
    host.fake.state.gpus[0].temperature = 75
    settings = replace(host.settings, temperature_limit_c=70)
    strict = AdmissionCheck(settings, host.monitors[0], host.devices[0], host.clock)

    assert host.checks[0].offer().trouble is None
    assert "it is hot: 75 °C, and the limit for new jobs is 70 °C" == strict.offer().trouble


def test_an_xid_error_is_noted_on_the_jobs_of_the_card(host: Host, shim: Callable[[LiveRun], int]) -> None:
    """Each error once, and only on the jobs that run on the card. One that needs a reset closes the card."""
    runs = [host.run(1, 4, 0), host.run(2, 4, 1)]
    for run, known in zip(runs, host.runs, strict=True):
        known.add(run)
        shim(run)
    for monitor, device in zip(host.monitors, host.devices, strict=True):
        monitor.health(device)
    host.fake.report_xid(0, 31)
    for _ in range(2):
        host.monitors[0].health(host.devices[0])
        host.monitors[1].health(host.devices[1])

    noted = (
        "the driver reported Xid 31, a program used memory that it does not have; a job beside it may have caused it"
    )
    assert [[noted], []] == [list(run.notes) for run in runs]
    assert host.checks[0].offer().trouble is None
    host.fake.report_xid(0, 79)
    host.monitors[0].health(host.devices[0])
    assert "Xid 79, the GPU has fallen off the bus: reset the GPU" in (host.checks[0].offer().trouble or "")


def test_the_site_closes_cards_with_memory_errors(host: Host) -> None:
    host.fake.state.gpus[0].ecc = 1
    settings = replace(host.settings, on_memory_errors=OnMemoryErrors.CLOSE)
    strict = AdmissionCheck(settings, host.monitors[0], host.devices[0], host.clock)

    assert host.checks[0].offer().trouble is None
    assert "the site closes such devices: 1 memory error that could not be corrected" in (strict.offer().trouble or "")
