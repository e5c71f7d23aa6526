from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.text.units import GIB, MIB
from workers.run.verdict import TAIL_BYTES, InsideReport, judged, tail

FAILED = Ending.from_status(1)
DIED = InsideReport(out_of_memory=True)
SURVIVED = InsideReport(ooms_on={0: 3})


def verdict(ending: Ending = FAILED, report: InsideReport | None = None, log: bytes = b"") -> Ending:
    """Return the final ending of a job that requested 6 GiB and had a peak of 5.9 GiB."""
    return judged(ending, report, log, asked_bytes=6 * GIB, peak_bytes=round(5.9 * GIB))


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA out of memory. Tried to allocate",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 512 bytes",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "thrust: cudaErrorMemoryAllocation: out of memory",
        "RuntimeError: CUDA error: out of memory",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory",
        "ResourceExhaustedError: Graph execution error: OOM when allocating tensor with shape[4,4] on GPU_0_bfc",
    ],
)
def test_a_log_that_says_so_makes_it_out_of_memory(line: str) -> None:
    """A log with an out-of-memory error of any framework changes the ending.

    The exit status is kept, and the detail contains the figures.
    """
    ending = verdict(log=b"\xff\x00 step 1\n" + line.encode() + b"\n")

    assert (EndingKind.OUT_OF_MEMORY, 1) == (ending.kind, ending.exit_code)
    assert "out of memory: asked 6G, peak 5.9G" == str(ending)


def test_a_program_that_gives_up_by_sigabrt_ran_out_all_the_same() -> None:
    """SIGABRT with such a log is out of memory, because C++ ends this way after an uncaught exception.

    Other signals have other causes.
    """
    log = b"terminate called after throwing an instance of 'c10::OutOfMemoryError'"

    ending = verdict(Ending.from_status(-6), log=log)

    assert (EndingKind.OUT_OF_MEMORY, 6) == (ending.kind, ending.signal)
    assert EndingKind.SIGNALLED is verdict(Ending.from_status(-11), log=log).kind


def test_a_process_that_died_of_it_needs_no_log() -> None:
    """The report from inside the process is enough, without a log."""
    assert EndingKind.OUT_OF_MEMORY is verdict(report=DIED).kind


@pytest.mark.parametrize(
    ("ending", "report", "log"),
    [
        (FAILED, None, b"ValueError: bad learning rate"),
        (FAILED, SURVIVED, b"caught one, went on, failed of something else"),
        (Ending.from_status(0), DIED, b"CUDA out of memory"),
        (Ending.from_status(-9), DIED, b"CUDA out of memory"),
        (Ending.stopped(EndingKind.CANCELLED, -15), DIED, b"CUDA out of memory"),
        (Ending.stopped(EndingKind.TIMED_OUT, 1), DIED, b"CUDA out of memory"),
    ],
)
def test_every_other_ending_stays(ending: Ending, report: InsideReport | None, log: bytes) -> None:
    """Other endings are unchanged. A success stays a success, and a run that was stopped keeps its reason."""
    assert ending == verdict(ending, report, log)


def test_an_unknown_peak_is_left_out() -> None:
    """An unknown peak is omitted, and is never shown as 0."""
    assert "asked 512M" == judged(FAILED, DIED, b"", asked_bytes=512 * MIB, peak_bytes=None).detail


@pytest.mark.parametrize("ending", [FAILED, Ending.stopped(EndingKind.OUT_OF_MEMORY, -9)])
def test_the_circumstances_stand_behind_the_figures(ending: Ending) -> None:
    """The circumstances follow the figures, for a run that failed and for a run that the watchdog ended.

    Other endings have none.
    """
    words = "120M were free; no other process was on the device"

    reported = judged(ending, DIED, b"", asked_bytes=6 * GIB, peak_bytes=3 * GIB, circumstances=words)

    assert f"asked 6G, peak 3G, {words}" == reported.detail
    assert "" == judged(FAILED, None, b"", asked_bytes=GIB, peak_bytes=None, circumstances=words).detail


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    """Only the end of a log is read.

    An error that the job survived long ago is not the cause. A log may be huge or missing.
    """
    log = tmp_path / "log"
    assert b"" == tail(log)
    log.write_bytes(b"short")
    assert b"short" == tail(log)
    log.write_bytes(b"CUDA out of memory\n" + b"." * TAIL_BYTES)
    assert b"." * TAIL_BYTES == tail(log)


def test_an_unkillable_process_is_named_beside_the_figures() -> None:
    """The watchdog's ending has the figures as its detail, and what the shim has added stays."""
    ending = Ending.stopped(EndingKind.OUT_OF_MEMORY, None, "unkillable: 7")

    assert "asked 1G; unkillable: 7" == judged(ending, None, b"", asked_bytes=GIB, peak_bytes=None).detail
