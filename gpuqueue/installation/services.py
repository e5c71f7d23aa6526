"""The units in systemd, and what runs of the queue on this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

from gpuqueue.embedded.machine import Machine
from gpuqueue.errors import GpuQueueError, Unreachable
from gpuqueue.installation.accounts import has_account
from gpuqueue.installation.files import State
from gpuqueue.installation.site import CONFIG, LAUNCHER_RUN, NOTIFIER_RUN, RUN, RUNS_UNIT, STATE, SystemSite
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.settings.settings import Settings

#: Where systemd, if it runs this machine, keeps its state (sd_booted(3)).
_BOOTED = Path("/run/systemd/system")
#: The name of the running units in the record.
STARTED = "started"
#: The sockets of launcher, notifier and service.
SOCKETS = {
    "the launcher": LAUNCHER_RUN / "launcher.sock",
    "the notifier": NOTIFIER_RUN / "notify.sock",
    "the service": RUN / "api.sock",
}


def has_systemd() -> bool:
    """Return whether systemd runs this machine."""
    return _BOOTED.is_dir()


@dataclass(frozen=True, slots=True)
class Units:
    """The units *names*, enabled and started."""

    names: tuple[str, ...]
    #: Whether a unit was written just now, and so must be started again.
    changed: bool = False
    lasting: bool = False
    name: str = STARTED

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""
        return f"{' '.join(self.names)}: enabled and started by systemd"

    def state(self) -> State:
        """Return whether all of them are enabled and run."""
        done = not self.changed and all(
            _systemctl(verb, "--quiet", *self.names, check=False) for verb in ("is-enabled", "is-active")
        )
        return State.THERE if done else State.MISSING

    def make(self) -> None:
        """Enable and start them. Running jobs go on."""
        _systemctl("daemon-reload")
        _systemctl("enable", "--quiet", *self.names)
        # The unit of the runs cannot be started again while it holds some. The launcher starts it if it does not run.
        _systemctl("restart", *(name for name in self.names if name != RUNS_UNIT))

    def remove(self) -> None:
        """Stop and disable them."""
        _systemctl("disable", "--now", "--quiet", *reversed(self.names))


def _systemctl(*words: str, check: bool = True) -> bool:
    """Run ``systemctl`` and return whether it succeeded.

    Raises:
        GpuQueueError: it failed, and *check* is set.

    """
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)  # noqa: S607
    if check and done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise GpuQueueError(f"systemctl {words[0]} failed: {reason}: see systemctl status 'gpuqueue*'")
    return done.returncode == 0


def forget_units() -> None:
    """Have systemd read its units again, after they were removed."""
    if has_systemd():
        _systemctl("daemon-reload")


def listening() -> list[str]:
    """Return which of launcher, notifier and service accept connections."""
    return [name for name, path in SOCKETS.items() if _accepts(path)]


def _accepts(path: Path) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as tried:
            try:
                tried.connect(str(path))
            except OSError:
                continue
            return True
    return False


def running_jobs(site: SystemSite) -> str:
    """Return the jobs that run on this machine in words, empty if there is none."""
    workers = _workers_of(site)
    if not workers.are_there:
        return ""
    try:
        found = Machine(Settings.load({"GPUQUEUE_CONFIG": str(workers.config)})).running_jobs()
    except Unreachable:  # the store does not run: shims may still hold jobs
        return workers.run("gpuqueue-worker", "left")
    return f"job {', '.join(map(str, found))} still runs" if found else ""


def take_down(site: SystemSite, *, cancel: bool) -> None:
    """Let no new job start, end the running ones, and stop workers, recorder and store."""
    workers, service = _workers_of(site), Part(site.programs, site.account, STATE, CONFIG)
    if workers.are_there:
        workers.run("gpuqueue", "down", *(["--cancel-jobs"] if cancel else []))
    if site.serves and service.are_there:
        service.run("gpuqueue", "down")


def _workers_of(site: SystemSite) -> Part:
    return Part(site.programs, site.runner, site.runner_state, site.runner_config)


@dataclass(frozen=True, slots=True)
class Part:
    """The processes of one account, with their state and settings."""

    programs: Path
    account: str
    state: Path
    config: Path

    @property
    def are_there(self) -> bool:
        """Return whether account, state and settings are there, so that programs of the queue can be asked."""
        return has_account(self.account) and self.state.is_dir() and self.config.is_file()

    def run(self, program: str, *words: str) -> str:
        """Run a program of gpuqueue as the account, and return its output.

        It gets no terminal: on root's, a process of the account could type commands for root (TIOCSTI).

        Raises:
            GpuQueueError: it failed. The message is the last line that it wrote.

        """
        account = pwd.getpwnam(self.account)
        done = subprocess.run(
            [str(self.programs / program), *words],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=os.getgrouplist(account.pw_name, account.pw_gid),
            env={"PATH": os.defpath, "HOME": str(self.state), "GPUQUEUE_CONFIG": str(self.config)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
            raise GpuQueueError(f"{program} {words[0]} failed: {lines[-1].removeprefix(f'{program}: ')}")
        return done.stdout.strip()


def remove_sockets() -> None:
    """Remove the directories of the sockets. A socket without a service would keep commands waiting."""
    for path in (RUN, LAUNCHER_RUN, NOTIFIER_RUN):
        shutil.rmtree(path, ignore_errors=True)
