"""The account and the umask of this process."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.model.job_spec import Account
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    import shutil
else:
    shutil = later("shutil")

#: The caller name that the queue takes for a process with all rights. No account has this name.
SUPERUSER = ""
#: The uid map of a process that is in no user namespace: every uid maps to itself.
_ALL_USER_IDS = ["0", "0", "4294967295"]
#: The record of what ``gpuqueue install`` or ``gpuqueue join`` has made. Everybody may read it.
INSTALLED = Path("/etc/gpuqueue/installed.json")


def current_account(host: str) -> Account:
    """Return the account of this process on *host*. Its name comes from the uid, since ``$USER`` is not reliable."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's uid may have no name
        name = f"uid{uid}"
    return Account(name=name, uid=uid, host=host)


def is_superuser(account: Account, uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Return whether *account*, of this process, is root on its machine. Root of a user namespace is not."""
    if account.uid != 0:
        return False
    try:
        # The kernel refuses to map more uids than the process has, so no nested namespace can show this map.
        return uid_map.read_text(encoding="ascii").split() == _ALL_USER_IDS
    except OSError:
        return False


def groups_of(name: str, gid: int | None = None) -> frozenset[str]:
    """Return the names of the Unix groups of the account *name*, as of now. A group without a name is left out."""
    import grp  # noqa: PLC0415 - few commands need it

    if gid is None:
        try:
            gid = pwd.getpwnam(name).pw_gid
        except KeyError:
            return frozenset()
    names = set()
    for each in os.getgrouplist(name, gid):
        with suppress(KeyError):
            names.add(grp.getgrgid(each).gr_name)
    return frozenset(names)


def name_of(uid: int) -> str:
    """Return the name of the account *uid*, for users."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def uid_of(name: str) -> int:
    """Return the uid of the account *name* of this machine.

    Raises:
        BadRequest: there is no such account.

    """
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise BadRequest(f"{brief(name)} is no account of this machine") from None


def current_umask(status: Path = Path("/proc/self/status")) -> int:
    """Return the umask of this process without changing it, or 022 if the kernel (before 4.7) does not report it."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0o022


def users_group() -> str | None:
    """Return the group, or None if gpuqueue was not installed here with one, or the record is damaged."""
    return _installed("group") or None


def runs_have_sessions() -> bool:
    """Return whether gpuqueue was installed here with a PAM service that opens a session for each run."""
    return bool(_installed("pam_service"))


def _installed(name: str) -> str:
    try:
        found = json.loads(INSTALLED.read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""


def members_of(group: str) -> list[tuple[str, int]]:
    """Return the names and user ids of the accounts that are listed as members of the Unix group *group*."""
    import grp  # noqa: PLC0415 - few commands need it

    members = []
    with suppress(KeyError):
        for name in grp.getgrnam(group).gr_mem:
            with suppress(KeyError):
                members.append((name, pwd.getpwnam(name).pw_uid))
    return members


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of gpuqueue's caches of this user, whether or not it exists."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_CACHE_HOME", "")
    if not home.startswith("/"):  # the rule of XDG for a path that is not absolute
        home = os.path.expanduser("~/.cache")  # noqa: PTH111 - as in the settings
    return Path(home) / "gpuqueue"
