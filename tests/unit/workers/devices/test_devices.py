"""Tests of devices without a driver: parsing, selection and lookup, and the memory limits of the CPU."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest
from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB
from workers.devices import nvml, nvml_calls, select, simulated
from workers.devices.backend import DeviceTrouble
from workers.devices.cpu import CpuBackend, resident_bytes
from workers.devices.nvml import NvmlBackend, largest_by_pid
from workers.devices.select import choose, find
from workers.devices.simulated import SimulatedBackend, parse_simulated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GPU = Device(uuid="GPU-none", index=0, name="none", kind=DeviceKind.GPU, total_bytes=10)
#: So many that no other process of this machine is on the last one by its index: other tests use 0 and 1.
MANY = "30x24G"


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("sim:24G", [24 * GIB]),
        ("sim:4x24G", [24 * GIB] * 4),
        ("sim:2x24G+80G", [24 * GIB, 24 * GIB, 80 * GIB]),
        ("2x512MiB", [512 * MIB] * 2),
        ("sim:64x1G", [GIB] * 64),
    ],
)
def test_simulated_devices_are_read_as_written(text: str, sizes: list[int]) -> None:
    """A count and a size give that number of devices of that size."""
    assert sizes == parse_simulated(text)


@pytest.mark.parametrize(
    "text",
    [
        *("sim:", "sim:4x", "sim:x24G", "sim:0x24G", "sim:65x1G", "sim:24", "sim:-1x24G", "sim:4x24G,1x8G", "sim:4x0G"),
        *("sim:1G+", "sim:40x1G+40x1G"),
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    """An invalid list of simulated devices is refused, and the message contains the text."""
    with pytest.raises(BadRequest, match="sim:"):
        parse_simulated(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("sim:1x8G,1x16G", "sim:1x8G+1x16G"),
        ("sim:8G, sim:2x16G", "sim:8G+2x16G"),
        ("sim:8G,gpu", "sim:1x8G+1x16G"),
        ("sim:8G,", "sim:1x8G+1x16G"),
    ],
)
def test_a_comma_between_kinds_gets_a_hint(text: str, meant: str) -> None:
    """The error for a comma between kinds shows the form with +.

    `simulate --devices` accepts commas. Regression: `up` said only that 8G,1x16G is not a size.
    """
    with pytest.raises(BadRequest, match=re.escape(f"put a + between kinds, as in {meant}") + "$"):
        parse_simulated(text)


def test_choose_gives_what_was_named() -> None:
    """Both "cpu" and "sim:" give their own device kind, with the host in the device names."""
    assert ["cpu-box"] == [device.uuid for device in choose("cpu", "box").devices()]
    simulated = choose("sim:2x24G", "box").devices()
    assert ["sim-box-0", "sim-box-1"] == [device.uuid for device in simulated]
    assert ["Simulated 24G"] * 2 == [device.name for device in simulated]


@pytest.mark.parametrize(("written", "kept"), [(None, 1), ("[{}]", 0), ("{", 0)])
def test_the_gpus_that_were_written_down_are_known_again(tmp_path: Path, written: str | None, kept: int) -> None:
    """Only GPUs with an identity are written down, until others are found. A file that cannot be read is as none."""
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull})
    cpu = CpuBackend("box").devices()[0]
    assert () == select._known(settings)

    select.remember(settings, (GPU, cpu, Device.unidentified(3, "box")))
    select.remember(settings, CpuBackend("box", no_gpu="the NVIDIA driver is not loaded").devices())
    if written is not None:
        (tmp_path / "devices" / "gpus.json").write_text(written)

    assert (GPU,)[:kept] == select._known(settings)


def test_choose_puts_the_cpu_beside_the_others_once() -> None:
    """The CPU comes last, once, with its own index. It is the only device if there is no other."""
    both = choose("sim:2x24G,cpu", "box").devices()
    assert [("sim-box-0", 0), ("sim-box-1", 1), ("cpu-box", 2)] == [(each.uuid, each.index) for each in both]
    assert ["cpu-box"] == [device.uuid for device in choose("cpu,cpu", "box").devices()]
    assert "cpu-box" == find(choose("sim:2x24G,cpu", "box"), "cpu").uuid


@pytest.mark.parametrize(
    "spec", ["", "cuda", "GPU", "cpu:2", ",cpu", "cpu,gpu", "gpu,cpu,cpu", "gpu:", "gpu:x", "gpu:1,", "auto:1"]
)
def test_choose_refuses_what_it_does_not_know(spec: str) -> None:
    """An unknown name is refused with a list of the known names."""
    with pytest.raises(BadRequest, match="auto, gpu, cpu, slurm, or simulated"):
        choose(spec, "box")


def test_find_takes_index_uuid_and_unique_beginning() -> None:
    """A device is found by its index, its UUID, or a unique prefix of its UUID."""
    backend = SimulatedBackend("box", "12x1G")
    devices = backend.devices()
    assert devices[1] == find(backend, "1")
    assert devices[1] == find(backend, "sim-box-1")  # exact, although it is a prefix of sim-box-10 and sim-box-11
    assert devices[0] == find(backend, "sim-box-0")
    one = SimulatedBackend("box", "1G")
    assert one.devices()[0] == find(one, "sim-b")


@pytest.mark.parametrize(
    ("wanted", "words"), [("sim-", "several"), ("7", "no device"), ("", "no device"), ("GPU-1", "no device")]
)
def test_find_refuses_none_and_several(wanted: str, words: str) -> None:
    """A name of no device, or of several, is refused with a list of the devices."""
    with pytest.raises(BadRequest, match=rf"{words}.*0 \(sim-box-0\), 1 \(sim-box-1\)"):
        find(SimulatedBackend("box", "2x1G"), wanted)


def test_a_process_on_two_simulated_devices_holds_half_on_each() -> None:
    """The resident memory of a process is divided equally among its devices."""
    backend = SimulatedBackend(f"unit{os.getpid()}", "3x24G")
    first, second, third = backend.devices()
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": f"{first.uuid},{second.uuid}"}
    code = "import sys; held = b'x' * 2**26; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as process:
        assert process.stdout
        assert b"ready\n" == process.stdout.readline()
        halves = [backend.reading(device).processes[process.pid] or 0 for device in (first, second)]
        assert {} == backend.reading(third).processes
        assert resident_bytes(process.pid) == pytest.approx(sum(halves), abs=MIB)
        process.kill()


def test_two_sites_on_one_machine_do_not_see_each_others_jobs(tmp_path: Path) -> None:
    """A job of another site is on that site's simulated devices, although they have the same UUIDs.

    A process that was started by hand belongs to no site, so it counts for all of them.
    """
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    (tmp_path / "same").symlink_to(runs_dir)
    backend = SimulatedBackend(f"unit{os.getpid()}", MANY, runs_dir)
    device = backend.devices()[-1]
    run_dirs = [runs_dir / "7" / "1.a", tmp_path / "same" / "8" / "1.b", tmp_path / "other" / "7" / "1.c", None]
    with contextlib.ExitStack() as stack:
        own, linked, other, by_hand = [stack.enter_context(_on(device.uuid, run_dir)) for run_dir in run_dirs]
        assert {own, linked, by_hand} == backend.reading(device).processes.keys()
        of_all = SimulatedBackend(f"unit{os.getpid()}", MANY)
        assert {own, linked, by_hand, other} == of_all.reading(device).processes.keys()


@contextlib.contextmanager
def _on(uuid: str, run_dir: Path | None) -> Iterator[int]:
    """Run a process on a simulated device, as a job with this run directory, and return its pid."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
    environ.pop("GPUQUEUE_RUN_DIR", None)
    if run_dir is not None:
        environ["GPUQUEUE_RUN_DIR"] = str(run_dir)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:  # noqa: S607 - from PATH
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"x")
        process.stdin.flush()
        assert b"x" == process.stdout.read(1)  # so that exec() is over
        yield process.pid
        process.kill()


