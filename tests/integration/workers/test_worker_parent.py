"""The parent of the workers: what it holds, and what happens when it or a worker is killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from bounded import until
from factories import make_spec
from own_home import Home
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.system.run_processes import children
from gpuqueue.text.units import MIB
from workers.services import worker_parent
from workers.services.worker_parent import ForkedWorker, WorkerParent


class Parent:
    """A parent of workers, in the environment of a site, whose output is kept."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._log = log.open("ab")
        self._parent = WorkerParent()
        self._workers: list[ForkedWorker] = []

    def start(self, *words: str) -> ForkedWorker:
        """Ask for a process of ``gpuqueue-worker``."""
        self._workers.append(self._parent.start(words, self._log.fileno()))
        return self._workers[-1]

    def forked(self, *words: str) -> ForkedWorker:
        """Ask for a process and wait until it is forked."""
        worker = self.start(*words)
        until(lambda: worker.poll() is not None or worker.pid, what="a fork")
        assert worker.poll() is None, self.log.read_text()
        return worker

    def serving(self, site: Site) -> ForkedWorker:
        """Start the worker of the site's device and wait until it has announced itself."""
        before = {each.worker for each in site.queue.devices.all()}
        worker = self.forked("run", "--device", "0", "--plain")
        until(lambda: {each.worker for each in site.queue.devices.all()} - before, what="a worker")
        return worker

    def close(self) -> None:
        """End the parent and its workers."""
        for worker in self._workers:
            worker.kill()
            worker.wait(30)
        self._parent.close()
        self._log.close()


@pytest.fixture
def parent(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    """Return a parent that has forked nothing yet."""
    for name, value in site.environ.items():
        monkeypatch.setenv(name, value)
    made = Parent(tmp_path / "log")
    yield made
    made.close()


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def parent_of(worker: ForkedWorker) -> int:
    return psutil.Process(worker.pid).ppid()


def test_a_worker_that_cannot_serve_says_so_and_ends_with_its_exit_code(parent: Parent) -> None:
    """Its log has the one line and its end the exit code of a process that was started by itself."""
    worker = parent.start("run", "--device", "nowhere")

    assert 2 == worker.wait(60)
    assert re.fullmatch(r"gpuqueue-worker: 'nowhere' is no device: .*\n", parent.log.read_text())


def test_the_parent_has_opened_nothing_when_it_forks(site: Site, parent: Parent) -> None:
    """It has one thread, no connection but that to the host process, and no driver. A worker looks like a plain one."""
    worker = parent.serving(site)
    process = psutil.Process(parent_of(worker))

    assert 1 == process.num_threads()
    assert [str(parent.log)] * 2 == [file.path for file in process.open_files()]
    assert [] == process.net_connections("inet")
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    assert not re.search("libcuda|libnvidia", mapped)
    assert ["run", "--device", "0", "--plain", "--parent", str(process.pid)] == words_of(worker.pid)[2:]
    assert words_of(process.pid)[:2] == words_of(worker.pid)[:2]
    assert worker.pid == os.getsid(worker.pid)
    assert site.environ["GPUQUEUE_STATE_DIR"] == psutil.Process(worker.pid).environ()["GPUQUEUE_STATE_DIR"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_worker_ends_alone(site: Site, parent: Parent, number: signal.Signals, code: int) -> None:
    """A signal ends one worker, whose exit code is known, and the parent forks the next."""
    first = parent.serving(site)
    forker = parent_of(first)

    first.send_signal(number)

    assert code == first.wait(30)
    assert forker == parent_of(parent.serving(site))


def test_a_job_goes_on_when_the_parent_is_killed(site: Site, parent: Parent, tmp_path: Path) -> None:
    """The worker ends in order, and the worker of the next parent takes over the job, which runs once."""
    site.start_recorder()
    worker = parent.serving(site)
    gate = tmp_path / "gate"
    script = f"echo run >> {gate}.runs; while [ ! -e {gate} ]; do sleep 0.05; done; exit 3"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB))
    site.until_state(job.id, JobState.RUNNING)

    os.kill(parent_of(worker), signal.SIGKILL)

    assert -signal.SIGKILL == worker.wait(30)  # its own code is lost with its parent
    parent.serving(site)
    gate.touch()
    assert JobState.FAILED is site.until_recorded(job.id).job.state
    assert "run\n" == gate.with_name("gate.runs").read_text()


def test_a_worker_that_is_stopped_before_its_fork_does_not_run(parent: Parent) -> None:
    """The parent has not read the request yet, and ends what it forks for nobody."""
    first = parent.forked("relay")
    forker = psutil.Process(parent_of(first))
    forker.suspend()
    second = parent.start("relay")

    second.send_signal(signal.SIGTERM)

    assert -signal.SIGTERM == second.poll()
    forker.resume()
    first.kill()
    assert -signal.SIGKILL == first.wait(30)
    until(lambda: not children(forker.pid), what="no worker is left")


def test_a_parent_that_does_not_fork_is_replaced(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that hangs is killed. Its worker ends, and the next request starts another parent."""
    first = parent.forked("record")
    forker = psutil.Process(parent_of(first))
    forker.suspend()
    monkeypatch.setattr(worker_parent, "FORK_S", 0.1)
    second = parent.start("relay")

    assert worker_parent.NOT_FORKED == until(second.poll, what="the end of a worker that is not forked")
    assert not forker.is_running()
    monkeypatch.undo()
    assert forker.pid != parent_of(parent.forked("record"))


def test_no_job_ends_when_the_parent_of_all_workers_is_killed(home: Home, tmp_path: Path) -> None:
    """The host process starts a parent with all workers again, doctor finds nothing, and `down` ends all of them."""
    home.environ |= {"GPUQUEUE_DEVICES": "sim:2x8G", "GPUQUEUE_HEARTBEAT": "0.5s", "GPUQUEUE_HEADROOM": "0"}
    home("up")
    script = f"echo run >> {tmp_path}/runs; while [ ! -e {tmp_path}/gate ]; do sleep 0.05; done"
    job = home("submit", "--mem", "1M", "--", "sh", "-c", script).split()[0]
    until((tmp_path / "runs").exists, what="the start of the job")

    def workers() -> set[str]:
        return {device["worker"] for device in json.loads(home.output_of("gpus", "--json"))}

    def is_well() -> bool:
        checks = {each["check"]: each["grade"] for each in json.loads(home.output_of("doctor", "--json"))["findings"]}
        return "ok" == checks["workers"]

    before = workers()
    host = int((home.state / "host.pid").read_text().split()[0])
    (forker,) = (pid for pid in children(host) if "parent" in words_of(pid))
    assert 2 == len(children(forker))
    assert is_well()
    os.kill(forker, signal.SIGKILL)
    until(lambda: len(workers() - before) == 2, what="two new workers")

    until(is_well, what="a doctor that finds two workers")
    (tmp_path / "gate").touch()
    home("wait", job)
    assert "run\n" == (tmp_path / "runs").read_text()
    home("down")
    assert [] == home.ours()
