"""A real worker and a real relay on a host that is not the host of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from host_service import HostService
from site_of_one import Site

from gpuqueue.files.manifest import write_stream
from gpuqueue.files.take import Snapshot, take_snapshot
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.job import JobState
from gpuqueue.text.units import MIB
from workers.run import deliveries


@pytest.fixture
def site(store_url: str, tmp_path: Path, service: HostService, token_file: Path) -> Iterator[Site]:
    """Return a site whose only host uses a service."""
    known = {"GPUQUEUE_SERVICE_URL": service.url, "GPUQUEUE_SERVICE_TOKEN_FILE": str(token_file)}
    made = Site(tmp_path / "state", store_url, **known)
    yield made
    made.stop()


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """Return the snapshot of a directory with one file."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "greeting").write_text("hello from far")
    return take_snapshot(project)


def submitted(site: Site, snapshot: Snapshot) -> int:
    """Submit a job that reads the file and writes to both outputs, and return its id."""
    words = ("/bin/sh", "-c", "cat greeting; echo oh >&2")
    spec = make_spec(argv=words, mem_bytes=MIB, snapshot=str(CodeSnapshot(snapshot.address)), separate_stderr=True)
    return site.queue.requests.submit(spec).id


def test_code_comes_and_logs_go_by_the_service(service: HostService, site: Site, snapshot: Snapshot) -> None:
    """The job runs the code that the service sent, and its output is at the service when it has ended."""
    service.codes[1] = b"".join(write_stream(snapshot.manifest, snapshot.blob))
    site.start_recorder()
    site.start_worker()
    relay = site.spawn("relay")

    record = site.until_recorded(submitted(site, snapshot))
    assert JobState.SUCCEEDED is record.job.state, site.log()
    until(lambda: not deliveries.names(site.settings), what=f"the delivery\n{site.log()}")

    run = "/".join(Path(str(record.last_run.log_path)).parent.parts[-2:])
    assert (b"hello from far", b"oh\n") == (service.delivered(run, "log"), service.delivered(run, "stderr"))
    assert service.is_complete(run)
    assert 0 == site.end(relay)


def test_a_job_without_code_there_waits_for_another_host(service: HostService, site: Site, snapshot: Snapshot) -> None:
    """The claim is released, the host is excluded for the job, and nothing is left to deliver."""
    site.start_recorder()
    site.start_worker()

    held = site.until_state(submitted(site, snapshot), JobState.HELD)

    assert "the service has no code for this host: the job has no claim on this host" in str(held.because)
    assert 0 == held.attempt
    assert [] == deliveries.names(site.settings)
    assert service.calls == [f"GET /jobs/{held.id}/code"]


def test_a_run_that_does_not_start_leaves_no_delivery(service: HostService, site: Site, snapshot: Snapshot) -> None:
    """A program that is missing on this host excludes it for the job. The entry of the run goes with its directory."""
    service.codes[1] = b"".join(write_stream(snapshot.manifest, snapshot.blob))
    spec = make_spec(argv=("/no/such/program",), mem_bytes=MIB, snapshot=str(CodeSnapshot(snapshot.address)))
    site.start_recorder()
    site.start_worker()

    site.until_state(site.queue.requests.submit(spec).id, JobState.HELD)

    until(lambda: not list(site.settings.runs_dir.glob("[0-9]*")), what="the end of the run directory")
    assert [] == deliveries.names(site.settings)
