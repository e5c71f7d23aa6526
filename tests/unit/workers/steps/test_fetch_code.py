"""Tests of the code that is put into a run directory, and unpacked there."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.files.blob_store import BlobStore, blob_store_of
from gpuqueue.files.manifest import address_of
from gpuqueue.files.take import take_snapshot
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir
from workers.shim.code import BUNDLE, MANIFEST, TREE, unpack
from workers.steps.conclusion import NotStarted
from workers.steps.fetch_code import FetchCode, unpacking

UID = 1001
NEVER = threading.Event()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with their own state directory."""
    return Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path / "state"), "GPUQUEUE_CONFIG": os.devnull})


@pytest.fixture
def store(settings: Settings) -> BlobStore:
    """Return the blob store of the settings."""
    settings.state_dir.mkdir()
    return blob_store_of(settings)


def run_of(tmp_path: Path, address: str) -> LiveRun:
    """Return a run of a job with the snapshot at *address*."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
    directory = RunDir.create(tmp_path / "runs", held)
    spec = make_spec(snapshot=str(CodeSnapshot(address)))
    return LiveRun(held=held, directory=directory, since_s=0.0, spec=spec)


def test_limits_that_were_lowered_after_the_submit_stop_no_job(
    tmp_path: Path, settings: Settings, store: BlobStore
) -> None:
    """The code of a queued job is fetched and unpacked, although a new snapshot may not be that large any more."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("a", "b"):
        (project / name).write_text(name * 100)
    snapshot = take_snapshot(project)
    for sha256, size_bytes in snapshot.blobs().items():
        store.put(UID, sha256, size_bytes, snapshot.blob(sha256), most_bytes=size_bytes)
    store.add_manifest(UID, snapshot.text)

    lowered = replace(settings, snapshot_limit_bytes=10, snapshot_file_limit_bytes=10, snapshot_files=1)
    run = FetchCode(lowered, NEVER).fetch(run_of(tmp_path, snapshot.address))
    copy = tmp_path / "copy"
    copy.mkdir()
    fd = os.open(run.directory.path / BUNDLE, os.O_RDONLY)
    try:
        unpack(fd, unpacking(CodeSnapshot(snapshot.address), copy))
    finally:
        os.close(fd)

    assert {"a": "a" * 100, "b": "b" * 100} == {each.name: each.read_text() for each in (copy / TREE).iterdir()}
    assert snapshot.text == (copy / MANIFEST).read_bytes()


def test_a_manifest_that_leads_out_is_still_refused(tmp_path: Path, settings: Settings, store: BlobStore) -> None:
    """The reader stays strict: the blob store may have been changed."""
    text = b"gpuqueue-snapshot 1\nlink\t../../etc/passwd\tout\n"
    store.put(UID, address_of(text), len(text), [text], most_bytes=len(text))

    with pytest.raises(NotStarted, match="this host has no copy of the job's code"):
        FetchCode(settings, NEVER).fetch(run_of(tmp_path, address_of(text)))
