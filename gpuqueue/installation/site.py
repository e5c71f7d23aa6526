"""The names and paths of a site in system mode."""

from __future__ import annotations

import re
from pathlib import Path

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.system.account import INSTALLED

ETC = Path("/etc/gpuqueue")
#: The settings of store, recorder and service; on a host that has joined, those of the workers.
CONFIG = ETC / "config.toml"
#: The settings of the workers on the machine of the service.
WORKERS_CONFIG = ETC / "workers.toml"
#: The key with which the service signs jobs.
TICKET_KEY = ETC / "ticket-key"
#: The record of what ``gpuqueue install`` has made.
RECORD = INSTALLED
STATE = Path("/var/lib/gpuqueue")
#: On the machine of the service: the state of the workers, and the directory of the store's socket.
WORKERS_STATE, STORE = Path("/var/lib/gpuqueue-workers"), Path("/var/lib/gpuqueue-store")
#: The directories of the runs. Submitters enter theirs, so it is not below the state directory.
RUNS = Path("/var/lib/gpuqueue-runs")
#: The sockets of the service and of the launcher are apart: only root may change the directory of the launcher's.
RUN = Path("/run/gpuqueue")
LAUNCHER_RUN = Path("/run/gpuqueue-launcher")
#: The socket of the notifier, and its account. The account has no file.
NOTIFIER_RUN, NOTIFIER_ACCOUNT, NO_HOME = Path("/run/gpuqueue-notify"), "gpuqueue-notify", Path("/nonexistent")
UNITS = Path("/etc/systemd/system")
#: The units that hold the control groups of the runs, and that serve this machine's devices.
RUNS_UNIT, HOST_UNIT = "gpuqueue-runs", "gpuqueue"
#: The account of the workers on the machine of the service, unless another one is named.
WORKERS_ACCOUNT = "gpuqueue-workers"

#: Names that useradd and groupadd accept by default.
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
#: Paths that need no quotes in a unit or a shell.
_PATH = re.compile(r"[A-Za-z0-9_./+-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemSite:
    """What differs between sites."""

    #: The account of store, recorder and service; on a host that has joined, that of the workers.
    account: str
    #: The group of the people who may run jobs.
    group: str
    #: The directory of the programs ``gpuqueue`` and ``gpuqueue-worker``.
    programs: Path
    #: The PAM service that opens a session for each run; empty if there are no sessions.
    pam_service: str = ""
    #: Whether this machine runs the service. A worker host that has joined does not.
    serves: bool = True
    #: The account of the workers where the service has another one.
    workers_account: str = WORKERS_ACCOUNT
    #: Whether this machine has the key of the service, so that only signed jobs start here.
    has_ticket_key: bool = False

    @property
    def units(self) -> tuple[str, ...]:
        """Return the units of this machine, in the order of their start."""
        service = ("gpuqueue-notify", "gpuqueue-store", "gpuqueue-serve") if self.serves else ()
        return (RUNS_UNIT, "gpuqueue-launcher", *service, HOST_UNIT)

    @property
    def runner(self) -> str:
        """Return the account of the workers, for which the launcher starts jobs."""
        return self.workers_account if self.serves else self.account

    @property
    def runner_config(self) -> Path:
        """Return the settings file of the workers."""
        return WORKERS_CONFIG if self.serves else CONFIG

    @property
    def runner_state(self) -> Path:
        """Return the state directory of the workers."""
        return WORKERS_STATE if self.serves else STATE

    def check(self) -> None:
        """Check that the names and paths can be written into units.

        Raises:
            BadRequest: a name cannot be that of an account or group.
            Refused: gpuqueue is installed at a path with special characters.

        """
        names = {"--account": self.account, "--group": self.group, "--pam-service": self.pam_service}
        names |= {"--workers-account": self.workers_account} if self.serves else {}
        for option, name in names.items():
            if (name or option != "--pam-service") and not _NAME.fullmatch(name):
                raise BadRequest(
                    f"{option} {name}: use at most 31 lower-case letters, digits, _ and -, and begin with a letter or _"
                )
        if self.group in {self.account, self.runner}:
            raise BadRequest(f"--group {self.group} is the name of an account of the queue, which runs no jobs")
        if self.serves and NOTIFIER_ACCOUNT in {self.account, self.runner, self.group}:
            raise BadRequest(f"{NOTIFIER_ACCOUNT} is the name of the account of the notifier: choose another one")
        if self.serves and self.account == self.workers_account:
            raise BadRequest(
                "--account and --workers-account must differ: workers must not read the key of the tickets"
            )
        if not _PATH.fullmatch(str(self.programs)):
            raise Refused(f"{self.programs} has special characters: install gpuqueue at a plain path, such as /opt")
