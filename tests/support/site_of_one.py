"""A whole site on this machine: real workers, a real recorder, the real command line."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from pathlib import Path

import psutil
from bounded import until
from forked_command import BIN, command
from template_history import make_tables

from gpuqueue.client import Client
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Record
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import current_account


class Site:
    """Starts and stops the real processes, with heartbeats and leases short enough for a test."""

    def __init__(self, state_dir: Path, store_url: str, **settings: str) -> None:
        self.environ = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "GPUQUEUE_STATE_DIR": str(state_dir),
            "GPUQUEUE_REDIS_URL": store_url,
            # Simulated devices are identified by host and number, and must differ between tests.
            "GPUQUEUE_HOST": f"test-{secrets.token_hex(4)}",
            "GPUQUEUE_ADMINS": current_account("here").name,
            "GPUQUEUE_DEVICES": "sim:1x8G",
            "GPUQUEUE_HEADROOM": "0",
            "GPUQUEUE_HEARTBEAT": "0.2s",
            "GPUQUEUE_HOST_LOST_AFTER": "20s",
            "GPUQUEUE_POLL": "0.5s",
            "GPUQUEUE_KILL_GRACE": "2s",
            **settings,
        }
        self.settings = Settings.load(self.environ)
        self.client = Client(self.settings)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = state_dir / "processes.log"
        state_dir.mkdir(parents=True, exist_ok=True)
        self.queue.recovery.open(0)
        self.queue.rules.set_policy(
            half_life_s=self.settings.half_life_s, urgent=None, shares={}, admins=self.settings.admins
        )

    @property
    def queue(self) -> JobQueue:
        """Return the client's queue."""
        return self.client.queue

    def cli(self, *words: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run ``gpuqueue`` as a user would."""
        done = command(words, self.environ, stdin=stdin)
        assert not check or done.returncode == 0, f"gpuqueue {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        """Start ``gpuqueue-worker`` with these words."""
        return self.spawn_command([str(BIN / "gpuqueue-worker"), *words])

    def spawn_command(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start any program in this site's environment."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process)
        return process

    def start_worker(self, device: str = "0", *, plain: bool = True) -> subprocess.Popen[bytes]:
        """Start the worker of a device and wait until it is registered."""
        before = {each.worker for each in self.queue.devices.all()}
        process = self.spawn("run", "--device", device, *(["--plain"] if plain else []))
        until(
            lambda: process.poll() is not None or {each.worker for each in self.queue.devices.all()} - before,
            what="a worker",
        )
        assert process.poll() is None, self.log()
        return process

    def start_recorder(self) -> subprocess.Popen[bytes]:
        """Update the history's tables and start a recorder."""
        self.make_tables()
        return self.spawn("record")

    def make_tables(self) -> None:
        """Update the tables of the history database."""
        make_tables(self.settings.database_url)

    def end(self, process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end of the process."""
        process.send_signal(number)
        return process.wait(timeout=30)

    def until_state(self, job_id: int, *states: JobState, timeout_s: float = 60.0) -> Job:
        """Wait until the queue or the history has the job in one of *states*."""

        def there() -> Job | None:
            job = self.client.jobs.get(job_id)
            return job if job.state in states else None

        job = until(there, timeout_s=timeout_s, what=f"job {job_id} in {[str(each) for each in states]}")
        assert job is not None
        return job

    def until_state_in_queue(self, job_id: int, state: JobState) -> None:
        """Wait until the queue has the job in *state*; the history is not asked."""

        def there() -> bool:
            job = self.queue.jobs.get(job_id)
            return job is not None and job.state is state

        until(there, what=f"job {job_id} {state} in the queue")

    def until_recorded(self, job_id: int, timeout_s: float = 60.0) -> Record:
        """Wait until the history has the end of a job."""

        def there() -> Record | None:
            record = self.client.database.get(job_id)
            return record if record is not None and record.job.state.is_end else None

        record = until(there, timeout_s=timeout_s, what=f"job {job_id} in the history\n{self.log()[-3000:]}")
        assert record is not None
        return record

    def log(self) -> str:
        """Return the output of the site's processes."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stop(self) -> None:
        """End every process, including the workers of a host process, the shims and their jobs."""
        for process in self._processes:
            if process.poll() is None:
                _kill_with_children(process.pid)
            process.wait(timeout=30)
        for pid_file in self.settings.runs_dir.glob("[0-9]*/*/pid"):
            for line in pid_file.read_text().splitlines():
                try:
                    os.kill(int(line.split()[0]), signal.SIGKILL)
                except (OSError, IndexError, ValueError):
                    continue
        self.client.close()


def _kill_with_children(pid: int) -> None:
    """Kill a process and all below it. Workers outlive their host process, and would take the jobs of the next test."""
    parent = psutil.Process(pid)
    parent.suspend()  # it starts no more
    for process in (*parent.children(recursive=True), parent):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
