"""What root allows the launcher, and whether a job may run as an account of this host. Standard library only."""

from __future__ import annotations

from typing import NamedTuple

from gpuqueue.system import login_account
from gpuqueue.system.login_account import AccountRules
from workers.launcher.cgroup import Limits
from workers.launcher.pam import Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pwd


class Refused(Exception):
    """A job must not run as this account; the message says why."""


class Rules(NamedTuple):
    """What root allows. None of it comes from the service or from a job."""

    #: The user id of the account of the workers, under which workers and shims run.
    service_uid: int
    #: The group whose members' jobs are started.
    group: str
    #: The smallest user id of a person (UID_MIN).
    least_uid: int
    #: The directory with the run directories.
    runs: str
    #: The mount on which it was when the launcher started; None: any.
    runs_mount: str | None = None
    #: Whether programs of a job may gain privileges (set-user-ID programs, file capabilities).
    allow_setuid: bool = False
    #: The directory for the control groups of runs; None if they have none.
    cgroups: str | None = None
    #: Such a directory of a launcher without a unit for the runs. Runs from before an upgrade may be there.
    earlier_cgroups: str | None = None
    #: The most that one run may use of this host.
    limits: Limits = Limits()
    #: Whether shared memory that the processes of a run have used is removed at its end.
    remove_shared_memory: bool = False
    #: The key of the service, by which signed jobs are known; None: jobs need no signature.
    ticket_key: bytes | None = None
    #: Where signed jobs see their code; None if jobs need no signature.
    code_place: str | None = None
    #: The service of PAM that opens a session for each run; None if there are no sessions.
    pam: Service | None = None
    #: The login shells of people; None: those of /etc/shells, less the restricted ones.
    login_shells: frozenset[str] | None = None


def permitted(name: str, uid: int, rules: Rules, shadow: str = "/etc/shadow") -> pwd.struct_passwd:
    """Return the account *name* with the user id *uid* on this host. Both come from the job.

    Raises:
        Refused: a job must not run as this account.

    """
    accounts = AccountRules(frozenset({rules.service_uid}), rules.group, rules.least_uid, rules.login_shells)
    try:
        return login_account.permitted(name, uid, accounts, shadow=shadow)
    except login_account.NotPermitted as error:
        raise Refused(str(error)) from None
