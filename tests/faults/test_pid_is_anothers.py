from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bounded import until
from factories import make_offer, make_spec
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind, RunDevice
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import MIB
from workers.run import process_tree
from workers.run.directory import Held, RunDir
from workers.run.environment import TOKEN
from workers.run.orphans import end, left


@pytest.fixture
def somebody() -> Iterator[ProcessIdentity]:
    """Return a process that does not belong to gpuqueue. Any signal would end it."""
    process = subprocess.Popen(["/bin/sleep", "1000"])
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    yield identity
    assert process.poll() is None, "it was sent a signal"
    process.kill()
    process.wait()


def before(identity: ProcessIdentity, how: str) -> ProcessIdentity:
    """Return an earlier owner of this pid, from the same boot or from the boot before."""
    if how == "this boot":
        return replace(identity, started=identity.started - 1)
    return replace(identity, boot="00000000-0000-0000-0000-000000000000")


BOOTS = pytest.mark.parametrize("boot", ["this boot", "another boot"])


@BOOTS
def test_a_reused_pid_is_never_taken_for_the_first_process(somebody: ProcessIdentity, boot: str) -> None:
    """A reused pid is not taken for the earlier process: it gets no signal and nothing waits for it."""
    gone = before(somebody, boot)

    assert not gone.alive()
    assert gone.handle() is None
    assert not gone.send(15)  # type: ignore[arg-type]
    assert gone.wait(0.0)


@BOOTS
def test_a_run_whose_shim_pid_was_reused_is_lost_and_nothing_is_signalled(
    site: Site, somebody: ProcessIdentity, boot: str
) -> None:
    """A run whose shim's pid was reused ends, and the new owner of the pid gets no signal.

    Worker and shim were killed, and the shim's pid was reused before the next worker started.
    """
    site.start_recorder()
    job = site.queue.requests.submit(make_spec(mem_bytes=MIB))
    uuid = f"sim-{site.settings.host}-0"
    claimed = site.queue.runs.claim(make_offer(uuid, host=site.settings.host), worker="dead", lease_s=300, nonce="dead")
    assert claimed is None, "nobody has announced the device yet"
    directory = abandoned(site, job.id, uuid, before(somebody, boot))
    site.client.jobs.cancel(job.id)
    directory.ask_end(EndingKind.CANCELLED)
    assert {} == left(site.settings)
    end(site.settings)

    site.start_worker()

    record = site.until_recorded(job.id)
    assert JobState.CANCELLED is record.job.state
    assert "its shim vanished" in str(record.runs[0].ending)
    until(lambda: not (directory.path / "claim").exists(), what="the run directory is settled")


def abandoned(site: Site, job_id: int, uuid: str, shim: ProcessIdentity) -> RunDir:
    """Leave a run in the state in which a killed worker and a killed *shim* leave it."""
    offer = make_offer(uuid, host=site.settings.host)
    site.queue.devices.announce(offer, worker="dead", pid=1, boot_id="x")
    site.queue.devices.heartbeat(offer, [], lease_s=300)
    claimed = site.queue.runs.claim(offer, worker="dead", lease_s=300, nonce="dead")
    assert claimed is not None
    assert job_id == claimed.job_id
    devices = (RunDevice(uuid=uuid, lease_bytes=MIB),)
    directory = RunDir.create(site.settings.runs_dir, Held(job_id=job_id, token=claimed.token, devices=devices))
    log_path = str(directory.log)
    site.queue.runs.started(job_id, claimed.token, lease_s=300, log_path=log_path, devices=devices)
    (directory.path / "pid").write_text(f"{shim}\n{shim}\n")
    return directory


def test_leftovers_are_asked_who_they_are_right_before_they_are_killed(somebody: ProcessIdentity) -> None:
    """The sweep checks a process's token again right before it sends the signal.

    The process may have ended since the scan, and its pid may belong to an unrelated process.
    """
    process_tree._kill(somebody.pid, f"{TOKEN}=1.abc".encode())

    assert somebody.alive()


def test_leftovers_are_killed(tmp_path: Path) -> None:
    """The sweep kills processes that still carry the token."""
    process = subprocess.Popen(["/bin/sleep", "1000"], env={TOKEN: "1.left", "HOME": str(tmp_path)})
    while not process_tree.carrying(TOKEN, "1.left"):  # the process has not called exec yet
        os.sched_yield()

    assert 1 == process_tree.sweep(TOKEN, "1.left")
    assert -9 == process.wait(timeout=30)
