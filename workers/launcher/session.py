"""The PAM session of a run, which its guard opens and closes. Standard library only.

It is opened in the guard before the job's first process is made, because that process inherits what modules set:
limits, login user id, keyring, namespaces. The guard stays until the last process is gone, so it can close the session.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import resource
import select
import signal
import socket

from workers.launcher.account import Refused, Rules, permitted
from workers.launcher.pam import Dialogue, Service
from workers.shim.tree import WAKE

#: How long modules may take to open a session, or to close it, in seconds.
SESSION_S = 30
#: Flags of pam_setcred: establish the credentials of the account, and delete them.
ESTABLISH, DELETE = 2, 4
#: The limits of a process.
LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
#: What the guard writes for its watcher once the session is open, or refused.
DONE = b"1"


class Session:
    """A PAM session of an account."""

    def __init__(self, service: Service, account: pwd.struct_passwd) -> None:
        """Open the session.

        Raises:
            Refused: a module refuses the account.

        """
        self._limits = {each: resource.getrlimit(each) for each in LIMITS}
        self._priority = os.getpriority(os.PRIO_PROCESS, 0)
        self._dialogue = Dialogue(service, account.pw_name)
        own = os.getgroups()
        os.initgroups(account.pw_name, account.pw_gid)  # before the credentials, because a module may add groups
        try:
            self._open(service, account.pw_name)
        except Refused:
            self._dialogue.end()
            raise
        #: The limits that modules have set for the processes of the run.
        self.limits = {limit: resource.getrlimit(limit) for limit in LIMITS}
        #: The supplementary groups of the job.
        self.groups = os.getgroups()
        #: The variables that modules have set.
        self.environment = self._dialogue.environment()
        os.setgroups(own)

    def _open(self, service: Service, name: str) -> None:
        if not os.path.isfile(service.path):
            raise Refused(f"the PAM service {service.name} has no file {service.path} on this host")
        for what, function, flags in (
            ("account", "pam_acct_mgmt", 0),
            ("credentials", "pam_setcred", ESTABLISH),
            ("session", "pam_open_session", 0),
        ):
            if reason := self._dialogue.call(function, flags):
                if function == "pam_open_session":
                    self._dialogue.call("pam_setcred", DELETE)
                raise Refused(f"the PAM service {service.name} refuses {name} ({what}): {reason}")

    def restore(self) -> None:
        """Give this process back the limits and the priority from before the session, as far as the kernel permits."""
        for each, limit in self._limits.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(each, limit)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, self._priority)

    def close(self) -> None:
        """Close the session. If the modules take too long, the kernel ends this process."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # for messages of the shim, which nobody reads any more
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAKE)  # programs of modules would inherit the mask
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SESSION_S)
        self._dialogue.call("pam_close_session")
        self._dialogue.call("pam_setcred", DELETE)
        self._dialogue.end()
        signal.alarm(0)


def session_of(shim: socket.socket, name: str, uid: int, rules: Rules) -> Session | None:
    """Open the session of a run of the account *name* with the user id *uid*. Return None if root has named no service.

    If modules take too long, or *shim* leaves, this process is killed.

    Raises:
        Refused: no job runs as this account, or a module refuses it.
        OSError: this host lacks a resource.

    """
    if rules.pam is None:
        return None
    guard, (reader, done) = os.getpid(), os.pipe()
    watcher = os.fork()
    if watcher == 0:
        try:
            os.close(done)
            watch(shim, guard, reader, rules.pam.name)
        finally:
            os._exit(0)
    os.close(reader)
    try:
        return Session(rules.pam, permitted(name, uid, rules))
    finally:
        with contextlib.suppress(OSError):  # it is gone, or a module has waited for it
            os.write(done, DONE)
            os.waitpid(watcher, 0)
        os.close(done)


def watch(shim: socket.socket, guard: int, reader: int, service: str) -> None:
    """Kill the parent, the process *guard*, if it has not written DONE in time or *shim* leaves. Answer the shim."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(shim, select.POLLIN)
    ready = {fd for fd, _ in poll.poll(SESSION_S * 1000)}
    if reader in ready and os.read(reader, 1) == DONE:
        return
    if os.getppid() == guard:
        os.kill(guard, signal.SIGKILL)
    if shim.fileno() not in ready:
        what = "has ended its guard" if reader in ready else f"has not opened a session after {SESSION_S} s"
        shim.send(f"no {errno.EPERM} the PAM service {service} {what}".encode())
