"""The rules by which an account of this machine is that of a person who may run jobs. Standard library only.

The launcher decides by them before it starts a job, and the service before it takes one. The launcher runs as root, so
nothing else of gpuqueue is imported here.
"""

from __future__ import annotations

import grp
import os
import pwd
import time
from pathlib import Path
from typing import NamedTuple

#: The user ids that stand for no account: nobody, and the overflow ids of user namespaces and of chown(2).
NOBODY = frozenset({65534, 65535, 2**32 - 2, 2**32 - 1})
#: Names of programs that are no shell for people, wherever they are listed.
NO_SHELLS = frozenset({"nologin", "false", "true", "sync", "shutdown", "halt"})
#: Names of shells that let a person do a few things only. /etc/shells may list them, but a job would do anything.
RESTRICTED_SHELLS = frozenset(
    {"git-shell", "lshell", "rbash", "rksh", "rksh93", "rrsync", "rssh", "rzsh", "scponly", "scponlyc", "sftp-server"}
)
#: The shell of an account that names none; see passwd(5).
USUAL_SHELL = "/bin/sh"
#: The fields of a line of /etc/shadow that are read here; see shadow(5).
PASSWORD, EXPIRES = 1, 7
DAY_S = 86400


class NotPermitted(Exception):
    """No job runs as this account; the message says why."""


class AccountRules(NamedTuple):
    """What root has chosen. None of it comes from a job."""

    #: The user ids of the accounts of the queue itself.
    queue_uids: frozenset[int]
    #: The group whose members may run jobs; None if that is not known here.
    group: str | None
    #: The smallest user id of a person (UID_MIN).
    least_uid: int
    #: The login shells of people; None: those of /etc/shells, less the restricted ones.
    login_shells: frozenset[str] | None = None


def permitted(
    name: str, uid: int, rules: AccountRules, *, shadow: str | None = "/etc/shadow", shells: str = "/etc/shells"
) -> pwd.struct_passwd:
    """Return the account *name* with the user id *uid* of this machine.

    They must agree here in both directions, because accounts differ between machines. *shadow* is None for a process
    that may not read that file: whether the account is locked or has expired is unknown then.

    Raises:
        NotPermitted: a job must not run as this account.

    """
    try:
        account = pwd.getpwnam(name)
        owner = pwd.getpwuid(uid).pw_name
    except (KeyError, ValueError, OverflowError):
        raise NotPermitted(f"there is no account {name} with the user id {uid} on this host") from None
    if account.pw_uid != uid or owner != name:
        raise NotPermitted(f"on this host {name} has the user id {account.pw_uid}, and the user id {uid} is {owner}")
    refusal = _refusal(account, rules) or _no_login(account.pw_shell, rules.login_shells, shells)
    refusal = refusal or _outside(account, rules.group) or ("" if shadow is None else _lock(name, shadow))
    if refusal:
        raise NotPermitted(f"no job runs as {name}: {refusal}")
    return account


def _refusal(account: pwd.struct_passwd, rules: AccountRules) -> str:
    """Return why the account is not that of a person; empty if it is."""
    if account.pw_uid == 0 or account.pw_gid == 0:
        return "it is root, or in root's group"
    if account.pw_uid in rules.queue_uids:
        return "it is the account of the queue itself"
    if account.pw_uid < rules.least_uid or account.pw_uid in NOBODY:
        return f"its user id {account.pw_uid} is that of a system account (people have {rules.least_uid} or more)"
    return ""


def _no_login(shell: str, chosen: frozenset[str] | None, shells: str) -> str:
    """Return why a person does not log in with *shell*; empty if it is a login shell."""
    shell = shell or USUAL_SHELL
    name = Path(shell).name
    if name in NO_SHELLS:
        return f"its login shell is {shell}"
    if chosen is not None:
        return "" if shell in chosen else f"its login shell {shell} is not one of the setting login_shells"
    if name in RESTRICTED_SHELLS:
        return f"its login shell {shell} is a restricted one (setting login_shells)"
    listed = _listed(shells)
    return "" if listed is None or shell in listed else f"its login shell {shell} is not in {shells}"


def _listed(shells: str) -> set[str] | None:
    """Return the login shells of this machine, None if it has no list of them."""
    try:
        with Path(shells).open(encoding="utf-8", errors="replace") as file:
            return {line.partition("#")[0].strip() for line in file}
    except FileNotFoundError:
        return None


def _outside(account: pwd.struct_passwd, group: str | None) -> str:
    """Return why the groups of the account forbid its jobs; empty if they do not."""
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    if 0 in groups:
        return "it is in root's group"
    if group is None:
        return ""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        return f"the group {group} does not exist on this host"
    return "" if gid in groups else f"it is not in the group {group}"


def _lock(name: str, shadow: str) -> str:
    """Return why the account is locked; empty if it is not locked, or not in the file, as with LDAP.

    ``passwd -l`` puts ``!`` before the password. A lone ``!`` or ``*`` is an account that logs in by a key.
    """
    try:
        with Path(shadow).open(encoding="utf-8", errors="replace") as file:
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
        with Path(login_defs).open(encoding="utf-8", errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        words = []
    return next((int(line[1]) for line in words if line[:1] == ["UID_MIN"] and line[1:2] and line[1].isdigit()), 1000)
