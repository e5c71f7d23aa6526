"""Tests of the memory that an estimate recommends."""

from __future__ import annotations

import ast
import math
from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpuqueue.estimate import dry_run
from gpuqueue.estimate.dry_run import DryRun, Estimate, Part
from gpuqueue.estimate.past import Past, PastRun, Whose
from gpuqueue.learning import past_run
from gpuqueue.learning.past_run import Proof
from gpuqueue.learning.rule import learned, rounded_up
from gpuqueue.learning.signature import Lesson
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.framework_memory import CUDA_BYTES
from gpuqueue.model.mem_source import Signature
from gpuqueue.text.units import GIB, KIB, MIB

INSIDE = Path(dry_run.__file__).with_name("inside")


def a_dry_run(peak_bytes: int = 100 * MIB) -> DryRun:
    sizes = {"parameters": 10, "gradients": 10, "optimizer_states": 20, "activations": 60}
    return DryRun(
        parts=tuple(Part(name=name, largest_bytes=size, at_peak_bytes=size) for name, size in sizes.items()),
        peak_bytes=peak_bytes,
        steps=3,
        forwards=3,
        optimizers=("Adam",),
        dtypes=("float32",),
        torch="2.1.0",
        ended="enough",
        took_s=1.0,
    )


def a_past(proof: Proof, size_bytes: int) -> Past:
    """Return what one run teaches."""
    found = learned([past_run.PastRun(proof=proof, bytes=size_bytes, kind=DeviceKind.GPU)])
    assert found is not None
    run = PastRun(job_id=1, ended_at=datetime.now(timezone.utc), bytes=size_bytes, proof=proof, same_args=True)
    lesson = Lesson(signature=Signature.ARGUMENTS, learned=found)
    return Past(whose=Whose.OWN, kind=DeviceKind.GPU, lesson=lesson, runs=(run,))


def test_a_dry_run_needs_its_peak_a_tenth_more_and_the_context() -> None:
    """The need of a dry run is its peak, a tenth more, and the CUDA context."""
    assert 110 * MIB + CUDA_BYTES == a_dry_run().need_bytes


def test_the_fixed_part_and_the_rest_are_the_peak() -> None:
    """With Adam, the fixed part is four times the parameters. The rest of the peak depends on the batch."""
    assert (40, 60) == (a_dry_run(100).fixed_bytes, a_dry_run(100).variable_bytes)


def test_history_comes_first_where_it_answers() -> None:
    """The history decides if it has an answer.

    If it knows only what was not enough, the larger of both figures counts. Without both there is no estimate.
    """
    run = a_dry_run(8 * GIB)

    def need(past: Past | None, counted: DryRun | None) -> int | None:
        return Estimate(script="a.py", args=(), past=past, dry_run=counted).need_bytes

    assert math.ceil(GIB * 1.1) + 256 * MIB == need(a_past(Proof.PEAK, GIB), run)
    assert run.need_bytes == need(a_past(Proof.DIED, GIB), run)
    assert 20 * GIB == need(a_past(Proof.DIED, 10 * GIB), run)
    assert need(None, None) is None


def test_what_is_asked_for_is_rounded_up() -> None:
    """The recommended size is that of ``--mem auto``; after a dry run it is the need, rounded up."""
    past = a_past(Proof.PEAK, GIB)
    assert past.mem_bytes == Estimate(script="a.py", args=(), past=past).mem_bytes
    counted = a_dry_run(8 * GIB)
    assert rounded_up(counted.need_bytes) == Estimate(script="a.py", args=(), dry_run=counted).mem_bytes
    assert Estimate(script="a.py", args=()).mem_bytes is None


def test_the_hosts_memory_is_read_or_not_known(tmp_path: Path) -> None:
    """The host's available memory is read. It is unknown, and not zero, if the kernel does not report it."""
    reported = tmp_path / "meminfo"
    reported.write_text("MemTotal: 100 kB\nMemAvailable: 7 kB\n")

    assert 7 * KIB == dry_run.available_bytes(reported)
    assert dry_run.available_bytes(tmp_path / "missing") is None


@pytest.mark.parametrize("file", sorted(INSIDE.glob("*.py")), ids=lambda file: file.name)
def test_what_runs_in_the_scripts_python_is_of_old_words(file: Path) -> None:
    """The code that runs in the script's interpreter uses only Python 3.8 syntax.

    That interpreter may be Python 3.8.
    """
    ast.parse(file.read_text(), feature_version=(3, 8))
