"""A site whose service packs files with a small program of the tests, and requests for the files of jobs."""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from becoming import becoming
from fake_relay import Answer, ask
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.model.job import Job
from gpuqueue.model.job_request import JobRequest

PACK = Path(__file__).with_name("pack_files.py")


@contextmanager
def packing(more_bounds: Mapping[str, float] | None = None, **chosen: str) -> Iterator[ServedSite]:
    """Run such a site, with *more_bounds* of the service and the settings *chosen*.

    It does not wait for long for other hosts.
    """
    folder = Path(mkdtemp(prefix="gpuqueue-pack-"))
    program = becoming(folder / "pack", sys.executable, PACK)
    bounds: dict[str, float | str] = {
        "gpuqueue.service.routes.files:PROGRAM": str(program),
        "gpuqueue.service.relay_requests:FIRST_S": 2,
        **(more_bounds or {}),
    }
    try:
        with serving(bounds, **chosen) as site:
            yield site
    finally:
        shutil.rmtree(folder)


@contextmanager
def opened(site: ServedSite) -> Iterator[Client]:
    """Return a client whose code travels. Nothing is open."""
    with site.client("direct") as direct:
        for each in direct.jobs.list():
            direct.jobs.cancel(each.id)
    with Client(replace(site.client("https").settings, snapshot=True)) as client:
        yield client


def submitted(client: Client, directory: Path) -> Job:
    """Submit a job with a copy of its code, which is in *directory*."""
    (directory / "train.py").write_text("print(1)\n")
    return client.jobs.submit_request(JobRequest("train.py", mem="1M", cwd=directory))


def fetched(site: ServedSite, job: Job | int, query: str = "", token: str = "mine") -> Answer:
    """Return the answer to a request for the files of *job*."""
    name = job.id if isinstance(job, Job) else job
    return ask(site, "GET", f"/jobs/{name}/files{query}", (site.directory / token).read_text())


def files_in(answer: Answer) -> dict[str, bytes]:
    """Return the files of an archive."""
    assert (200, "application/x-tar") == (answer.status, answer.headers.get("content-type")), answer.content[:1000]
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]


def archive_of(files: dict[str, bytes]) -> bytes:
    """Return an archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()
