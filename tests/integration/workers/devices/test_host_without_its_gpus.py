"""Tests of a host that finds no GPU where it has served some, and of one that never had any."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import pytest
from bounded import until
from factories import make_device, make_offer, serve
from fake_driver.fake_driver import DRIVER_NOT_LOADED, FakeGpus, build, compiler
from own_home import Home
from site_of_one import Site

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import GIB
from workers.devices.cpu import CpuBackend
from workers.services import host as host_module
from workers.services.host import Host

WITH_CONSTANT = Path(__file__).parents[3] / "support" / "with_constant.py"


@pytest.mark.parametrize(("spec", "known"), [("auto", True), ("auto,cpu", True), ("cpu", False)])
def test_a_host_that_comes_back_without_its_gpus_does_not_forget_them(
    site: Site, store_url: str, spec: str, *, known: bool
) -> None:
    """A host that restarts without its GPUs does not forget them.

    Otherwise a driver that is not loaded after an upgrade would move every waiting job to the CPU without a question.
    """
    name = site.settings.host
    serve(
        site.queue,
        make_offer("GPU-0", host=name),
        make_offer("sim-0", host=name, device=make_device("sim-0", kind=DeviceKind.SIMULATED)),
    )
    client = connect(store_url)
    for uuid, kind in (("GPU-0", "gpu"), ("sim-0", "simulated")):  # known from before the reboot
        client.hset(keys.host_devices(name), uuid, f"{24 * GIB}:0:0:1:8::{kind}")
    client.close()

    cpu = CpuBackend(name, no_gpu="the NVIDIA driver is not loaded" if known else None)
    Host(site.settings, cpu.devices(), spec, record=False)._take_over()

    assert (["GPU-0"] if known else []) == [each.device.uuid for each in site.queue.devices.all()]


CLOSED, SERVED = Device.unidentified(1, "here"), make_device("GPU-1", index=1)


class Lists:
    """In place of `DeviceList`: the next of *answers* at each poll. An error is raised."""

    answers: ClassVar[list[tuple[Device, ...] | GpuQueueError | None]] = []

    def __init__(self, spec: str, *, checked: bool) -> None:
        assert spec in {"gpu", "auto", "auto,cpu"}
        assert not checked

    def poll(self) -> tuple[Device, ...] | None:
        """Return the next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, GpuQueueError):
            raise answer
        return answer


def test_a_card_that_answers_later_is_served_by_a_worker_of_its_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices are listed until the card answers. The unknown GPU leaves the queue, and no further list is made."""
    monkeypatch.setattr(host_module, "DeviceList", Lists)
    monkeypatch.setattr(host_module, "LIST_PAUSES_S", (0.0,))
    first = make_device("GPU-0")
    serve(site.queue, make_offer(CLOSED.uuid, host=site.settings.host, device=CLOSED))
    host = Host(site.settings, (first, CLOSED), "gpu", record=False)
    Lists.answers = [None, GpuQueueError("the driver hangs"), (first, CLOSED), (first, SERVED)]

    while Lists.answers:
        assert [first.uuid, CLOSED.uuid] == [child.name for child in host._workers]
        host._list_again()

    assert [first.uuid, SERVED.uuid] == [child.name for child in host._workers]
    assert [] == site.queue.devices.all()
    host._list_again()  # would fail: there is no answer


@pytest.mark.parametrize("spec", ["auto", "auto,cpu"])
def test_gpus_that_are_found_later_are_served_in_place_of_the_cpu(
    site: Site, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    """While none is found, the CPU is served. A CPU that was asked for gets a worker that says nothing of GPUs."""
    monkeypatch.setattr(host_module, "DeviceList", Lists)
    monkeypatch.setattr(host_module, "LIST_PAUSES_S", (0.0,))
    name = site.settings.host
    cpu = CpuBackend(name, no_gpu="the NVIDIA driver is not loaded").devices()
    serve(site.queue, make_offer(cpu[0].uuid, host=name, device=cpu[0]))
    host = Host(site.settings, cpu, spec, record=False)
    listed = (SERVED, *(CpuBackend(name).devices() if spec.endswith(",cpu") else ()))
    Lists.answers = [CpuBackend(name, no_gpu="the NVIDIA driver lists none").devices(), listed]

    host._list_again()
    assert [cpu[0].uuid] == [child.name for child in host._workers]
    host._list_again()

    assert [device.uuid for device in listed] == [child.name for child in host._workers]
    assert not any("--no-gpu" in child.args for child in host._workers)
    assert [device.uuid for device in listed[1:]] == [status.device.uuid for status in site.queue.devices.all()]
    host._list_again()  # would fail: there is no answer


# ---- with the driver, here the fake one ------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return the state of a fake driver with a 24 GiB card."""
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB,))


