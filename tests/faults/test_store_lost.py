"""The store restarts without its data: nothing is lost, nothing runs twice, no healthy run is ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from own_store import OwnStore
from site_of_one import Site

from gpuqueue.job import Job
from gpuqueue.process import ProcessIdentity
from gpuqueue.units import MIB


class Patient:
    """A job that says who it is, and ends with an exit code when it is told to."""

    def __init__(self, site: Site, place: Path, code: int = 0) -> None:
        self.site = site
        self.said, self.gate = place / f"said-{code}", place / f"gate-{code}"
        script = f"echo $$ >> {self.said}; while [ ! -e {self.gate} ]; do sleep 0.05; done; exit {code}"
        self.job: Job = site.queue.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB, name=f"patient-{code}"))

    def pids(self) -> list[int]:
        """Return the pid of each copy of it that ever began."""
        return [int(word) for word in self.said.read_text().split()] if self.said.exists() else []

    def process(self) -> ProcessIdentity:
        """Wait until it runs, and return the identity of its process."""
        (pid,) = until(self.pids, what=f"job {self.job.id} runs")
        identity = ProcessIdentity.of(pid)
        assert identity is not None
        return identity


@pytest.mark.parametrize("across", ["socket", "network"])
def test_a_store_that_knows_nothing_ends_nobodys_run(own_store: OwnStore, tmp_path: Path, across: str) -> None:
    """It did: the beat heard that the token is unknown, and three-day trainings were ended as stale, all at once."""
    url = own_store.url if across == "socket" else own_store.listen()
    site = Site(tmp_path / across, url, GPUQUEUE_LEASE="2s")
    try:
        site.start_worker()
        patient = Patient(site, tmp_path)
        process = patient.process()

        own_store.empty()

        # Longer than the grace: the shim would end it as well if nobody vouched for it.
        until(lambda: site.log().count("the runs go on") > 12, what="the worker beats on")
        assert process.alive()
    finally:
        site.stop()
