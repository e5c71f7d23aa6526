"""Slurm as a device of a host, the end of a whole job as its run records it, and the sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_device

from gpuqueue.engines.engine import Ref
from gpuqueue.engines.whole_job import Account, WholeKey
from gpuqueue.errors import Refused
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB
from workers.devices.select import EngineBackend, choose
from workers.run.directory import Exit
from workers.services.mark_watch import stalled_s
from workers.whole import outcome
from workers.whole.prepare import check_host
from workers.whole.sweep import Sweep
from workers.whole.work import End


def test_no_host_serves_an_engine_where_jobs_run_as_their_submitters(tmp_path: Path) -> None:
    """All jobs would be those of one account at the engine."""
    words = {"STATE_DIR": str(tmp_path), "CONFIG": "/dev/null", "RUN_AS": "submitter"}
    settings = Settings.load({f"GPUQUEUE_{name}": value for name, value in words.items()})
    (engine,) = EngineBackend("login").devices()

    with pytest.raises(Refused, match="Slurm cannot be served where jobs run as their submitters"):
        check_host(settings, engine)
    check_host(settings, make_device("GPU-0"))


def test_an_engine_is_one_device_without_memory_of_its_own() -> None:
    """It counts as empty, so that only its slots limit it, of which it has more than a device."""
    backend = EngineBackend("login")
    (engine,) = backend.devices()
    reading = backend.reading(engine)

    assert ("slurm-login", DeviceKind.SLURM) == (engine.uuid, engine.kind)
    assert (engine.total_bytes, {}) == (reading.free_bytes, reading.processes)
    assert (64, 8) == (Settings.load({}).slots_for(engine), Settings.load({}).slots_for(make_device("GPU-0")))
    both = choose("sim:1x4G,cpu,slurm", "login").devices()
    assert [0, 1, 2] == [each.index for each in both]
    assert [DeviceKind.SIMULATED, DeviceKind.CPU, DeviceKind.SLURM] == [each.kind for each in both]


FOLLOWED = Exit(ending=Ending.from_status(1), duration_s=100.0, max_rss_bytes=5)


def ended(place: Path, end: End | None, follower: Exit = FOLLOWED) -> Exit:
    """Return the exit of a run whose follower wrote *end*."""
    if end is not None:
        end.write(place)
    run: Any = SimpleNamespace(directory=SimpleNamespace(path=place), held=SimpleNamespace(devices=[RunDevice(
        uuid="slurm-login", lease_bytes=1, name="Slurm")]))  # fmt: skip
    return outcome.exit_of(run, follower)


@pytest.mark.parametrize(
    ("word", "codes", "kind", "code"),
    [
        ("completed", (0, None), EndingKind.EXITED, 0),
        ("failed", (3, None), EndingKind.EXITED, 3),
        ("timeout", (0, None), EndingKind.TIMED_OUT, None),
        ("deadline", (0, None), EndingKind.TIMED_OUT, None),
        ("out_of_memory", (0, 125), EndingKind.OUT_OF_MEMORY, None),
        ("cancelled", (0, 15), EndingKind.CANCELLED, None),
        ("node_fail", (0, None), EndingKind.PREEMPTED, None),
        ("preempted", (0, None), EndingKind.PREEMPTED, None),
    ],
)
def test_slurms_words_decide_the_ending(
    tmp_path: Path, word: str, codes: tuple[int, int | None], kind: EndingKind, code: int | None
) -> None:
    """A node that fails makes the job wait for another one; and the time at Slurm counts, without the wait there."""
    account = Account(
        word=word, exit_code=codes[0], signal=codes[1], nodes="n1", started_s=1796059472.0, ended_s=1796059476.0
    )
    found = ended(tmp_path, End(ref="7", account=account))

    assert (kind, code) == (found.ending.kind, found.ending.exit_code)
    assert (4.0, None) == (found.duration_s, found.max_rss_bytes)
    assert ["Slurm ran it as job 7 on n1, from 2026-11-30 17:24:32Z to 2026-11-30 17:24:36Z"] == [
        note.words for note in found.notes
    ]


def test_a_follower_without_a_word_about_the_end_lost_its_run(tmp_path: Path) -> None:
    """The job may live. What the shim has decided stays."""
    assert EndingKind.LOST is ended(tmp_path, None).ending.kind
    cancelled = replace(FOLLOWED, ending=Ending.stopped(EndingKind.CANCELLED, -15))
    assert EndingKind.CANCELLED is ended(tmp_path, None, cancelled).ending.kind


def test_without_an_account_the_jobs_own_file_decides(tmp_path: Path) -> None:
    """Without that, too, nobody knows."""
    assert 4 == ended(tmp_path, End(ref="7", code=4)).ending.exit_code
    assert EndingKind.LOST is ended(tmp_path, End(ref="7")).ending.kind
    assert EndingKind.REFUSED is ended(tmp_path, End(refused="no partition")).ending.kind


def test_the_memory_of_the_accounting_is_the_peak(tmp_path: Path) -> None:
    """Unknown memory stays unknown."""
    device = RunDevice(uuid="slurm-login", lease_bytes=1, kind=DeviceKind.SLURM)
    run: Any = SimpleNamespace(directory=SimpleNamespace(path=tmp_path))
    assert (device,) == outcome.with_memory(run, (device,))
    End(ref="7", account=Account(word="completed", gpu_mem_bytes=GIB)).write(tmp_path)
    (found,) = outcome.with_memory(run, (device,))

    assert Peak(bytes=GIB, source=PeakSource.NVML_SAMPLED) == found.peak


def test_the_sweep_ends_what_nobody_waits_for() -> None:
    """Not what waits, runs or is held here, nor the jobs of pilots and of other sites."""
    site, states = "663c26a7", {1: JobState.RUNNING, 2: JobState.QUEUED, 3: JobState.HELD, 4: JobState.CANCELLED}
    keys = [*(str(WholeKey(site, job_id, 1)) for job_id in (1, 2, 3, 4, 5)), "k3v9m2xqab", str(WholeKey("0" * 8, 4, 1))]
    cancelled: list[str] = []
    engine: Any = SimpleNamespace(
        alive=lambda: [Ref(key, str(number)) for number, key in enumerate(keys)],
        cancel=lambda ref, now: cancelled.append(ref.id) if now else None,
    )
    jobs = SimpleNamespace(get=lambda job_id: SimpleNamespace(state=states[job_id]) if job_id in states else None)
    queue: Any = SimpleNamespace(jobs=jobs)

    assert (2, ["3", "4"]) == (Sweep(engine, queue, site).sweep(), cancelled)


def test_a_job_that_waits_at_slurm_has_not_stalled(tmp_path: Path) -> None:
    """Its output begins with it."""
    run: Any = SimpleNamespace(
        is_whole=True,
        since_s=0.0,
        directory=SimpleNamespace(path=tmp_path / "17" / "1.a"),
        held=SimpleNamespace(devices=[RunDevice(uuid="slurm-login", lease_bytes=1, kind=DeviceKind.SLURM)]),
        silent_s=lambda now_s: now_s - 10.0,
    )
    run.directory.path.mkdir(parents=True)
    assert stalled_s(run, 3600.0) is None
    (run.directory.path / "w663c26a7j17n1.out").touch()

    assert 3590.0 == stalled_s(run, 3600.0)
