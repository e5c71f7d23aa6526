"""The findings of ``gpuqueue-worker doctor`` about the driver, here the fake driver, and the jobs' Python."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from becoming import becoming
from fake_driver.fake_driver import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    HERE,
    MPS_CONTROL,
    NO_PERMISSION,
    UNKNOWN,
    VERSION_MISMATCH,
    FakeGpus,
    build,
    compiler,
)
from findings import the
from site_of_one import BIN, Site

from gpuqueue.doctor.examination import from_line
from gpuqueue.model.finding import Finding, Grade

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")

GIB = 2**30
#: A PID above the kernel's limit, which no process of this machine can have.
ELSEWHERE = 2**22 + 5
HARDWARE_SLOWDOWN, SOFTWARE_THERMAL = 0x8, 0x20
EXCLUSIVE, PROHIBITED = 3, 2


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    """Build the fake driver once."""
    with tempfile.TemporaryDirectory() as directory:
        yield build(Path(directory))


@pytest.fixture
def fake(tmp_path: Path) -> FakeGpus:
    """Return two healthy GPUs."""
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB, 80 * GIB))


class Doctor:
    """Runs ``gpuqueue-worker doctor`` in a process that uses the fake driver."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = {"VIRTUAL_ENV": str(BIN.parent), **os.environ, **environ}

    def __call__(self, *words: str, **environ: str) -> list[Finding]:
        """Return all findings, in the order of the output."""
        done = subprocess.run(
            [str(BIN / "gpuqueue-worker"), "doctor", *words],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert 0 == done.returncode, done.stderr
        assert "Traceback" not in done.stderr
        findings = [from_line(line) for line in done.stdout.splitlines()]
        assert None not in findings
        return [each for each in findings if each is not None]


@pytest.fixture
def doctor(fake: FakeGpus, library: Path) -> Doctor:
    """Return a `Doctor` for a machine with these GPUs."""
    return Doctor(fake.environ(library))


def checks(findings: list[Finding], *grades: Grade) -> set[str]:
    """Return the checks that have a finding of one of these grades."""
    return {each.check for each in findings if each.grade in grades}


def test_gpus_that_are_well_need_nothing(doctor: Doctor, tmp_path: Path) -> None:
    """Healthy GPUs give no warning, and each section has findings."""
    found = doctor(VIRTUAL_ENV=str(make_torch(tmp_path / "env", cuda="13.0")))

    # A contributor may have a queue running on this machine.
    assert checks(found, Grade.UNKNOWN, Grade.WARNING, Grade.PROBLEM) <= {"other queues"}
    assert {"host", "python", "runs"} == {each.section for each in found}
    assert "NVIDIA 000.00, library 13.000.01, CUDA up to 13.0, 2 cards" == the(found, "driver").seen
    assert "Fake 24G, 23.5G of 24G free" == the(found, "devices", "device 0").seen
    assert Grade.OK is the(found, "persistence").grade


SIMULATED = {"GPUQUEUE_DEVICES": "sim:1x1G", "GPUQUEUE_HOST": f"test-{secrets.token_hex(4)}"}


@pytest.mark.parametrize(
    ("error", "environ", "grade", "words"),
    [
        (VERSION_MISMATCH, {}, Grade.PROBLEM, "the library is of 13.000.01"),
        (NO_PERMISSION, {}, Grade.PROBLEM, "may not open"),
        (UNKNOWN, {}, Grade.PROBLEM, "failed for an unknown reason"),
        # A machine without a card, as in a container image that includes the library. It serves its CPU.
        (DRIVER_NOT_LOADED, {}, Grade.NOTE, "no NVIDIA card"),
        # A machine that serves only simulated devices.
        (VERSION_MISMATCH, SIMULATED, Grade.NOTE, "not asked for"),
    ],
)
def test_a_driver_that_fails_says_why(
    fake: FakeGpus, doctor: Doctor, error: int, environ: dict[str, str], grade: Grade, words: str
) -> None:
    """A failing driver is a problem whose text gives the reason, unless nobody needs it. All sections are reported."""
    fake.state.init_error = error

    found = doctor(**environ)

    assert (grade, True) == (the(found, "driver").grade, words in the(found, "driver").seen)
    assert (grade is Grade.PROBLEM) == ("devices" in checks(found, Grade.WARNING, Grade.PROBLEM))
    assert {"host", "python", "runs"} == {each.section for each in found}


def test_a_lost_card_is_named_and_its_neighbour_is_well(fake: FakeGpus, doctor: Doctor) -> None:
    """A lost card is a problem of its own, although its UUID is not known. The other card is healthy."""
    fake.state.gpus[1].error = GPU_IS_LOST

    found = doctor()

    lost = the(found, "devices", "device 1")
    assert (Grade.PROBLEM, True) == (lost.grade, "lost" in lost.seen)
    assert Grade.OK is the(found, "devices", "device 0").grade


@pytest.mark.full
def test_a_card_that_hangs_keeps_nothing_else(fake: FakeGpus, doctor: Doctor) -> None:
    """A driver call that never returns stops only the checks that need it. The report names the card that hangs."""
    fake.state.gpus[1].hang = 1
    try:
        found = doctor()
    finally:
        fake.state.gpus[1].hang = 0

    assert {"host", "python", "runs"} == {each.section for each in found}
    assert Grade.OK is the(found, "driver").grade
    assert "GPU 1 is stale" in the(found, "devices", "device 1").seen
    assert Grade.OK is the(found, "devices", "device 0").grade


@pytest.mark.parametrize(("error", "words"), [(0, "it answers"), (GPU_IS_LOST, "it does not answer: the GPU is lost")])
def test_a_card_that_is_left_out_is_reported(fake: FakeGpus, doctor: Doctor, error: int, words: str) -> None:
    """A card that GPUQUEUE_DEVICES leaves out is no problem. The report says whether it answers."""
    fake.state.gpus[1].error = error

    found = doctor(GPUQUEUE_DEVICES="gpu:0")

    left_out = the(found, "devices", "card 1")
    assert (Grade.NOTE, True) == (left_out.grade, words in left_out.seen)
    assert "devices" not in checks(found, Grade.UNKNOWN, Grade.WARNING, Grade.PROBLEM)


def test_each_fault_of_a_card_is_reported(fake: FakeGpus, doctor: Doctor) -> None:
    """Heat, throttling, memory errors and persistence have findings of their own.

    Without persistence mode nothing fails, but the first use takes seconds.
    """
    hot, slow = fake.state.gpus[0], fake.state.gpus[1]
    hot.temperature, slow.reasons = 95, HARDWARE_SLOWDOWN | SOFTWARE_THERMAL
    slow.ecc, slow.persistence = 3, 0

    found = [each for each in doctor() if each.check in {"health", "persistence"}]

    assert {
        ("device 0", "warning", "it is hot"),
        ("device 1", "warning", "it is too hot to run at full speed"),
        ("device 1", "warning", "something slows it down"),
        ("device 1", "warning", "3 memory errors that could not be corrected, since the driver started"),
        ("", "note", "persistence mode is off on card 1"),
    } == {(each.about, str(each.grade), each.seen.partition(":")[0]) for each in found}


def test_modes_of_a_card_are_reported(fake: FakeGpus, doctor: Doctor) -> None:
    """A mode in which jobs fail is reported with the command that changes it; a card with MIG instances gets a note.

    A card in exclusive mode takes one job at a time, which is a note, and nothing with one slot for each device.
    """
    fake.state.gpus[0].compute_mode, fake.state.gpus[1].compute_mode = EXCLUSIVE, PROHIBITED
    found = doctor()
    one_slot = doctor(GPUQUEUE_SLOTS="1")
    fake.divide(1, {0: 40 * GIB, 1: 40 * GIB})
    fake.state.gpus[0].mig = 1
    divided = doctor()

    assert Grade.NOTE is the(found, "compute mode", "device 0").grade
    assert Grade.PROBLEM is the(found, "compute mode", "device 1").grade
    assert "sudo nvidia-smi -i 1 -c DEFAULT" == the(found, "compute mode", "device 1").remedy
    assert "compute mode" not in checks(one_slot, Grade.NOTE)
    assert (Grade.NOTE, True) == (the(divided, "mig", "card 1").grade, "2 parts" in the(divided, "mig", "card 1").seen)
    assert Grade.WARNING is the(divided, "mig", "card 0").grade


@pytest.mark.full
def test_mps_is_checked_where_the_site_has_turned_it_on(fake: FakeGpus, doctor: Doctor, tmp_path: Path) -> None:
    """A control daemon that does not run is a problem. With one, several processes may use an exclusive GPU."""
    fake.state.gpus[0].compute_mode = EXCLUSIVE
    pipe = tmp_path / "mps"
    path = f"{HERE}{os.pathsep}{os.environ.get('PATH', '')}"
    environ = {"GPUQUEUE_MPS": "true", "GPUQUEUE_MPS_PIPE_DIRECTORY": str(pipe), "PATH": path}

    without = the(doctor(**environ), "mps")
    subprocess.run([MPS_CONTROL, "-d"], env={"PATH": path, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}, check=True)
    found = doctor(**environ)

    assert (Grade.PROBLEM, True) == (without.grade, "there is no pipe directory" in without.seen)
    assert f"its control daemon at {pipe} answers" == the(found, "mps").seen
    assert Grade.OK is the(found, "compute mode").grade


def test_processes_of_another_namespace_are_found(fake: FakeGpus, doctor: Doctor) -> None:
    """GPU processes that are all in another PID namespace are a warning.

    This happens in a container without the host's PIDs. No job would get a measured peak there. Unknown memory is not
    zero. CUDA_VISIBLE_DEVICES, which may be set to choose a card, has no effect here.
    """
    fake.hold(0, ELSEWHERE, GIB, always_alive=True)

    blind = the(doctor(), "pids")
    fake.hold(0, os.getpid(), GIB)
    seen = the(doctor(), "pids")
    fake.hold(0, os.getpid(), GIB, not_available=True)
    unmeasured = doctor(CUDA_VISIBLE_DEVICES="0")

    assert (Grade.WARNING, True) == (blind.grade, "pid: host" in blind.remedy)
    assert (Grade.OK, "2 processes on the GPUs, 1 of them known here") == (seen.grade, seen.seen)
    assert Grade.NOTE is the(unmeasured, "pids").grade
    assert "CUDA_VISIBLE_DEVICES='0'" in the(unmeasured, "visible devices").seen


@pytest.mark.full
def test_a_worker_of_another_queue_is_found(site: Site, store_url: str, tmp_path: Path) -> None:
    """A device with a worker of another state directory is a warning.

    Each queue would count the other queue's jobs as external processes.
    """
    other = Site(tmp_path / "other", store_url, GPUQUEUE_HOST=site.settings.host)
    try:
        other.start_worker()
        ours = {**site.environ}
        found = the(Doctor(ours)(), "other queues", f"sim-{site.settings.host}-0")
        theirs = Doctor({**other.environ})()
    finally:
        other.stop()

    assert Grade.WARNING is found.grade
    assert Grade.OK is the(theirs, "other queues").grade  # its own worker is not another queue's


# ---- the jobs' Python ------------------------------------------------------------------------------------------------


def make_torch(root: Path, *, cuda: str | None, count: int = 0, error: str = "") -> Path:
    """Make an environment with a fake torch and return its root.

    The torch is built for *cuda* and sees *count* cards.
    """
    package = root / "site" / "torch"
    package.mkdir(parents=True)
    (package / "version.py").write_text(f"__version__ = '2.9.1'\ncuda = {cuda!r}\nhip = None\n")
    (package / "__init__.py").write_text(
        "class cuda:\n"
        f"    device_count = staticmethod(lambda: {count})\n"
        "    @staticmethod\n"
        "    def init():\n"
        f"        if {error!r}: raise RuntimeError({error!r})\n"
    )
    (root / "bin").mkdir()
    becoming(root / "bin" / "python", "env", f"PYTHONPATH={root / 'site'}", sys.executable, "-S")
    return root


@pytest.mark.parametrize(
    ("cuda", "grade", "words"),
    [
        ("12.8", Grade.OK, "torch 2.9.1 for CUDA 12.8"),
        ("13.2", Grade.OK, "for CUDA 13.2"),  # a newer minor version works too
        (None, Grade.WARNING, "a build without CUDA"),
        ("14.0", Grade.WARNING, "the driver serves CUDA up to 13.0"),
    ],
)
def test_a_torch_that_cannot_use_the_gpus_is_found(
    doctor: Doctor, tmp_path: Path, cuda: str | None, grade: Grade, words: str
) -> None:
    """A torch build that cannot use the driver is a warning, found without importing torch.

    The report names the interpreter.
    """
    root = make_torch(tmp_path / "env", cuda=cuda)

    found = doctor(VIRTUAL_ENV=str(root))

    assert str(root / "bin" / "python") in the(found, "interpreter").seen
    assert (grade, True) == (the(found, "torch").grade, words in the(found, "torch").seen)
    assert "trial" not in {each.check for each in found}


@pytest.mark.full
def test_deep_checks_report_the_gpus_that_torch_sees(doctor: Doctor, tmp_path: Path) -> None:
    """``--deep`` starts torch and reports how many GPUs it sees.

    If it sees too few, the finding has torch's own error.
    """
    well = make_torch(tmp_path / "a", cuda="13.0", count=2)
    ill = make_torch(tmp_path / "b", cuda="13.0", count=0, error="Found no NVIDIA driver on your system.\nPlease check")

    assert Grade.OK is the(doctor("--deep", VIRTUAL_ENV=str(well)), "trial").grade
    found = the(doctor("--deep", VIRTUAL_ENV=str(ill)), "trial")

    assert Grade.PROBLEM is found.grade
    assert "it sees 0 of 2 GPUs: Found no NVIDIA driver on your system." == found.seen


@pytest.mark.parametrize(
    ("script", "check", "grade", "words"),
    [
        # An upgrade has removed the interpreter.
        ("echo its library is gone >&2\nexit 127", "interpreter", Grade.WARNING, "its library is gone"),
        # Not every job needs torch.
        (f'exec {shlex.quote(sys.executable)} -S -I "$@"', "torch", Grade.NOTE, "none in this Python"),
    ],
)
def test_a_python_that_does_not_run_or_has_no_torch_is_reported(
    doctor: Doctor, tmp_path: Path, script: str, check: str, grade: Grade, words: str
) -> None:
    """The first is a warning with its error message, the second a note."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)

    found = the(doctor(VIRTUAL_ENV=str(tmp_path / "env")), check)

    assert (grade, True) == (found.grade, words in found.seen)
