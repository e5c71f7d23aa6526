"""Tests of the memory that an estimate recommends, and of its text as an option."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpuqueue.estimate import dry_run
from gpuqueue.estimate.figures import CONTEXT_BYTES, DryRun, Estimate, Part, as_option, rounded_up
from gpuqueue.estimate.past import Past, Rule, Whose
from gpuqueue.text.units import GIB, KIB, MIB, parse_bytes

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


def a_past(rule: Rule, need_bytes: int) -> Past:
    return Past(whose=Whose.OWN, rule=rule, runs=(), need_bytes=need_bytes)


def test_a_dry_run_needs_its_peak_a_tenth_more_and_the_context() -> None:
    """The need of a dry run is its peak, a tenth more, and the CUDA context."""
    assert 110 * MIB + CONTEXT_BYTES == a_dry_run().need_bytes


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

    assert GIB == need(a_past(Rule.SAME_SCRIPT, GIB), run)
    assert run.need_bytes == need(a_past(Rule.MORE_THAN, GIB), run)
    assert 20 * GIB == need(a_past(Rule.MORE_THAN, 20 * GIB), run)
    assert need(None, None) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "64M"),
        (512 * MIB, "512M"),
        (512 * MIB + 1, "576M"),
        (GIB, "1G"),
        (GIB + 1, "1088M"),
        (2 * GIB, "2G"),
        (2 * GIB + 1, "2.5G"),
        (40 * GIB - 1, "40G"),
    ],
)
def test_what_is_asked_for_is_never_less_than_what_is_needed(size: int, text: str) -> None:
    """The recommended size is never less than the need, and its text means exactly the rounded size."""
    assert text == as_option(rounded_up(size))
    assert rounded_up(size) == parse_bytes(text)


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
