"""What systemd's logind does when a person logs out: to a queue, and to the shared memory of running jobs.

logind.conf(5) has its settings. A process in a login session ends with the session if ``KillUserProcesses`` says so,
with or without linger; otherwise the session stays until the last process has ended, and the person counts as logged
in. A process below the manager of its user ends with that manager, which stays with linger. Of a person who has logged
out, ``RemoveIPC`` deletes all that is in /dev/shm. That applies to no system account and to no account with linger.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

#: The directories with settings of systemd, the most important first.
_DIRECTORIES = ("etc", "run", "usr/local/lib", "usr/lib")
_YES, _NO = frozenset({"1", "yes", "y", "true", "t", "on"}), frozenset({"0", "no", "n", "false", "f", "off"})
#: The control groups of a login session, and of the processes below the manager of a user.
_SESSION, _MANAGER = re.compile(r"/user-([0-9]+)\.slice/session-[^/\n]+\.scope"), re.compile(r"/user@([0-9]+)\.service")
#: The largest user id of a system account where /etc/login.defs does not say.
_SYSTEM_UID = 999
#: How many people are named.
_SHOWN = 5


class LogoutTrouble(NamedTuple):
    """What a logout does, and what to do about it."""

    seen: str
    remedy: str


class Logind:
    """The settings of logind, and what it does with them, on the machine whose files are below *root*."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        #: Without systemd there is no logind.
        self._runs = (root / "run/systemd/system").is_dir()
        self._values = dict[str, str]()
        for name, value in self._assignments():
            if name.startswith("Kill") and name.endswith("Users"):  # a list: each line adds to it, an empty one ends it
                self._values[name] = f"{self._values.get(name, '')} {value}" if value else ""
            elif value.lower() in _YES | _NO:
                self._values[name] = value

    def trouble_of_queue(self, pid: int, name: str, uid: int) -> LogoutTrouble | None:
        """Return what a logout does to a queue that is the process *pid* of the account *name*; None: nothing."""
        try:
            group = (self._root / f"proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        if not self._runs:
            return None
        session, manager = _SESSION.search(group), _MANAGER.search(group)
        if manager is not None and not self._has_linger(name):
            return LogoutTrouble(
                f"a logout of {name} ends this queue and its jobs (the user manager of systemd, without linger)",
                f"loginctl enable-linger {name}",
            )
        if session is not None and self._kills(name):
            return LogoutTrouble(
                f"a logout of {name} ends this queue and its jobs (KillUserProcesses of logind)",
                f"loginctl enable-linger {name}, then gpuqueue down and systemd-run --user --scope gpuqueue up",
            )
        if session is not None and int(session[1]) == uid:  # the session stays as long as the queue
            return None
        return self._trouble_of_memory([name] if self._removes_memory(name, uid) else [])

    def trouble_of_jobs(self, accounts: Sequence[tuple[str, int]]) -> LogoutTrouble | None:
        """Return what a logout does to jobs that run as one of *accounts*, outside of a session; None: nothing."""
        return self._trouble_of_memory([name for name, uid in accounts if self._removes_memory(name, uid)])

    def trouble_of_all(self) -> LogoutTrouble | None:
        """Return what a logout does to the jobs of a person without linger; None: nothing."""
        return self._trouble_of_memory(["a person"] if self._runs and self._removes else [], "NAME")

    @staticmethod
    def _trouble_of_memory(names: Sequence[str], linger: str = "") -> LogoutTrouble | None:
        if not names:
            return None
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return LogoutTrouble(
            f"a logout of {', '.join(names[:_SHOWN])}{more} deletes the shared memory (/dev/shm) of their running "
            "jobs (RemoveIPC of logind)",
            "RemoveIPC=no in /etc/systemd/logind.conf, then systemctl restart systemd-logind; or "
            f"loginctl enable-linger {linger or ' '.join(names[:_SHOWN])}",
        )

    @property
    def _removes(self) -> bool:
        return self._values.get("RemoveIPC", "yes").lower() in _YES

    def _removes_memory(self, name: str, uid: int) -> bool:
        return self._runs and self._removes and uid > self._largest_system_uid() and not self._has_linger(name)

    def _kills(self, name: str) -> bool:
        """Return whether the processes of a login session of *name* end with it."""
        if name in (self._values.get("KillExcludeUsers") or "root").split():
            return False
        only = self._values.get("KillOnlyUsers", "").split()
        return name in only if only else self._values.get("KillUserProcesses", "no").lower() in _YES

    def _has_linger(self, name: str) -> bool:
        return (self._root / "var/lib/systemd/linger" / name).exists()

    def _largest_system_uid(self) -> int:
        with contextlib.suppress(OSError):
            for line in (self._root / "etc/login.defs").read_text(encoding="utf-8", errors="replace").splitlines():
                words = line.split()
                if words[:1] == ["SYS_UID_MAX"] and words[1:2] and words[1].isdigit():
                    return int(words[1])
        return _SYSTEM_UID

    def _assignments(self) -> Iterator[tuple[str, str]]:
        """Yield the assignments of the section ``[Login]``, in the order in which later ones replace earlier ones."""
        for path in self._files():
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            section = ""
            for line in map(str.strip, text.replace("\\\n", " ").splitlines()):
                name, sign, value = line.partition("=")
                if line.startswith("["):
                    section = line
                elif section == "[Login]" and sign and not line.startswith(("#", ";")):
                    yield name.strip(), value.strip()

    def _files(self) -> Iterator[Path]:
        """Yield the main file, then those of ``logind.conf.d`` by name; of two with one name the more important one."""
        places = [self._root / each / "systemd" for each in _DIRECTORIES]
        yield next((each / "logind.conf" for each in places if os.path.lexists(each / "logind.conf")), Path(os.devnull))
        added = {path.name: path for each in reversed(places) for path in each.glob("logind.conf.d/*.conf")}
        for name in sorted(added):
            yield added[name]
