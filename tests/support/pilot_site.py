"""A site with its service whose pilots run in a private Slurm on this machine, with simulated devices."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psutil
from bounded import until
from forked_command import BIN, command
from private_slurm import PrivateSlurm
from service_fixtures import ServedSite, serving

from gpuqueue.client import Client
from gpuqueue.clock import SystemClock
from gpuqueue.model.job import JobState
from gpuqueue.service.bursting import Burster
from gpuqueue.settings.settings import Settings


class PilotSite:
    """A person's commands at the site, who is an admin, and what the pilots leave behind."""

    engine = "slurm"

    def __init__(self, served: ServedSite, slurm: PrivateSlurm, place: Path, client: Client) -> None:
        self.served, self.slurm, self.place, self.client = served, slurm, place, client
        self.environ, self.cwd = slurm.environ, slurm.place
        own = {"program": str(BIN / "gpuqueue"), "logs": str(slurm.place)}
        self.settings = {**settings_of(served, place), **own}

    def cli(self, *words: str, code: int = 0, **changed: str) -> subprocess.CompletedProcess[str]:
        """Run ``gpuqueue`` with the settings of the site, some of its table *changed*."""
        environ = {
            **self.served.environ,
            **self.environ,
            **{name: value for name, value in self.served.environ.items() if name.startswith("GPUQUEUE_")},
            "GPUQUEUE_URL": f"unix://{self.served.socket_path}",
            "GPUQUEUE_BURST": json.dumps({self.engine: {**self.settings, **changed}}),
        }
        before = Path.cwd()
        os.chdir(self.cwd)
        try:
            done = command(words, environ)
        finally:
            os.chdir(before)
        assert code == done.returncode, f"gpuqueue {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def burst(self, **changed: str) -> str:
        """Ask for a pilot of two GPUs, and return the name of its host."""
        return self.cli("burst", self.engine, "--gpus", "2", "--hours", "1", **changed).stdout.strip()

    @contextmanager
    def rule(self, **changed: str) -> Iterator[Burster]:
        """Return the rule of a service with the settings of the site, some of its table *changed*."""
        own = {name: value for name, value in self.served.environ.items() if name.startswith("GPUQUEUE_")}
        table = json.dumps({self.engine: {**self.settings, **changed}})
        with closing(Burster(Settings.load({**own, "GPUQUEUE_BURST": table}), SystemClock(), turn_s=0.5)) as burster:
            yield burster

    def submit(self, *words: str) -> int:
        """Submit a job for a pilot, with a time limit."""
        more = ("--time", "10m", "--mem", "1G", "-C", str(self.place))
        return int(self.cli("submit", *more, *words).stdout)

    def until_serving(self, *hosts: str) -> None:
        """Wait until each of *hosts* has devices."""

        def there() -> bool:
            found = {device.host for device in self.client.devices.list()}
            return found.issuperset(hosts)

        until(there, what=f"devices of {hosts}\n{self.logs()}", timeout_s=90)

    def until_running(self, *jobs: int) -> None:
        """Wait until all *jobs* run."""
        for job in jobs:
            until(lambda job=job: self.client.jobs.get(job).state is JobState.RUNNING, what=f"job {job}", timeout_s=90)

    def is_listed(self, host: str) -> bool:
        """Return whether the engine still has the allocation of a pilot."""
        return bool(self.slurm.listed(f"--name=gpuqueue-{host.partition('-')[2]}"))

    def until_gone(self, host: str, *, in_slurm: bool = True) -> None:
        """Wait until nothing is left of a pilot: no device, no valid token, no job of Slurm, no file, no process."""
        if in_slurm:
            until(lambda: not self.is_listed(host), what=f"its end in {self.engine}")
        until(lambda: host not in {each.host for each in self.client.devices.list()}, what="devices withdrawn")
        (token,) = (each for each in self.client.access.tokens(everybody=True) if each.account == host)
        assert token.revoked_at is not None
        assert [] == [*self.place.glob(f"gpuqueue-{host.partition('-')[2]}-*")]

    def kill(self, host: str) -> None:
        """Kill all processes of a pilot, as when its node dies: those of its script first, which would hand back."""
        ref = self.slurm.command("squeue", "--noheader", "--format=%i", f"--name=gpuqueue-{host.partition('-')[2]}")
        assert ref

        def killed() -> bool:
            found = []
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.environ().get("SLURM_JOB_ID") == ref and "slurmstepd" not in process.name():
                        process.suspend()
                        found.append(process)
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            return not found

        until(killed, what="no process")

    def log(self, host: str) -> str:
        """Return what a pilot has written."""
        path = self.cwd / f"gpuqueue-{host.partition('-')[2]}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self) -> str:
        """Return what all pilots have written."""
        return "\n".join(path.read_text(errors="replace") for path in self.cwd.glob("gpuqueue-*.log"))


def settings_of(served: ServedSite, place: Path) -> dict[str, str]:
    """Return the settings of pilots with two devices, which have their files below *place*."""
    return {
        "service_url": f"https://127.0.0.1:{served.port}",
        "service_ca": str(served.directory / "cert.pem"),
        "directory": str(place),
        "devices": "sim:2x8G",
    }


@contextmanager
def borrowing_site() -> Iterator[tuple[ServedSite, Client]]:
    """Run a site without devices of its own."""
    with ExitStack() as stack:
        served = stack.enter_context(serving(GPUQUEUE_HOST_LOST_AFTER="62m"))
        recorder = subprocess.Popen([str(BIN / "gpuqueue-worker"), "record"], env=served.environ)
        stack.callback(recorder.wait, timeout=30)
        stack.callback(recorder.kill)
        for each in served.queue.devices.all():  # nobody works for it
            served.queue.devices.withdraw(each.host, each.device.uuid)
        yield served, stack.enter_context(served.client("unix"))


@contextmanager
def pilot_site(slurm: PrivateSlurm, place: Path) -> Iterator[PilotSite]:
    """Run a site whose pilots have their files below *place*."""
    with borrowing_site() as (served, client):
        yield PilotSite(served, slurm, place, client)
