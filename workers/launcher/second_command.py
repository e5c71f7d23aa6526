"""What a second command in a run (``gpuqueue exec``) is and gets, in the run's guard. Standard library only.

It has the account, the environment, the directory and the control group of the job, from the request that the guard has
admitted at the start of the run. So the shim names only the command. Where root has given the launcher the key, the
service must have signed that (:func:`workers.launcher.ticket.admitted_command`).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
from typing import NamedTuple

from workers.launcher.account import Refused, Rules
from workers.launcher.become import LaunchRequest, reset_limits
from workers.launcher.cgroup import RunGroup
from workers.launcher.pinned_code import enter, pinned
from workers.launcher.session import Session
from workers.launcher.ticket import admitted_command
from workers.shim.launch_protocol import MAX_COMMAND_BYTES, command_environment


class ActiveRun(NamedTuple):
    """A run that goes on, for its second commands."""

    #: What was started, with its code where the job sees it.
    request: LaunchRequest
    rules: Rules
    group: RunGroup | None
    session: Session | None
    #: The mount namespace in which the code of the job is pinned; None if it is not.
    namespace: int | None

    @classmethod
    def of(
        cls,
        request: LaunchRequest,
        rules: Rules,
        group: RunGroup | None,
        session: Session | None,
        line: socket.socket | None,
    ) -> ActiveRun:
        """Return a run whose first process has sent its mount namespace over *line*."""
        namespace = None
        if line is not None and rules.code_place is not None:
            with line, contextlib.suppress(BlockingIOError):
                line.setblocking(False)
                namespace = socket.recv_fds(line, 1, 1, socket.MSG_CMSG_CLOEXEC)[1][0]
            request = pinned(request, rules.code_place)
        return cls(request, rules, group, session, namespace)

    def command(self, fd: int) -> tuple[LaunchRequest, int]:
        """Return the command in the open file *fd*, and how many descriptors it gets.

        Raises:
            Refused: it is damaged, or was not signed for this run.

        """
        try:
            plain = json.loads(os.pread(fd, MAX_COMMAND_BYTES, 0))
            if type(plain) is not dict:
                raise Refused("the request for the command is damaged")
            argv, has_terminal, has_input = admitted_command(plain, self.request, self.rules.ticket_key)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refused(f"the request for the command is damaged: {error!r}") from error
        request = self.request._replace(
            argv=argv,
            env=command_environment(self.request.env, has_terminal=has_terminal),
            start_before=float("inf"),
            pty=has_terminal,
            typed=has_terminal,
            code=None,
            outputs={},
        )
        return request, 1 if has_terminal else 3 if has_input else 2

    def join(self) -> None:
        """Give this process the limits of the run's session, and the mount namespace of the run.

        Raises:
            OSError: the kernel refuses.

        """
        reset_limits(self.session)
        if self.session is not None:
            for kind, limit in self.session.limits.items():
                resource.setrlimit(kind, limit)
        if self.namespace is not None:
            enter(self.namespace)
