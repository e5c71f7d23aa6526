"""Decides whether a job may run as an account of this host. Standard library only."""

from __future__ import annotations

import grp
import os
import pwd
import time
from typing import NamedTuple

from workers.launcher.cgroup import Limits
from workers.launcher.pam import Service

#: The user ids that stand for no account: nobody, and the overflow ids of user namespaces and of chown(2).
NOBODY = frozenset({65534, 65535, 2**32 - 2, 2**32 - 1})
#: The shells of accounts that are not for people.
NO_SHELLS = frozenset({"nologin", "false"})
#: The fields of a line of /etc/shadow that are read here; see shadow(5).
PASSWORD, EXPIRES = 1, 7
DAY_S = 86400


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
    #: Whether programs of a job may gain privileges (set-user-ID programs, file capabilities).
    allow_setuid: bool = False
    #: The directory for the control groups of runs; None if they have none.
    cgroups: str | None = None
    #: Such a directory of a launcher without a unit for the runs. Runs from before an upgrade may be there.
    earlier_cgroups: str | None = None
    #: The most that one run may use of this host.
    limits: Limits = Limits()
    #: The key of the service, by which signed jobs are known; None: jobs need no signature.
    ticket_key: bytes | None = None
    #: Where signed jobs see their code; None if jobs need no signature.
    code_place: str | None = None
    #: The service of PAM that opens a session for each run; None if there are no sessions.
    pam: Service | None = None


def permitted(name: str, uid: int, rules: Rules, shadow: str = "/etc/shadow") -> pwd.struct_passwd:
    """Return the account *name* with the user id *uid* on this host.

    Both come from the job. They must agree here in both directions, because accounts differ between hosts.

    Raises:
        Refused: a job must not run as this account.

    """
    try:
        account = pwd.getpwnam(name)
        owner = pwd.getpwuid(uid).pw_name
    except (KeyError, ValueError, OverflowError):
        raise Refused(f"there is no account {name} with the user id {uid} on this host") from None
    if account.pw_uid != uid or owner != name:
        raise Refused(f"on this host {name} has the user id {account.pw_uid}, and the user id {uid} is {owner}")
    refusal = _refusal(account, rules) or _lock(name, shadow)
    if refusal:
        raise Refused(f"no job runs as {name}: {refusal}")
    return account


def _refusal(account: pwd.struct_passwd, rules: Rules) -> str:
    """Return why the account is not that of a person who may run jobs; empty if it is."""
    if account.pw_uid == 0 or account.pw_gid == 0:
        return "it is root, or in root's group"
    if account.pw_uid == rules.service_uid:
        return "it is the account of the queue itself"
    if account.pw_uid < rules.least_uid or account.pw_uid in NOBODY:
        return f"its user id {account.pw_uid} is that of a system account (people have {rules.least_uid} or more)"
    if os.path.basename(account.pw_shell) in NO_SHELLS:
        return f"its login shell is {account.pw_shell}"
    return _outside(account, rules.group)


def _outside(account: pwd.struct_passwd, group: str) -> str:
    """Return why the groups of the account forbid its jobs; empty if they do not."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        return f"the group {group} does not exist on this host"
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    if 0 in groups:
        return "it is in root's group"
    return "" if gid in groups else f"it is not in the group {group}"


def _lock(name: str, shadow: str) -> str:
    """Return why the account is locked; empty if it is not locked, or not in the file, as with LDAP.

    ``passwd -l`` puts ``!`` before the password. A lone ``!`` or ``*`` is an account that logs in by a key.
    """
    try:
        with open(shadow, encoding="utf-8", errors="replace") as file:
            fields = next((line.rstrip("\n").split(":") for line in file if line.startswith(f"{name}:")), [])
    except FileNotFoundError:
        return ""
    if len(fields) <= EXPIRES:
        return ""
    if fields[PASSWORD].startswith("!") and fields[PASSWORD].strip("!*"):
        return "it is locked"
    if fields[EXPIRES].isdigit() and int(fields[EXPIRES]) <= time.time() / DAY_S:
        return "it has expired"
    return ""


def least_uid(login_defs: str = "/etc/login.defs") -> int:
    """Return UID_MIN, the smallest user id of a person; 1000 if the file does not say."""
    try:
        with open(login_defs, encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        words = []
    return next((int(line[1]) for line in words if line[:1] == ["UID_MIN"] and line[1:2] and line[1].isdigit()), 1000)
