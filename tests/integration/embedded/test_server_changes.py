from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from factories import make_spec
from own_store import OwnStore

from gpuqueue.embedded import server
from gpuqueue.embedded.server import recorded, write_record
from gpuqueue.errors import GpuQueueError
from gpuqueue.queue.jobqueue import JobQueue


def redis_7(folder: Path) -> Path:
    """Install a Redis 7.0 that cannot be started: only its version is asked for."""
    folder.mkdir()
    program = folder / "redis-server"
    program.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'Redis server v=7.0.15 malloc=libc' || exit 1\n")
    program.chmod(0o755)
    return program


def digests(directory: Path) -> dict[str, str]:
    """Return a digest of each of the store's data files."""
    files = (path for path in directory.rglob("*.aof*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def submitted(store: OwnStore) -> int:
    """Submit a job and stop the store."""
    queue = JobQueue(store.url)
    queue.recovery.open(0)
    job_id = queue.requests.submit(make_spec()).id
    queue.close()
    store.stop()
    return job_id


def has_job(store: OwnStore, job_id: int) -> bool:
    """Return whether the store has the job."""
    queue = JobQueue(store.url)
    try:
        return queue.jobs.get(job_id) is not None
    finally:
        queue.close()


def test_a_server_that_appears_on_path_does_not_take_the_files(
    own_store: OwnStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ``up`` used the bundled server. Debian's redis-server was then installed, and ``up`` came again."""
    job_id = submitted(own_store)
    redis_7(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")

    own_store.start()

    assert has_job(own_store, job_id)


def test_a_server_that_cannot_read_the_files_is_not_started(
    own_store: OwnStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled server is gone and a Redis 7.0 is there: it is refused, the files stay as they are."""
    job_id = submitted(own_store)
    directory = own_store.settings.state_dir / "store"
    writer, before = recorded(directory), digests(directory)
    assert writer is not None
    with monkeypatch.context() as without_bundled:
        without_bundled.setenv("PATH", str(redis_7(tmp_path / "bin").parent), prepend=":")
        without_bundled.setattr(server, "_bundled", lambda: None)
        write_record(directory, server.ServerProgram(path=tmp_path / "gone", product="valkey", version=(9, 1, 2)))

        with pytest.raises(GpuQueueError, match=r"written by valkey 9\.1\.2 .* nothing was changed"):
            own_store.start()

    assert before == digests(directory)
    write_record(directory, writer)
    own_store.start()
    assert has_job(own_store, job_id)


def test_a_damaged_file_is_reported_without_advice_to_cut_it(own_store: OwnStore) -> None:
    """The server's own advice, ``check-aof --fix``, deletes all jobs behind the damage."""
    submitted(own_store)
    directory = own_store.settings.state_dir / "store"
    (log,) = directory.glob("appendonlydir/*.incr.aof")
    data = bytearray(log.read_bytes())
    data[data.index(b"\r\n*", len(data) // 2) + 2] = ord("?")  # the first letter of a command
    log.write_bytes(data)

    with pytest.raises(GpuQueueError, match=r"changed nothing: copy that directory before you repair"):
        own_store.start()


@pytest.mark.full
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs a redis-server on PATH")
def test_files_of_a_real_redis_come_with_an_upgrade_to_valkey(
    own_store: OwnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site began with Debian's Redis and then installs a newer server: the jobs are there."""
    own_store.stop()
    own_store.remove_data()
    with monkeypatch.context() as without_bundled:
        without_bundled.setattr(server, "_bundled", lambda: None)
        own_store.start()
    record = own_store.settings.state_dir / "store" / "server.json"
    fields = json.loads(record.read_text())
    if not fields["version"].startswith(("6.2", "7.0", "7.2")):
        pytest.skip(f"Valkey does not read the files of Redis {fields['version']}")
    job_id = submitted(own_store)
    record.write_text(json.dumps(fields | {"program": "/gone/redis-server"}))

    own_store.start()

    assert has_job(own_store, job_id)
    assert "valkey" == json.loads(record.read_text())["product"]