@pytest.fixture
def machine(home: Home, fake: FakeGpus, tmp_path: Path) -> Home:
    """Return a person's machine with the fake driver."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    home.environ |= {**fake.environ(build(tmp_path)), "GPUQUEUE_HEARTBEAT": "0.2s", "GPUQUEUE_POLL": "0.5s"}
    return home


@pytest.mark.full
def test_a_machine_whose_driver_broke_between_two_ups_says_so_and_trains_nothing_on_its_cpu(
    machine: Home, fake: FakeGpus
) -> None:
    """After `down` and `up` without a driver every job ran on the CPU, and no command had a word about it."""
    machine("up")
    machine("down")
    fake.state.init_error = DRIVER_NOT_LOADED
    line = f"no NVIDIA GPU found on {machine.state.name}: the NVIDIA driver is not loaded (NVML error 9); "
    line += "it has served GPUs before, so jobs without --device wait for one"

    up = machine("up")
    submitted = machine("submit", "--mem", "1G", "--", "true")
    machine("run", "--mem", "100M", "--device", "any", "--", "true")

    assert line in up
    assert "gpuqueue: warning: repair the driver; on a machine without a GPU: gpuqueue down" in up
    assert f"{line}. With --device any the job runs on the CPU" in submitted
    assert "no gpu" in machine("queue")
    assert "state      queued (no gpu)" in machine("show", "1")
    why = machine("why", "1")
    assert f"start  not before {machine.state.name} finds a GPU" in why
    assert line in why
    assert line in machine("gpus")
    assert line in machine.output_of("doctor", "-q")

    machine("down")
    up = machine("up", "--devices", "cpu")
    assert "no NVIDIA GPU found" not in up
    assert "no NVIDIA GPU found" not in machine.output_of("doctor", "-q")
    assert "no GPU is known" not in machine("run", "--mem", "100M", "--", "true")


@pytest.mark.full
def test_a_machine_without_a_gpu_says_at_up_and_at_submit_that_jobs_run_on_the_cpu(
    machine: Home, fake: FakeGpus
) -> None:
    """A machine that has never served a GPU runs them there, as before, and says it in one line."""
    fake.state.gpu_count = 0
    up = machine("up")

    assert f"no NVIDIA GPU found on {machine.state.name}: the NVIDIA driver lists none; jobs run on the CPU" in up
    ran = machine("run", "--mem", "100M", "--", "true")
    assert "gpuqueue: no GPU is known here: the job runs on the CPU. With --device gpu it waits for one" in ran
    assert "no GPU is known" not in machine("run", "--mem", "100M", "--device", "cpu", "--", "true")


@pytest.mark.full
def test_a_driver_that_answers_later_gets_its_jobs_once_the_cpu_is_idle(
    site: Site, fake: FakeGpus, tmp_path: Path
) -> None:
    """At boot the queue may start before the driver: the machine served its CPU until somebody started it again."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    site.environ |= {**fake.environ(build(tmp_path)), "GPUQUEUE_DEVICES": "auto"}
    fake.state.init_error = DRIVER_NOT_LOADED
    site.start_recorder()
    constant = "workers.services.host:LIST_PAUSES_S=(0.2,)"
    host = site.spawn_command([sys.executable, str(WITH_CONSTANT), constant, "host", "--no-recorder"])
    until(site.queue.devices.all, what="the worker of the CPU")
    assert ["cpu"] == [str(each.device.kind) for each in site.queue.devices.all()]
    on_cpu = int(site.cli("submit", "--mem", "100M", "--", "sleep", "600").stdout)
    site.until_state(on_cpu, JobState.RUNNING)

    searches = fake.state.inits
    fake.state.init_error = 0
    later = int(site.cli("submit", "--mem", "1G", "--device", "gpu", "--", "true").stdout)
    until(lambda: fake.state.inits > searches, what="a search that finds the card")
    assert JobState.RUNNING is site.client.jobs.get(on_cpu).state
    assert JobState.QUEUED is site.client.jobs.get(later).state
    site.cli("cancel", str(on_cpu))

    assert JobState.SUCCEEDED is site.until_recorded(later).job.state
    until(lambda: [fake.uuid(0)] == [each.device.uuid for each in site.queue.devices.all()], what="the CPU withdrawn")
    assert 0 == site.end(host)
