"""Tests of the fake driver itself: the rules of CUDA that jobs see, and other tools that take it for a real driver."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_driver.fake_driver import GPU_IS_LOST, HERE, JOB, MPS_CONTROL, FakeGpus, build, compiler
from fake_driver.far_backend import FarBackend

pytestmark = [
    pytest.mark.full,  # the quick run uses this driver, and would notice most faults of it
    pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with"),
]

MIB, GIB = 2**20, 2**30
CONTEXT_BYTES = 300 * MIB

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return three GPUs, half a GiB of each reserved."""
    return FakeGpus.create(tmp_path / "state", (8 * GIB, 8 * GIB, 8 * GIB), context_bytes=CONTEXT_BYTES)


@pytest.fixture
def environ(fake: FakeGpus, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a program that sees the fake driver."""
    bare = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**bare, **fake.environ(build(tmp_path))}


@pytest.fixture
def start(environ: dict[str, str]) -> Iterator[Start]:
    """Return a function that starts jobs that hold memory; they end with the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(*words: str, visible: str | None = None, **variables: str) -> subprocess.Popen[str]:
        more = variables if visible is None else {**variables, "CUDA_VISIBLE_DEVICES": visible}
        pipe = subprocess.PIPE
        running.append(
            subprocess.Popen(
                [sys.executable, str(JOB), *words],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
                env={**environ, **more},
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def backend(fake: FakeGpus, tmp_path: Path) -> Iterator[FarBackend]:
    """Return the backend that a worker would use."""
    with contextlib.closing(FarBackend("gpu", fake.environ(build(tmp_path)))) as made:
        yield made


def holds(process: subprocess.Popen[str]) -> int:
    """Return the pid of a job that holds its memory."""
    assert process.stdout
    assert "ready\n" == process.stdout.readline()
    return process.pid


def ends(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and message of a job that held nothing."""
    _, printed = process.communicate()
    return process.returncode, printed.strip()


def where(backend: FarBackend, pid: int) -> list[int]:
    """Return the indexes of the GPUs that *pid* is on."""
    return [device.index for device in backend.devices() if pid in backend.reading(device).processes]


def test_a_job_holds_its_context_and_whole_pages(start: Start, backend: FarBackend) -> None:
    """A process holds a context on its GPU and each size rounded up to 2 MiB, and nothing elsewhere."""
    pid = holds(start("--device", "cuda:1", "1", "3M", "1G"))
    reading = backend.reading(backend.devices()[1])
    assert {pid: CONTEXT_BYTES + 2 * MIB + 4 * MIB + GIB} == reading.processes
    assert 8 * GIB - GIB // 2 - CONTEXT_BYTES - 6 * MIB - GIB == reading.free_bytes
    assert [1] == where(backend, pid)


def test_killed_is_gone(start: Start, backend: FarBackend) -> None:
    """The memory of a killed job is free for the next one."""
    first = start("7G")
    holds(first)
    assert (3, "cuDevicePrimaryCtxRetain: CUDA error 2") == ends(start("1G"))
    first.kill()
    first.wait()
    assert {} == backend.reading(backend.devices()[0]).processes
    holds(start("6G"))
    assert (3, "cuMemAlloc_v2: CUDA error 2") == ends(start("1G"))


def test_the_record_has_each_step_in_order(fake: FakeGpus, start: Start) -> None:
    """The driver's record has what each process held and was refused, in order, including what a test held."""
    pid = holds(start("--device", "cuda:1", "1G", "2M"))
    fake.hold(1, 4_000_001, 3 * GIB, always_alive=True)
    steps = fake.changes()
    assert [CONTEXT_BYTES, CONTEXT_BYTES + GIB, CONTEXT_BYTES + GIB + 2 * MIB, 3 * GIB] == [e.held_bytes for e in steps]
    assert [(1, pid)] * 3 + [(1, 4_000_001)] == [(each.gpu, each.pid) for each in steps]
    assert sorted(each.at_ns for each in steps) == [each.at_ns for each in steps]
    assert {pid: CONTEXT_BYTES + GIB + 2 * MIB, 4_000_001: 3 * GIB} == fake.held(1)

    ends(start("--device", "cuda:1", "6G"))
    assert [0, 6 * GIB] == [each.refused_bytes for each in fake.changes()]

    fake.let_go(1, 4_000_001)
    assert [(4_000_001, 0)] == [(each.pid, each.held_bytes) for each in fake.changes()]
    assert {pid} == fake.held(1).keys()


def test_entries_are_used_again(fake: FakeGpus, start: Start) -> None:
    """The fake driver reuses the entries of ended processes, so its table does not grow."""
    for _ in range(3):
        first = start("2M")
        holds(first)
        fake.hold(0, 4_000_002, GIB, always_alive=True)
        fake.let_go(0, 4_000_002)
        first.kill()
        first.wait()
    assert {} == fake.held(0)
    assert fake.state.entry_count <= 3


@pytest.mark.parametrize(
    ("visible", "ordinal", "index"),
    [
        (None, 2, 2),
        ("2,0", 0, 2),
        ("2,0", 1, 0),
        (FakeGpus.uuid(1), 0, 1),
        (f"{FakeGpus.uuid(2)},{FakeGpus.uuid(1)}", 1, 1),
        ("GPU-00000002", 0, 2),
        ("1,9,0", 0, 1),
    ],
)
def test_a_job_is_on_the_gpu_that_its_environment_names(
    start: Start, backend: FarBackend, visible: str | None, ordinal: int, index: int
) -> None:
    """CUDA_VISIBLE_DEVICES takes indexes, UUIDs and their prefixes, and renumbers from 0."""
    pid = holds(start("--device", f"cuda:{ordinal}", "2M", visible=visible))
    assert [index] == where(backend, pid)


@pytest.mark.parametrize(
    ("visible", "ordinal", "printed"),
    [
        ("", 0, "cuInit: CUDA error 100"),
        ("-1", 0, "cuInit: CUDA error 100"),
        ("GPU-0000000", 0, "cuInit: CUDA error 100"),
        ("0,0", 0, "cuInit: CUDA error 100"),
        ("1,9,0", 1, "cuDeviceGet: CUDA error 101"),
        ("0", 1, "cuDeviceGet: CUDA error 101"),
    ],
)
def test_what_is_not_visible_cannot_be_used(start: Start, visible: str, ordinal: int, printed: str) -> None:
    """An empty list, a repeat and an ambiguous prefix give no GPU; the first invalid name ends the list."""
    assert (4, printed) == ends(start("--device", f"cuda:{ordinal}", "2M", visible=visible))


def test_an_exclusive_gpu_takes_one_process_and_a_prohibited_one_none(fake: FakeGpus, start: Start) -> None:
    """The compute mode limits jobs even if memory is free."""
    fake.state.gpus[0].compute_mode, fake.state.gpus[1].compute_mode = 3, 2
    holds(start("2M"))
    refused = (4, "cuDevicePrimaryCtxRetain: CUDA error 46")
    assert [refused] * 2 == [ends(start("--device", f"cuda:{ordinal}", "2M")) for ordinal in range(2)]


def test_clients_of_mps_share_an_exclusive_gpu_and_keep_to_their_limit(
    fake: FakeGpus, start: Start, backend: FarBackend, tmp_path: Path
) -> None:
    """With a control daemon a job is a client: exclusive mode lets it in, and its limit counts its context as well.

    Without a daemon the same variables have no effect.
    """
    pipe = tmp_path / "mps"
    client = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M,1=2048M"}
    holds(start("1G", **client))
    subprocess.run([HERE / MPS_CONTROL, "-d"], env={**os.environ, **client}, check=True)
    fake.state.gpus[1].compute_mode = 3

    pids = [holds(start("--device", "cuda:1", "1G", **client)) for _ in range(2)]

    assert set(pids) == backend.reading(backend.devices()[1]).processes.keys()
    assert (3, "cuMemAlloc_v2: CUDA error 2") == ends(start("--device", "cuda:1", "1G", "900M", **client))
    assert (3, "cuMemAlloc_v2: CUDA error 2") == ends(start("213M", **client))
    holds(start("212M", **client))


def test_a_job_is_on_the_instance_that_its_environment_names(fake: FakeGpus, start: Start, backend: FarBackend) -> None:
    """A process that is given several MIG instances can use only the first one."""
    first, second = fake.divide(0, {0: 2 * GIB, 2: 4 * GIB})
    pid = holds(start("1G", visible=f"{second},{first}"))
    assert [102] == where(backend, pid)
    assert (4, "cuDeviceGet: CUDA error 101") == ends(start("--device", "cuda:1", "2M", visible=f"{second},{first}"))
    assert (3, "cuMemAlloc_v2: CUDA error 2") == ends(start("3G", visible=first))


def shown(module: str, environ: dict[str, str], *words: str) -> str:
    """Return the output of another tool; without it the test is skipped, but in CI it fails."""
    if importlib.util.find_spec(module) is None:
        missing = f"{module} is not installed: pip install 'gpuqueue-server[test]'"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    plain = {**environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "160", "LINES": "60"}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=plain, check=False, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


@pytest.mark.parametrize(("module", "words"), [("gpustat", ("--show-pid", "--no-color")), ("nvitop", ("-1",))])
def test_tools_of_others_show_the_fake_gpus(
    fake: FakeGpus, start: Start, environ: dict[str, str], module: str, words: tuple[str, ...]
) -> None:
    """Other tools show the fake driver's cards, memory and processes."""
    fake.state.gpus[1].temperature = 67
    pid = holds(start("--device", "cuda:1", "4G"))
    printed = shown(module, environ, *words)
    assert 3 == printed.count("Fake 8G")
    assert "67" in printed
    assert str(pid) in printed


def test_gpustat_shows_a_lost_gpu(fake: FakeGpus, environ: dict[str, str]) -> None:
    """Other tools show a lost card as lost, and its neighbours as healthy."""
    fake.state.gpus[2].error = GPU_IS_LOST
    printed = shown("gpustat", environ, "--no-color")
    assert 2 == printed.count("Fake 8G")
    assert "lost" in printed
