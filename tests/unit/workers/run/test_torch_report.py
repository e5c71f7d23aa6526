from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.text.units import GIB
from workers.run.verdict import read_reports


def on(index: int = 0, reserved: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the figures of one device."""
    plain = {"index": index, "uuid": None, "allocated_bytes": reserved // 2, "reserved_bytes": reserved}
    return {**plain, "ooms": 0, "alloc_retries": 0, **changes}


def write_report(run_dir: Path, pid: int, *devices: dict[str, Any], began_s: float = 0.0, ended_s: float = 9.0) -> None:
    """Write the report of a process."""
    output = {"began_s": began_s, "ended_s": ended_s, "out_of_memory": pid == 13, "devices": devices}
    with (run_dir / "reports").open("a") as file:
        file.write(json.dumps(output) + "\n")


def test_no_report_is_unknown(tmp_path: Path) -> None:
    """Without a report the figures are unknown. A job without torch is not a job with 0 bytes."""
    assert read_reports(tmp_path) is None


def test_of_several_processes_the_one_with_the_most_counts(tmp_path: Path) -> None:
    """The process with the largest figure counts.

    Regression: two processes that lived at the same time gave 26G on a card of 24G, although their peaks did not
    coincide.
    """
    write_report(tmp_path, 1, on(0, 4 * GIB), on(1, 0), began_s=0, ended_s=5)
    write_report(tmp_path, 2, on(0, 1 * GIB), on(1, 2 * GIB), began_s=1, ended_s=5)
    write_report(tmp_path, 3, on(0, 3 * GIB, ooms=2, alloc_retries=1), began_s=6, ended_s=9)

    report = read_reports(tmp_path)

    assert report is not None
    assert (4 * GIB, 2 * GIB, None) == tuple(report.reserved(f"GPU-{place}", place) for place in (0, 1, 2))
    assert ({0: 2, 1: 0}, False) == (report.ooms_on, report.out_of_memory)


def test_a_message_is_text(tmp_path: Path) -> None:
    """A lone surrogate in JSON is no character. It cost the run its peaks, and the worker a traceback."""
    plain = {"out_of_memory": True, "message": "lost \ud800", "devices": [on(0, GIB)]}
    (tmp_path / "reports").write_text(json.dumps(plain))

    report = read_reports(tmp_path)

    assert report is not None
    assert ("lost ?", GIB) == (report.message, report.reserved("GPU-a", 0))


def test_a_launcher_may_give_each_process_one_device(tmp_path: Path) -> None:
    """The UUID tells devices apart. A launcher may give each process one device, and each process calls it 0."""
    write_report(tmp_path, 1, on(0, 1 * GIB, uuid="GPU-a"))
    write_report(tmp_path, 13, on(0, 2 * GIB, uuid="GPU-b"))

    report = read_reports(tmp_path)

    assert report is not None
    assert (GIB, 2 * GIB) == (report.reserved("GPU-a", 0), report.reserved("GPU-b", 1))
    assert report.out_of_memory


def test_devices_out_of_memory_are_in_the_order_of_the_run(tmp_path: Path) -> None:
    """The devices that ran out of memory are listed in the run's order.

    They are found by UUID, or by index if a process does not know the UUID.
    """
    write_report(tmp_path, 1, on(0, GIB, uuid="GPU-a"), on(1, GIB, uuid="GPU-b", ooms=1))
    write_report(tmp_path, 2, on(2, GIB, ooms=3))

    report = read_reports(tmp_path)

    assert report is not None
    assert ["GPU-b", "GPU-c"] == report.ran_out_on(["GPU-a", "GPU-b", "GPU-c", "GPU-d"])
    assert [] == report.ran_out_on(["GPU-a"])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"began_s": 0, "ended_s": 1, "out_of_memory": true, "devices": 5}', "[" * 100_000],
)
def test_a_file_that_makes_no_sense_is_not_read(tmp_path: Path, text: str) -> None:
    """An invalid report is ignored. The job can write anything into the file."""
    write_report(tmp_path, 1, on(0, GIB))
    write_report(tmp_path, 2, on(0, 2**70))
    write_report(tmp_path, 3, on(0, -1))
    with (tmp_path / "reports").open("a") as file:
        file.write(text)

    report = read_reports(tmp_path)

    assert report is not None
    assert {0: GIB} == report.reserved_on


SEEN = Peak(bytes=5, source=PeakSource.NVML_SAMPLED, samples=3, interval_s=1.0, shared=False)
