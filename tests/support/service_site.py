"""A site in system mode: store, workers and recorder belong to a service account, jobs to their submitters."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bounded import until
from factories import make_spec
from installed_copy import MOUNT, mounts
from submitters import Launcher, People

from gpuqueue.client import Client
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Record
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import MIB
from workers.run.directory import RunDir, unsettled


class ServiceSite:
    """Runs ``gpuqueue`` as the service account. The tests submit as root, in the place of the service."""

    def __init__(self, folder: Path, people: People, launcher: Launcher) -> None:
        self.people = people
        self.launcher = launcher
        self.service = service = people.service
        self._mounts = folder / "mounts"
        self._mounts.mkdir()
        state, runs = folder / "state", folder / "runs"
        for made in (state, runs):
            made.mkdir(mode=0o700)
            os.chown(made, service.pw_uid, service.pw_gid)
        self.environ = {
            "PATH": f"{people.installation}/bin:/usr/bin:/bin",
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_STATE_DIR": str(state),
            "GPUQUEUE_RUNS_DIR": str(runs),
            "GPUQUEUE_RUN_AS": "submitter",
            "GPUQUEUE_LAUNCHER": launcher.socket,
            "GPUQUEUE_HOST": f"test-{secrets.token_hex(4)}",
            "GPUQUEUE_DEVICES": "cpu",
            "GPUQUEUE_HEADROOM": "0",
            "GPUQUEUE_HEARTBEAT": "0.5s",
            "GPUQUEUE_HOST_LOST_AFTER": "30s",
            "GPUQUEUE_POLL": "0.5s",
            "GPUQUEUE_KILL_GRACE": "2s",
        }
        self.settings = Settings.load(self.environ)
        self.client = Client(self.settings)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program as the service account."""
        command = as_account(self.people, self.service, self._mounts, *words)
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False, timeout=100)

    def up(self) -> None:
        """Start everything with ``gpuqueue up``."""
        done = self.command("gpuqueue", "up")
        skip_without_mounts(done)
        assert 0 == done.returncode, done.stderr

    def submit(self, account: pwd.struct_passwd, words: str, **changes: object) -> int:
        """Submit a shell command as *account*, who is known to the service."""
        known = Account(name=account.pw_name, uid=account.pw_uid, host=self.settings.host)
        fields = {"argv": ("/bin/sh", "-c", words), "cwd": account.pw_dir, "account": known, "mem_bytes": 64 * MIB}
        spec = make_spec(**{**fields, **changes})
        return self.client.queue.requests.submit(spec).id

    def ended(self, job_id: int) -> Record:
        """Wait until the history has the end of a job."""

        def there() -> Record | None:
            record = self.client.database.get(job_id)
            return record if record is not None and record.job.state.is_end else None

        return until(there, timeout_s=60, what=f"the end of job {job_id}") or pytest.fail("it did not end")

    def held(self, job_id: int) -> str:
        """Wait until a job is held, and return why."""

        def reason() -> str | None:
            job = self.client.queue.jobs.get(job_id)
            return job.because if job is not None and job.state is JobState.HELD else None

        return until(reason, timeout_s=60, what=f"a hold of job {job_id}") or pytest.fail("it was not held")

    def running(self, job_id: int) -> RunDir:
        """Wait until a job runs, and return its run directory."""

        def there() -> RunDir | None:
            found = [each for each in unsettled(self.settings.runs_dir) if each.path.parent.name == str(job_id)]
            return next((each for each in found if len(each.processes()) == 3), None)

        return until(there, timeout_s=60, what=f"the processes of job {job_id}") or pytest.fail("it does not run")

    def workers(self) -> list[int]:
        """Return the pids of the workers."""
        mine = self.people.running(self.service)
        return [pid for pid in mine if b"gpuqueue-worker\0run\0" in self.people.command_of(pid)]

    def log(self, job_id: int) -> str:
        """Return the log of a job."""
        run = next((self.settings.runs_dir / str(job_id)).iterdir())
        return (run / "log").read_text()

    def stop(self) -> None:
        """End every process of the service account and of its users."""
        self.command("gpuqueue", "down", "--cancel-jobs")
        self.client.close()
        for account in (self.service, self.people.alice, self.people.bob):
            for pid in self.people.running(account):
                os.kill(pid, signal.SIGKILL)


def as_account(people: People, account: pwd.struct_passwd, base: Path, *words: str) -> list[str]:
    """Return the command that runs *words* as *account* of *people*. *base* is an empty directory for mounts."""
    own = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--", *words]
    return ["unshare", "-m", "/bin/sh", "-c", f'{MOUNT}exec "$@"', "sh", *mounts(base, people.installation), *own]


def skip_without_mounts(done: subprocess.CompletedProcess[str]) -> None:
    """Skip the test if this machine permits no mounts."""
    if "unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"this machine permits no mounts: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def service_site(people: People) -> Iterator[ServiceSite]:
    """Return a site in system mode, with everything on."""
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("setpriv and unshare are not installed")
    folder = Path(mkdtemp(prefix="gpuqueue-service-"))
    folder.chmod(0o755)
    launcher = Launcher(folder, people)
    made = ServiceSite(folder, people, launcher)
    try:
        made.up()
        yield made
    finally:
        made.stop()
        launcher.kill()
        shutil.rmtree(folder, ignore_errors=True)
