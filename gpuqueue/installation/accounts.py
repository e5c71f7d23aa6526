"""The accounts of the queue, and the group of the people who may run jobs."""

from __future__ import annotations

import contextlib
import grp
import pwd
import shutil
import subprocess
import time
from pathlib import Path

from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.installation.files import State
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.system.process import each_process

#: Where the programs for accounts are. They are not on everybody's PATH.
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
#: The shell of an account that nobody logs in to.
_NO_LOGIN = "/usr/sbin/nologin"
#: How long the processes of an account may take to end, and the pause between two checks, in seconds.
LEAVE_S, POLL_S = 20.0, 0.1


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """An account for processes of the queue. *home* is their state directory, and *parts* names them for people."""

    account: str
    home: Path
    parts: str
    lasting: bool = True

    @property
    def name(self) -> str:
        """The name in the record of what was made."""
        return f"account {self.account}"

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""
        return f"account {self.account}: a system account without a login, for {self.parts}"

    def state(self) -> State:
        """Return whether the account exists.

        Raises:
            Refused: it is root.

        """
        found = _account(self.account)
        if found is not None and found.pw_uid == 0:
            raise Refused(f"the account {self.account} is root: name another one")
        return State.MISSING if found is None else State.THERE

    def make(self) -> None:
        """Add the account, and the group of its name."""
        group = ["--user-group"] if _group(self.account) is None else ["--gid", self.account]
        words = ["--system", *group, "--no-create-home", "--home-dir", str(self.home), "--shell", _NO_LOGIN]
        _run("useradd", *words, self.account)

    def remove(self) -> None:
        """Remove the account, and the group of its name. Its last processes may take a moment to end."""
        found = _account(self.account)
        if found is not None:
            deadline = time.monotonic() + LEAVE_S
            while _has_processes(found.pw_uid) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            _run("userdel", self.account)
        if _group(self.account) is not None:  # userdel does not on every system
            _run("groupdel", self.account)


@dataclass(frozen=True, slots=True)
class UsersGroup:
    """The group whose members' jobs are started."""

    group: str
    lasting: bool = True

    @property
    def name(self) -> str:
        """The name in the record of what was made."""
        return f"group {self.group}"

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""
        return f"group {self.group}: its members may run jobs"

    def state(self) -> State:
        """Return whether the group exists."""
        return State.MISSING if _group(self.group) is None else State.THERE

    def make(self) -> None:
        """Add the group."""
        _run("groupadd", "--system", self.group)

    def remove(self) -> None:
        """Remove the group."""
        if _group(self.group) is not None:
            _run("groupdel", self.group)


def has_account(name: str) -> bool:
    """Return whether this machine has the account *name*."""
    return _account(name) is not None


def _has_processes(uid: int) -> bool:
    for each in each_process():
        with contextlib.suppress(OSError):  # it has ended
            if each.stat().st_uid == uid:
                return True
    return False


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _group(name: str) -> grp.struct_group | None:
    try:
        return grp.getgrnam(name)
    except KeyError:
        return None


def _run(program: str, *words: str) -> None:
    """Run a program that changes accounts.

    Raises:
        GpuQueueError: it is not installed, or failed.

    """
    path = shutil.which(program, path=_PATH)
    if path is None:
        raise GpuQueueError(f"{program} is not installed: install the package passwd or shadow-utils")
    done = subprocess.run([path, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GpuQueueError(f"{program} {words[-1]} failed: {done.stderr.strip() or done.returncode}")
