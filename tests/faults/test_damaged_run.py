from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import odd
import pytest
from bounded import until
from factories import make_spec
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind, Record
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import MIB
from workers.run.directory import RunDir


def directory_of(site: Site, job_id: int) -> RunDir:
    """Return the directory of the job's only run."""
    (path,) = (site.settings.runs_dir / str(job_id)).iterdir()
    return RunDir(path)


def start_job(site: Site, script: str) -> tuple[int, RunDir, ProcessIdentity]:
    """Run a shell script that must not run twice; return its job id, its run directory and its first process."""
    job_id = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB, requeue=False)).id
    site.until_state(job_id, JobState.RUNNING)
    directory = directory_of(site, job_id)
    pid = directory.path / "pid"
    lines = until(lambda: pid.read_text().splitlines()[1:] if pid.exists() else [], what="the job's process")
    process = ProcessIdentity.parse(lines[0])
    assert process is not None
    return job_id, directory, process


def ending_of(record: Record) -> tuple[JobState, EndingKind, str]:
    """Return how the last run of a job ended."""
    assert record.last_run is not None
    assert record.last_run.ending is not None
    return record.job.state, record.last_run.ending.kind, record.last_run.ending.detail


def truncate(path: Path) -> None:
    """Keep only the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def replace_by(put: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a function that removes a file and calls *put* to create something else in its place."""

    def do(path: Path) -> None:
        path.unlink()
        put(path)

    return do


#: The damages that can happen to a file, by name. The last three replace it by something that is no usable file.
DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "binary": lambda path: path.write_bytes(bytes(range(256))) and None,
    "another's": lambda path: path.write_text('{"job_id": 1, "token": "9.f", "devices": []}') and None,
    **{kind: replace_by(odd.NO_FILES[kind]) for kind in ("pipe", "directory", "huge")},
}


@pytest.mark.full
def test_a_worker_adopts_what_it_can_and_ends_what_it_cannot(site: Site) -> None:
    """For each damage to a claim, the next worker starts and ends that run with an explanation.

    No damaged run stays alive beside another copy. A run whose measurements alone are damaged goes on.
    """
    site.start_recorder()
    worker = site.start_worker()
    runs = {kind: start_job(site, "sleep 100") for kind in DAMAGES}
    whole = start_job(site, "trap 'exit 7' TERM; while :; do sleep 0.05; done")
    site.end(worker, signal.SIGKILL)
    for kind, (_, directory, _) in runs.items():
        DAMAGES[kind](directory.path / "claim")
    (whole[1].path / "meters").write_bytes(b'{"devices": {"')

    worker = site.start_worker()

    for job_id, directory, process in runs.values():
        assert (JobState.LOST, EndingKind.LOST, "its run directory is damaged") == ending_of(
            site.until_recorded(job_id)
        )
        assert not process.alive()
        until(lambda directory=directory: not (directory.path / "spec").exists(), what="the settlement")  # type: ignore[misc]
    site.queue.jobs.cancel(whole[0])
    assert JobState.CANCELLED is site.until_recorded(whole[0]).job.state
    assert worker.poll() is None
    assert "its figures so far are lost" in site.log()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["truncated", "directory"])
def test_an_unreadable_exit_is_a_lost_run(site: Site, tmp_path: Path, kind: str) -> None:
    """A run whose exit file is unreadable is lost.

    The exit was written while no worker was running. The next worker reports the loss and does not retry for ever.
    """
    site.start_recorder()
    worker = site.start_worker()
    gate = tmp_path / "gate"
    job_id, directory, process = start_job(site, f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 3")
    site.end(worker, signal.SIGKILL)
    gate.touch()
    until(lambda: (directory.path / "exit").exists() and not process.alive(), what="the end")
    shim = directory.shim()
    assert shim is not None
    assert shim.wait(30)
    DAMAGES[kind](directory.path / "exit")

    worker = site.start_worker()

    state, ending, detail = ending_of(site.until_recorded(job_id))
    assert (JobState.LOST, EndingKind.LOST) == (state, ending)
    assert "exit" in detail
    job = site.queue.requests.submit(make_spec(argv=("true",), mem_bytes=MIB))
    assert JobState.SUCCEEDED is site.until_recorded(job.id).job.state
    assert worker.poll() is None


#: What a job can do to its own run directory, and the kind of its ending. None means that the job exits by itself.
SPOILS: dict[str, tuple[str, EndingKind | None]] = {
    "log": ("rm log; mkfifo log", None),
    "pid": ("rm pid; mkfifo pid", None),
    "exit": ("mkdir exit", None),
    "half an exit": ("mkfifo .exit", None),
    "meters": ("rm -f meters; mkfifo meters", None),
    "reports": ("head -c 100000 /dev/urandom > reports; mkdir inside; mkfifo inside/1.json", None),
    "heartbeat": ("rm heartbeat; mkfifo heartbeat", None),
    "cancel": ("mkdir cancel", EndingKind.CANCELLED),
    "spec": ("rm spec; mkdir spec", None),
}


@pytest.mark.full
def test_an_end_is_reported_whatever_the_job_does_to_its_run_directory(site: Site) -> None:
    """The end of a job that damages its own run directory is recorded, and the worker goes on.

    The run directory is writable by the job.
    """
    site.start_recorder()
    worker = site.start_worker()
    ids = {}
    for name, (spoil, wanted) in SPOILS.items():
        rest = "sleep 1.2; exit 4" if wanted is None else "sleep 1000"  # the shim checks once a second
        script = f"cd $GPUQUEUE_RUN_DIR && {spoil}; {rest}"
        ids[name] = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB, requeue=False)).id

    for name, job_id in ids.items():
        record = site.until_recorded(job_id)
        assert record.last_run is not None, name
        assert record.last_run.ending is not None, name
        wanted = SPOILS[name][1]
        if wanted is None:
            assert (EndingKind.EXITED, 4) == (record.last_run.ending.kind, record.last_run.ending.exit_code), name
        else:
            assert wanted is record.last_run.ending.kind, name
    assert worker.poll() is None
    assert "Traceback" not in site.log()
