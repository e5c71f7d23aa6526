"""Tests of a host that fetches the code of a job from the service."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_spec
from host_service import HostService

from gpuqueue.files.manifest import write_stream
from gpuqueue.files.take import Snapshot, take_snapshot
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir
from workers.shim.code import BUNDLE, TREE, unpack
from workers.steps import fetch_code
from workers.steps.conclusion import NotStarted
from workers.steps.fetch_code import FetchCode, unpacking

NEVER = threading.Event()


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """Return a snapshot of two files."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print('hi')\n")
    (project / "weights").write_bytes(os.urandom(50_000))
    return take_snapshot(project)


@pytest.fixture
def run(settings: Settings, snapshot: Snapshot) -> LiveRun:
    """Return the run of a job with that snapshot."""
    held = Held(job_id=7, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    directory = RunDir.create(settings.runs_dir, held)
    return LiveRun(
        held=held, directory=directory, since_s=0.0, spec=make_spec(snapshot=str(CodeSnapshot(snapshot.address)))
    )


def stream_of(snapshot: Snapshot) -> bytes:
    """Return the stream that the service sends."""
    return b"".join(write_stream(snapshot.manifest, snapshot.blob))


def not_started(settings: Settings, run: LiveRun, stopping: threading.Event = NEVER) -> NotStarted:
    """Return why the run does not start."""
    with pytest.raises(NotStarted) as refused:
        FetchCode(settings, stopping).fetch(run)
    return refused.value


def test_the_code_comes_from_the_service(
    service: HostService, settings: Settings, snapshot: Snapshot, run: LiveRun, tmp_path: Path
) -> None:
    """The first process can unpack what came. Only the account of the workers may read it."""
    service.codes[7] = stream_of(snapshot)

    FetchCode(settings, NEVER).fetch(run)

    path, copy = run.directory.path / BUNDLE, tmp_path / "copy"
    assert 0o600 == path.stat().st_mode & 0o777
    copy.mkdir()
    with path.open("rb") as file:
        unpack(file.fileno(), unpacking(CodeSnapshot(snapshot.address), copy))
    assert "print('hi')\n" == (copy / TREE / "train.py").read_text()


def test_a_host_for_which_the_service_has_no_code_is_excluded_for_the_job(settings: Settings, run: LiveRun) -> None:
    """Another host may run it, and the job has not failed."""
    refused = not_started(settings, run)

    assert "the service has no code for this host: the job has no claim on this host" == str(refused)
    assert refused.host_lacks is not None
    assert not refused.host_failed


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:9/proxy"])
def test_a_host_that_cannot_reach_the_service_is_in_trouble(settings: Settings, run: LiveRun, url: str) -> None:
    """That is no failure of the job. The device takes no job until a start works again."""
    refused = not_started(replace(settings, service_url=url), run)

    why = f"the job's code cannot be fetched: the service at {url} does not answer: Connection refused"
    assert why == str(refused)
    assert refused.host_failed
    assert refused.host_lacks is None


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda stream: stream[:-1], "the snapshot was cut short on its way"),
        (lambda stream: stream + b"x", "the service sends more than the snapshot has"),
        (lambda stream: stream.replace(b"train.py", b"drain.py"), "the service sends the code of another job"),
        (lambda _: b"<html>" * 99, "so it is no snapshot"),
        (lambda _: b"", "the snapshot was cut short on its way"),
    ],
)
def test_a_stream_that_is_not_the_code_is_no_failure_of_the_job(
    service: HostService, settings: Settings, snapshot: Snapshot, run: LiveRun, damage: object, words: str
) -> None:
    """Nothing of it is run, and the claim is released."""
    assert callable(damage)
    service.codes[7] = damage(stream_of(snapshot))

    refused = not_started(settings, run)

    assert words in str(refused)
    assert refused.host_failed


def test_a_slow_service_holds_a_device_only_for_so_long(
    service: HostService, settings: Settings, snapshot: Snapshot, run: LiveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline in total counts although some bytes come again and again."""
    monkeypatch.setattr(fetch_code, "TOTAL_S", 0.3)
    service.codes[7] = stream_of(snapshot)
    slow = threading.Event()
    service.on_part = lambda _, __: slow.wait(0.05) and None  # type: ignore[func-returns-value]

    refused = not_started(settings, run)

    assert "sends too slowly" in str(refused) or "no answer in time" in str(refused)
    slow.set()


def test_a_worker_that_stops_releases_the_job(
    service: HostService, settings: Settings, snapshot: Snapshot, run: LiveRun
) -> None:
    """An upgrade of the workers does not count as a loss of the job, nor as trouble of the host."""
    service.codes[7] = stream_of(snapshot)
    stopping = threading.Event()
    service.on_part = lambda _, at: stopping.set() if at > 10_000 else None

    refused = not_started(settings, run, stopping)

    assert "the worker stops" == str(refused)
    assert not refused.host_failed
    assert refused.host_lacks is None