def test_a_process_that_changes_its_program_changes_its_devices() -> None:
    """A process has a new environment after exec(), so the cached environment must be dropped."""
    backend = SimulatedBackend(f"unit{os.getpid()}", MANY)
    device = backend.devices()[-1]
    code = (
        "import os, sys; print('ready', flush=True); sys.stdin.readline();"
        f"os.environ['CUDA_VISIBLE_DEVICES'] = '{device.uuid}';"
        "os.execv(sys.executable, [sys.executable, '-c', 'import sys; print(1, flush=True); sys.stdin.read()'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert b"ready\n" == process.stdout.readline()
        assert {} == backend.reading(device).processes
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert b"1\n" == process.stdout.readline()
        assert [process.pid] == list(backend.reading(device).processes)
        process.kill()


def test_a_strange_device_is_trouble() -> None:
    """A device of another host raises `DeviceTrouble`, and is not reported as empty."""
    with pytest.raises(DeviceTrouble, match="sim-other-0"):
        SimulatedBackend("box", "1G").reading(SimulatedBackend("other", "1G").devices()[0])


def _group(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / f"memory.{name}").write_text(text)


def test_the_cpu_keeps_to_its_control_group(tmp_path: Path) -> None:
    """With control groups of version 2 the smallest limit around the worker is the total.

    Idle page cache counts as free.
    """
    (tmp_path / "self").write_text("0::/user/worker\n")
    _group(tmp_path / "user", max=f"{64 * MIB}\n", current=f"{60 * MIB}\n", stat=f"anon 1\ninactive_file {10 * MIB}\n")
    _group(tmp_path / "user" / "worker", max="max\n", current=f"{MIB}\n", stat="")
    backend = CpuBackend("box", cgroups=tmp_path, membership=tmp_path / "self")
    device = backend.devices()[0]
    reading = backend.reading(device)
    assert (64 * MIB, 64 * MIB, 14 * MIB) == (device.total_bytes, reading.total_bytes, reading.free_bytes)


def test_the_cpu_keeps_to_an_old_control_group(tmp_path: Path) -> None:
    """Control groups of version 1 are read by their own names.

    If the host's path does not exist, the container's root is used.
    """
    (tmp_path / "self").write_text("5:cpu,cpuacct:/\n4:memory:/docker/abc\n")
    usage = {"limit_in_bytes": f"{64 * MIB}\n", "usage_in_bytes": f"{70 * MIB}\n"}
    _group(tmp_path / "memory", stat=f"inactive_file 1\ntotal_inactive_file {MIB}\n", **usage)
    backend = CpuBackend("box", cgroups=tmp_path, membership=tmp_path / "self")
    reading = backend.reading(backend.devices()[0])
    assert (64 * MIB, 0) == (reading.total_bytes, reading.free_bytes)


def test_the_cpu_without_a_limit_is_the_whole_host(tmp_path: Path) -> None:
    """Without a memory limit the total is the host's memory."""
    backend = CpuBackend("box", cgroups=tmp_path, membership=tmp_path / "none")
    assert psutil.virtual_memory().total == backend.devices()[0].total_bytes


def test_a_process_in_two_lists_has_its_largest_figure() -> None:
    """A pid in several entries has its largest known figure. It is unknown only if every entry is unknown."""
    entries = [(1, 5), (2, None), (3, None), (1, 7), (2, 4), (3, None), (1, None)]
    assert {1: 7, 2: 4, 3: None} == largest_by_pid(entries)


def test_nvml_sums_only_what_is_on_the_gpu() -> None:
    """The sum covers the pids that are on the GPU. It is unknown if one of them is unknown, and 0 if none is there."""
    backend, reading = NvmlBackend(), Reading(total_bytes=100, free_bytes=10, processes={1: 5, 2: 6, 3: None})
    assert 11 == backend.used_by(reading, [1, 2, 2, 9])
    assert backend.used_by(reading, {1, 3}) is None
    assert 0 == backend.used_by(reading, [9])


def _refuse(code: int) -> object:
    raise pynvml.NVMLError(code)


@pytest.mark.parametrize(("wait_s", "sessions"), [(0.0, 3), (1000.0, 1)])
def test_one_lost_gpu_costs_a_new_session_only_now_and_then(
    monkeypatch: pytest.MonkeyPatch, wait_s: float, sessions: int
) -> None:
    """A reset GPU is visible only in a new session. Opening a session is slow, so not every poll opens one."""
    opened: list[int] = []
    monkeypatch.setattr(nvml_calls, "_REOPEN_FOR_ONE_GPU_S", wait_s)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: opened.append(1))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda _: _refuse(pynvml.NVML_ERROR_GPU_IS_LOST))
    backend = NvmlBackend()
    for _ in range(3):
        with pytest.raises(DeviceTrouble, match="lost"):
            backend.reading(GPU)
    assert sessions == len(opened)


