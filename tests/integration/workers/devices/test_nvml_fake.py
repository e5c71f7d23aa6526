"""Tests of NVML failures, which the fake driver can simulate."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from typing import TYPE_CHECKING

import pytest
from bounded import until
from fake_driver.fake_driver import (
    BY_PROCESS,
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    GRAPHICS_LIST,
    LIBRARY,
    MPS_LIST,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    VERSION_MISMATCH,
    FakeGpus,
    build,
    compiler,
)
from fake_driver.far_backend import WELL, FarBackend

from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceKind, Utilisation
from workers.devices.backend import DeviceTrouble
from workers.worker import distances_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuqueue.model.device import Device

    Start = Callable[[str], FarBackend]

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")

GIB = 2**30


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return two GPUs, half a GiB of each reserved."""
    return FakeGpus.create(tmp_path / "state", (24 * GIB, 80 * GIB), reserved_bytes=GIB // 2)


@pytest.fixture
def start(fake: FakeGpus, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts backends that see the fake driver."""
    library = build(tmp_path)
    with contextlib.ExitStack() as stack:
        yield lambda spec: stack.enter_context(contextlib.closing(FarBackend(spec, fake.environ(library))))


def test_a_lost_gpu_is_trouble_until_it_is_back(fake: FakeGpus, start: Start) -> None:
    """A GPU lost under a running worker is trouble, its neighbour goes on, and it works again when it is back."""
    backend = start("auto")
    before = backend.devices()
    fake.state.gpus[1].error = GPU_IS_LOST
    with pytest.raises(DeviceTrouble, match="lost"):
        backend.reading(before[1])
    assert 23.5 * GIB == backend.reading(before[0]).free_bytes
    assert before == backend.devices()
    fake.state.gpus[1].error = 0
    assert 79.5 * GIB == backend.reading(before[1]).free_bytes


def test_memory_freed_during_a_sample_hides_no_other_memory(fake: FakeGpus, start: Start) -> None:
    """Memory that a run frees during a reading is not subtracted from the memory of others.

    The process list and the memory are two calls.
    """
    backend = start("gpu")
    device = backend.devices()[1]
    sizes = iter(range(60 * GIB, GIB, -(2**21)))
    done = threading.Event()

    def give_back() -> None:
        for size_bytes in sizes:
            fake.hold(1, os.getpid(), size_bytes)
            if done.wait(0.0005):
                return

    fake.hold(1, os.getpid(), next(sizes))
    thread = threading.Thread(target=give_back)
    thread.start()
    try:
        readings = [backend.reading(device) for _ in range(1500)]
    finally:
        done.set()
        thread.join()
    unnamed = [reading.used_bytes - sum(held or 0 for held in reading.processes.values()) for reading in readings]
    assert GIB // 2 <= min(unnamed)
    assert 100 < len({reading.used_bytes for reading in readings}), "it moved all the while"


@pytest.mark.parametrize("error", [GPU_IS_LOST, RESET_REQUIRED, UNKNOWN, NOT_SUPPORTED, DRIVER_NOT_LOADED])
def test_a_gpu_that_fails_from_the_start_is_listed_without_an_identity(
    fake: FakeGpus, start: Start, error: int
) -> None:
    """A GPU that never answered is in the list with its index and its trouble; the others are served."""
    fake.state.gpus[0].error = error
    backend = start("auto")
    silent, well = backend.devices()
    assert ("card-0-testhost", 0, 0) == (silent.uuid, silent.index, silent.total_bytes)
    with pytest.raises(DeviceTrouble, match=rf"NVML error {error}\b"):
        backend.reading(silent)
    assert 79.5 * GIB == backend.reading(well).free_bytes
    assert 1 == fake.state.inits, "the session of the others goes on"
    fake.state.gpus[0].error = 0
    assert [fake.uuid(0), fake.uuid(1)] == [device.uuid for device in backend.devices()]


def test_only_the_named_gpus_are_asked(fake: FakeGpus, start: Start) -> None:
    """A GPU that the site has left out is not asked, and one that does not exist is listed with its trouble."""
    fake.state.gpus[0].hang = 1
    try:
        backend = start("gpu:1,7")
        well, missing = backend.devices()
        assert (fake.uuid(1), 7) == (well.uuid, missing.index)
        with pytest.raises(DeviceTrouble, match="NVML error 2"):
            backend.health(missing)
        assert [DeviceKind.GPU, DeviceKind.CPU] == [device.kind for device in start("gpu:1,cpu").devices()]
    finally:
        fake.state.gpus[0].hang = 0


@pytest.mark.full
def test_a_gpu_that_hangs_from_the_start_holds_up_nobody_else(fake: FakeGpus, start: Start) -> None:
    """The list has the other GPUs, and the one that hangs with its trouble until it answers."""
    fake.state.gpus[1].hang = 1
    try:
        backend = start("auto")
        well, silent = backend.devices()
        assert (fake.uuid(0), "card-1-testhost") == (well.uuid, silent.uuid)
        assert {} == distances_from(backend, well)
        with pytest.raises(DeviceTrouble, match="GPU 1 is stale since"):
            backend.reading(silent)
        assert 23.5 * GIB == backend.reading(well).free_bytes
    finally:
        fake.state.gpus[1].hang = 0
    assert until(lambda: [fake.uuid(0), fake.uuid(1)] == [device.uuid for device in backend.devices()])


def test_all_gpus_lost_is_trouble_and_never_the_cpu(fake: FakeGpus, start: Start) -> None:
    """A machine whose every GPU is lost does not quietly become a CPU worker."""
    fake.state.gpus[0].error = fake.state.gpus[1].error = GPU_IS_LOST
    with pytest.raises(DeviceTrouble, match="lost"):
        start("auto")


@pytest.mark.parametrize("spec", ["auto", "gpu"])
def test_a_version_mismatch_is_reported_with_its_remedy(fake: FakeGpus, start: Start, spec: str) -> None:
    """A driver that was updated under its running module is trouble, with a message that names the remedy."""
    fake.state.init_error = VERSION_MISMATCH
    with pytest.raises(DeviceTrouble, match="reboot or reload the driver"):
        start(spec)


def test_a_repaired_driver_is_used_without_a_restart(fake: FakeGpus, start: Start) -> None:
    """The backend that failed to open its session opens it once the driver is repaired."""
    fake.state.init_error = VERSION_MISMATCH
    backend = start("nvml")
    for _ in range(2):
        with pytest.raises(DeviceTrouble, match="reboot or reload the driver"):
            backend.devices()
    fake.state.init_error = 0
    assert 2 == len(backend.devices())


def test_a_driver_that_fails_and_comes_back_gets_a_new_session(fake: FakeGpus, start: Start) -> None:
    """A session that dies is closed and opened again by the next reading, and only once."""
    backend = start("auto")
    device = backend.devices()[0]
    fake.state.call_error, fake.state.init_error = UNKNOWN, VERSION_MISMATCH
    with pytest.raises(DeviceTrouble, match="unknown reason"):
        backend.reading(device)
    with pytest.raises(DeviceTrouble, match="different versions"):
        backend.reading(device)
    fake.state.call_error = fake.state.init_error = 0
    assert 23.5 * GIB == backend.reading(device).free_bytes
    assert 23.5 * GIB == backend.reading(device).free_bytes
    assert (2, 1) == (fake.state.inits, fake.state.shutdowns)


def test_an_old_driver_is_asked_the_old_way(fake: FakeGpus, start: Start) -> None:
    """A driver without the second memory call gives the same figures, and is asked for that call only once."""
    fake.state.v2_missing = 1
    backend = start("auto")
    fake.hold(0, os.getpid(), 3 * GIB)
    device = backend.devices()[0]
    for _ in range(2):
        reading = backend.reading(device)
        assert (24 * GIB, 20.5 * GIB) == (reading.total_bytes, reading.free_bytes)
    assert 1 == fake.state.v2_calls


def test_reserved_memory_is_not_free(fake: FakeGpus, start: Start) -> None:
    """Memory that the driver reserves counts as used."""
    backend = start("auto")
    fake.hold(0, os.getpid(), 3 * GIB)
    reading = backend.reading(backend.devices()[0])
    assert (3.5 * GIB, {os.getpid(): 3 * GIB}) == (reading.used_bytes, reading.processes)


def test_unreported_memory_is_never_zero(fake: FakeGpus, start: Start) -> None:
    """A GPU without memory figures is trouble; a process without one makes the sum unknown."""
    backend = start("auto")
    device = backend.devices()[0]
    fake.hold(0, 4_000_001, 2 * GIB, always_alive=True, not_available=True)
    fake.hold(0, 4_000_002, GIB, always_alive=True)
    reading = backend.reading(device)
    assert {4_000_001: None, 4_000_002: GIB} == reading.processes
    assert backend.used_by(reading, [4_000_001, 4_000_002]) is None
    assert GIB == backend.used_by(reading, [4_000_002])
    assert 0 == backend.used_by(reading, [4_000_003])
    fake.state.gpus[0].memory_error = NOT_SUPPORTED
    with pytest.raises(DeviceTrouble, match="does not support"):
        backend.reading(device)


def test_a_process_in_both_lists_counts_once(fake: FakeGpus, start: Start) -> None:
    """A process that computes and draws counts with its larger figure, and with the known one where one is N/A."""
    backend = start("auto")
    fake.hold(0, 4_000_001, 2 * GIB, always_alive=True)
    fake.hold(0, 4_000_001, 3 * GIB, always_alive=True, graphics=True)
    fake.hold(0, 4_000_002, GIB, always_alive=True, not_available=True)
    fake.hold(0, 4_000_002, GIB, always_alive=True, graphics=True)
    reading = backend.reading(backend.devices()[0])
    assert {4_000_001: 3 * GIB, 4_000_002: GIB} == reading.processes
    assert 19.5 * GIB == reading.free_bytes


def test_without_a_driver_auto_is_the_cpu(fake: FakeGpus, start: Start) -> None:
    """A library without a loaded driver means no GPU: auto takes the CPU, and gpu says what is missing."""
    fake.state.init_error = DRIVER_NOT_LOADED
    for spec in ("auto", "auto,cpu"):
        assert [DeviceKind.CPU] == [device.kind for device in start(spec).devices()]
    for spec in ("gpu", "gpu,cpu"):
        with pytest.raises(BadRequest, match="no NVIDIA GPU"):
            start(spec)


def test_a_driver_without_gpus_is_the_cpu_too(fake: FakeGpus, start: Start) -> None:
    """A driver that lists no GPU is as good as none."""
    fake.state.gpu_count = 0
    assert [DeviceKind.CPU] == [device.kind for device in start("auto").devices()]


def test_without_the_library_auto_is_the_cpu(tmp_path: Path) -> None:
    """A machine without NVIDIA's library is a CPU machine."""
    (tmp_path / LIBRARY).write_bytes(b"not a library")  # hides a real one where there is one
    with contextlib.closing(FarBackend("auto", {"LD_LIBRARY_PATH": str(tmp_path)})) as backend:
        assert [DeviceKind.CPU] == [device.kind for device in backend.devices()]


def test_a_process_of_mps_is_seen(fake: FakeGpus, start: Start) -> None:
    """Clients of MPS have their own list, and a process in two lists counts once, with its larger figure."""
    backend = start("auto")
    fake.hold(0, 4_000_001, 2 * GIB, always_alive=True, mps=True)
    fake.hold(0, 4_000_002, 3 * GIB, always_alive=True, mps=True)
    fake.hold(0, 4_000_002, GIB, always_alive=True)
    device = backend.devices()[0]
    assert {4_000_001: 2 * GIB, 4_000_002: 3 * GIB} == backend.reading(device).processes
    assert 18.5 * GIB == backend.reading(device).free_bytes


@pytest.mark.parametrize("switch", ["unsupported", "missing"])
def test_a_card_that_cannot_draw_and_a_driver_without_mps_have_one_list(
    fake: FakeGpus, start: Start, switch: str
) -> None:
    """Of the three lists only that of computing processes must exist."""
    setattr(fake.state if switch == "missing" else fake.state.gpus[0], switch, MPS_LIST | GRAPHICS_LIST)
    fake.hold(0, 4_000_001, GIB, always_alive=True)
    backend = start("auto")
    assert {4_000_001: GIB} == backend.reading(backend.devices()[0]).processes


def test_a_divided_card_gives_its_instances(fake: FakeGpus, start: Start) -> None:
    """A card with MIG on is not served, but its instances are; empty slots between them are skipped."""
    uuids = fake.divide(1, {0: 20 * GIB, 3: 40 * GIB})
    backend = start("auto")
    whole, small, large = backend.devices()
    assert (fake.uuid(0), None) == (whole.uuid, whole.mig_parent)
    assert [(uuids[0], 200, 20 * GIB), (uuids[1], 203, 40 * GIB)] == [
        (each.uuid, each.index, each.total_bytes) for each in (small, large)
    ]
    assert {(fake.uuid(1), "00000000:02:00.0")} == {(each.mig_parent, each.pci_bus) for each in (small, large)}
    fake.hold(3, 4_000_001, 8 * GIB, always_alive=True)
    assert {4_000_001: 8 * GIB} == backend.reading(large).processes
    assert ({}, 20 * GIB) == (backend.reading(small).processes, backend.reading(small).free_bytes)
    assert (0, 50) == (backend.distance(small, large), backend.distance(whole, large))


def test_an_instance_is_as_warm_as_its_card(fake: FakeGpus, start: Start) -> None:
    """Health figures that an instance does not have are those of its card."""
    fake.divide(0, {1: 10 * GIB})
    fake.state.gpus[0].temperature, fake.state.gpus[0].ecc, fake.state.gpus[2].ecc = 77, 9, 1
    backend = start("auto")
    instance = backend.devices()[1]
    assert dataclasses.replace(WELL, temperature_c=77.0, ecc_uncorrected=1) == backend.health(instance)


def test_a_divided_card_that_is_lost_keeps_its_instances(fake: FakeGpus, start: Start) -> None:
    """Instances of a silent card stay in the list, as a silent card does."""
    fake.divide(1, {0: 20 * GIB})
    backend = start("auto")
    before = backend.devices()
    fake.state.gpus[1].error = fake.state.gpus[2].error = GPU_IS_LOST
    assert before == backend.devices()
    with pytest.raises(DeviceTrouble, match="lost"):
        backend.reading(before[1])


@pytest.mark.full
def test_a_gpu_that_hangs_holds_up_nobody_else(fake: FakeGpus, start: Start) -> None:
    """A call that hangs is trouble after its deadline, and at once from then on; other GPUs are served."""
    backend = start("auto")
    first, second = backend.devices()
    fake.state.gpus[1].hang = 1
    try:
        with pytest.raises(DeviceTrouble, match="has not answered for 5 s"):
            backend.reading(second)
        for _ in range(20):
            with pytest.raises(DeviceTrouble, match="is stale since"):
                backend.health(second)
        assert WELL == backend.health(first)
        assert 23.5 * GIB == backend.reading(first).free_bytes
    finally:
        fake.state.gpus[1].hang = 0
    assert until(lambda: free_bytes(backend, second) == 79.5 * GIB)


def free_bytes(backend: FarBackend, device: Device) -> int | None:
    """Return the free bytes, None while the device is in trouble."""
    try:
        return backend.reading(device).free_bytes
    except DeviceTrouble:
        return None


def test_the_driver_reports_the_utilisation_by_process(fake: FakeGpus, start: Start) -> None:
    """Each process that used the GPU is reported with its share, video engines included; the others are left out."""
    mine, idle, other = os.getpid(), os.getppid(), 1
    for pid in (mine, idle, other):
        fake.hold(1, pid, GIB)
    fake.use(1, mine, 25, memory=10)
    fake.use(1, other, 0, encoder=40)
    backend = start("auto")
    first, second = backend.devices()

    assert {} == backend.utilisations(first)
    assert {
        mine: Utilisation(busy=0.25, memory=0.1),
        other: Utilisation(busy=0.4, memory=0.0),
    } == backend.utilisations(second)


@pytest.mark.parametrize("switch", ["unsupported", "missing"])
def test_a_driver_without_figures_by_process_reports_none(fake: FakeGpus, start: Start, switch: str) -> None:
    """A card or a driver that does not report the utilisation by process gives None: unknown, and not unused."""
    fake.hold(0, os.getpid(), GIB)
    setattr(fake.state if switch == "missing" else fake.state.gpus[0], switch, BY_PROCESS)
    backend = start("auto")

    assert backend.utilisations(backend.devices()[0]) is None


def test_impossible_figures_are_unknown(fake: FakeGpus, start: Start) -> None:
    """A driver that reports more than 100 percent gives no figure."""
    fake.hold(0, os.getpid(), GIB)
    fake.use(0, os.getpid(), 255)
    backend = start("auto")

    assert backend.utilisations(backend.devices()[0]) is None
