"""The names and paths of a site in system mode."""

from __future__ import annotations

import re
from pathlib import Path

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.system.users_group import INSTALLED

ETC = Path("/etc/gpuqueue")
#: The settings of host, workers, recorder and service.
CONFIG = ETC / "config.toml"
#: The key with which the service signs jobs.
TICKET_KEY = ETC / "ticket-key"
#: The record of what ``gpuqueue install`` has made.
RECORD = INSTALLED
STATE = Path("/var/lib/gpuqueue")
#: The directories of the runs. Submitters enter theirs, so it is not below the state directory.
RUNS = Path("/var/lib/gpuqueue-runs")
#: The sockets of the service and of the launcher are apart: only root may change the directory of the launcher's.
RUN = Path("/run/gpuqueue")
LAUNCHER_RUN = Path("/run/gpuqueue-launcher")
UNITS = Path("/etc/systemd/system")
#: The unit that holds the control groups of the runs.
RUNS_UNIT = "gpuqueue-runs"

#: Names that useradd and groupadd accept by default.
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
#: Paths that need no quotes in a unit or a shell.
_PATH = re.compile(r"[A-Za-z0-9_./+-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemSite:
    """What differs between sites."""

    #: The service account.
    account: str
    #: The group of the people who may run jobs.
    group: str
    #: The directory of the programs ``gpuqueue`` and ``gpuqueue-worker``.
    programs: Path
    #: The PAM service that opens a session for each run; empty if there are no sessions.
    pam_service: str = ""
    #: Whether this machine runs the service. A worker host that has joined does not.
    serves: bool = True
    #: Whether this machine has the key of the service, so that only signed jobs start here.
    has_ticket_key: bool = False

    @property
    def units(self) -> tuple[str, ...]:
        """Return the units of this machine, in the order of their start."""
        return (RUNS_UNIT, "gpuqueue-launcher", "gpuqueue", *(("gpuqueue-serve",) if self.serves else ()))

    def check(self) -> None:
        """Check that the names and paths can be written into units.

        Raises:
            BadRequest: a name cannot be that of an account or group.
            Refused: gpuqueue is installed at a path with special characters.

        """
        names = {"--account": self.account, "--group": self.group, "--pam-service": self.pam_service}
        for option, name in names.items():
            if (name or option != "--pam-service") and not _NAME.fullmatch(name):
                raise BadRequest(
                    f"{option} {name}: use at most 31 lower-case letters, digits, _ and -, and begin with a letter or _"
                )
        if self.account == self.group:
            raise BadRequest("--account and --group must differ: the account of the queue runs no jobs")
        if not _PATH.fullmatch(str(self.programs)):
            raise Refused(f"{self.programs} has special characters: install gpuqueue at a plain path, such as /opt")