def test_a_new_session_for_a_lost_gpu_interrupts_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is opened again only while no other GPU is being asked."""
    opened: list[int] = []
    waiting, gate = threading.Event(), threading.Event()

    def handle(uuid: str) -> str:
        if uuid == "GPU-lost":
            _refuse(pynvml.NVML_ERROR_GPU_IS_LOST)
        waiting.set()
        assert gate.wait(60)
        return uuid

    monkeypatch.setattr(nvml_calls, "_REOPEN_FOR_ONE_GPU_S", 0.0)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: opened.append(1))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    session = nvml_calls.Session()
    thread = threading.Thread(target=session.handle, args=("GPU-slow",))
    thread.start()
    assert waiting.wait(60)

    for _ in range(3):
        with pytest.raises(DeviceTrouble, match="lost"):
            session.handle("GPU-lost")
    assert 1 == len(opened)

    gate.set()
    thread.join()
    session.open()
    assert 2 == len(opened)


@pytest.mark.parametrize(("growths", "trouble"), [(4, False), (5, True)])
def test_a_process_list_that_grows_is_read_again(
    monkeypatch: pytest.MonkeyPatch, growths: int, *, trouble: bool
) -> None:
    """A process list that outgrew its buffer is read again, for a limited number of times."""
    left = [growths]

    def grow(_handle: object) -> list[object]:
        if left[0]:
            left[0] -= 1
            _refuse(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        return []

    memory = SimpleNamespace(total=10, free=4)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda *_: memory)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v3", grow)
    cannot_draw = pynvml.NVML_ERROR_NOT_SUPPORTED
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGraphicsRunningProcesses_v3", lambda _: _refuse(cannot_draw))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMPSComputeRunningProcesses_v3", lambda _: _refuse(cannot_draw))
    with pytest.raises(DeviceTrouble) if trouble else contextlib.nullcontext():
        assert 4 == NvmlBackend().reading(GPU).free_bytes


@given(st.lists(st.lists(st.sampled_from(range(4)), max_size=3), min_size=8, max_size=8), st.booleans())
def test_no_sample_hides_memory_of_unlisted_processes(steps: list[list[int]], are_equal: bool) -> None:  # noqa: FBT001 - from Hypothesis
    """Regression: of 2 GiB that no process explains, a sample hid what one job grew by and another one gave back.

    Before each call of the driver, some jobs change: two only grow, and two only shrink, all by as much or each by more
    than the ones before together.
    """
    sizes = {1: 0, 2: 0, 3: 2**40, 4: 2**40}
    calls = iter(steps)
    change = 2**10

    def move() -> None:
        nonlocal change
        for job in next(calls):
            sizes[job + 1] += change if job < 2 else -change
            change *= 1 if are_equal else 2

    def free(*_: object) -> SimpleNamespace:
        move()
        return SimpleNamespace(total=2**50, free=2**50 - 2 * GIB - sum(sizes.values()))

    def listed(*_: object) -> dict[int, int]:
        move()
        return dict(sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvml, "memory", free)
        patch.setattr(nvml, "processes", listed)
        total, free_bytes, held = nvml.sample(nvml_calls.Session(), None)

    assert total - free_bytes - sum(size or 0 for size in held.values()) >= 2 * GIB


def test_the_nvml_backend_is_made_without_a_driver() -> None:
    """Creating the backend needs no driver, only a call does."""
    with pytest.raises(DeviceTrouble):
        NvmlBackend().reading(GPU)


def test_a_sample_reads_kernel_threads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel threads are read once, because they have no memory and outnumber the processes.

    Regression: every poll of a device read all of them.
    """
    seen: list[str] = []
    read = simulated._stat
    monkeypatch.setattr(simulated, "_stat", lambda name: seen.append(name) or read(name))
    sample = simulated._Processes().sample
    list(sample())
    threads = {name for name in seen if not os.path.exists(f"/proc/{name}/exe") and _is_of_the_kernel(name)}  # noqa: PTH110
    seen.clear()

    there = {identity[0] for identity, _ in sample()}

    assert str(os.getpid()) in there
    young = 5  # new kernel threads are read again
    assert len(threads & set(seen)) <= young


def _is_of_the_kernel(name: str) -> bool:
    """Return whether this is a kernel thread: pid 2, or a child of pid 2."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - as the tested code does
            return name == "2" or file.read().rpartition(b")")[2].split()[1] == b"2"
    except OSError:
        return False


def test_a_process_with_the_number_of_a_thread_of_the_kernel_is_seen() -> None:
    """A process with the reused pid of a kernel thread is seen. A pid is reused, an inode below /proc is not."""
    processes, me = simulated._Processes(), str(os.getpid())
    with os.scandir("/proc") as entries:
        inode = {entry.name: entry.inode() for entry in entries}[me]

    processes._kernels = {me: inode}
    assert me not in {identity[0] for identity, _ in processes.sample()}
    processes._kernels = {me: inode + 1}
    assert me in {identity[0] for identity, _ in processes.sample()}
