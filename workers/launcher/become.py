"""Becomes the submitter and then the job's first process, in a child of the guard. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import resource
import signal
import socket
import stat
import termios
import time
from functools import partial
from typing import NamedTuple

from gpuqueue.model.slurm_variables import MARK
from workers.launcher import code_directory
from workers.launcher.account import Refused, Rules, permitted
from workers.launcher.cgroup import Limits, RunGroup
from workers.launcher.pinned_code import pin, pinned
from workers.launcher.session import Session
from workers.launcher.ticket import PATH
from workers.run.signed_environment import with_srun
from workers.shim import code, containers
from workers.shim.host_memory import adjust_oom_score
from workers.shim.not_started import TOO_LATE, why
from workers.shim.output_link import make_links
from workers.shim.tree import PR_SET_PDEATHSIG, begin_child, prctl, raise_open_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_NO_NEW_PRIVS = 38
#: Largest spec, in bytes. The limits of arguments and environment leave it less than half of this.
MOST_BYTES = 8 * 1024 * 1024
#: The descriptor of the answer while all others are closed.
ANSWER = 3
#: The major device numbers of pseudo-terminals (Unix98 slaves).
PSEUDO_TERMINALS = range(136, 144)
#: Descriptors below this are closed, even if a session has lowered the limit of open files.
MOST_DESCRIPTORS = 1024
#: The largest adjustment that the kernel knows.
MAX_OOM_SCORE_ADJ = 1000
#: Errors at the limits that a session has set for the person. Without a session they are a shortage of the host.
LIMITS_REACHED = {errno.EAGAIN, errno.EMFILE}


class LaunchRequest(NamedTuple):
    """What to start. All of it comes from the shim and is not trusted."""

    name: str
    uid: int
    argv: list[str]
    cwd: str
    env: dict[str, str]
    umask: int
    start_before: float
    pty: bool
    typed: bool
    #: How to unpack the code that came with the job; None if none came.
    code: dict[str, Any] | None
    #: The most that the job says it may use of the host.
    limits: Limits
    #: The signature of the service; None if there is none.
    ticket: str | None = None
    #: What is added to the score by which the kernel chooses a process to kill when host memory runs out.
    oom_score_adj: int = 0
    #: Which links to its logs the job's first process makes: log -> pattern, None for no link.
    outputs: dict[str, str | None] = {}  # noqa: RUF012 - of a named tuple
    #: The container that the job runs in; None if it runs in none.
    container: dict[str, Any] | None = None

    @classmethod
    def read(cls, fd: int) -> LaunchRequest:
        """Return the request in the spec that the open file *fd* holds.

        Raises:
            Refused: the spec is not valid.

        """
        text = b""
        while len(text) <= MOST_BYTES and (part := os.pread(fd, MOST_BYTES, len(text))):
            text += part
        try:
            spec = json.loads(text)
            found = cls(
                name=spec["user"]["name"],
                uid=spec["user"]["uid"],
                argv=spec["argv"],
                cwd=spec["cwd"],
                env=spec["env"],
                umask=spec["umask"],
                start_before=float(spec["start_before"]),
                pty=spec["pty"] is not None,
                typed=bool(spec["typed"]),
                code=spec["code"],
                limits=Limits(**(spec.get("limits") or {})),  # a worker of an older version says none
                ticket=spec.get("ticket"),  # likewise
                oom_score_adj=spec.get("oom_score_adj", 0),  # likewise
                outputs=spec.get("outputs") or {},  # likewise
                container=spec.get("container"),  # likewise
            )
            words = [found.name, found.cwd, *found.argv, *found.env, *dict.values(found.env)]
            fits = (
                type(found.code) in {dict, type(None)}
                and type(found.ticket) in {str, type(None)}
                and type(found.argv) is list
                and type(found.uid) is int
                and type(found.umask) is int
                and type(found.oom_score_adj) is int
                and 0 <= found.oom_score_adj <= MAX_OOM_SCORE_ADJ  # less would be the right of root
            )
            fits = fits and type(found.outputs) is dict and found.outputs.keys() <= {"log", "stderr"}
            fits = fits and all(type(pattern) in {str, type(None)} for pattern in found.outputs.values())
            fits = fits and (found.container is None or containers.is_valid(found.container))
            fits = fits and all(type(word) is str for word in words) and found.limits.are_valid
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise Refused(f"the spec of the run is damaged: {error!r}") from error
        if not fits or not found.argv:
            raise Refused("the spec of the run is damaged: a field has the wrong type")
        return found


class Place(NamedTuple):
    """Where a process of a run begins."""

    #: The open run directory; -1 if it is not needed.
    run_dir: int = -1
    #: Leads to the guard, which gets the mount namespace of code that is pinned.
    guard_line: socket.socket | None = None
    #: Gives a second command the limits and the namespace of its run; None for the job's first process.
    join: Callable[[], None] | None = None


def become(
    request: LaunchRequest,
    files: list[int],
    place: Place,
    rules: Rules,
    answer: int,
    guard: int,
    group: RunGroup | None,
    session: Session | None,
) -> None:
    """Become the job's first process as its submitter. Write the reason into the pipe *answer* if that fails.

    *files* are the bundle, if the request has code, and the job's output; those of a second command are output, errors
    and perhaps input. An answer is an errno, or -1 if there is none, and the reason.
    """
    step, program = "cannot prepare the process", ""
    try:
        begin_child(guard)
        if group is not None:
            group.enter()
        account = permitted(request.name, request.uid, rules)
        bundle, files = begun_in(place, request, files, session)
        adjust_oom_score(request.oom_score_adj)
        if request.code is not None:
            request = with_code_directory(request, place, account.pw_uid, rules)
        take(files, request, account.pw_uid)
        drop(account, session)
        # again, because setresuid has cleared it. Only a set-user-ID program clears it after this.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(127)
        if not rules.allow_setuid:
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.umask(request.umask & 0o777)
        if request.code is not None:
            step = f"cannot unpack its code as {account.pw_name}"
            code.unpack(bundle, request.code)
        os.dup2(answer, ANSWER, inheritable=False)
        answer = ANSWER
        os.closerange(ANSWER + 1, max(os.sysconf("SC_OPEN_MAX"), MOST_DESCRIPTORS))
        raise_open_files()
        step = f"cannot enter the working directory {request.cwd} as {account.pw_name}"
        os.chdir(request.cwd)  # as the user: root could enter more, or less (a file server that maps root to nobody)
        make_links(request.outputs, request.env)
        if time.monotonic() >= request.start_before:
            os.write(answer, f"0 {TOO_LATE}".encode())
            return
        program = request.argv[0] if request.container is None else ""
        step = f"cannot start {program or 'its container'} as {account.pw_name}"
        argv, env = command_line(request, environment(request.env, request.cwd, account, session))
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell on purpose
    except Refused as refusal:
        # With an errno it counts as this host's: another host may have the account.
        os.write(answer, f"{errno.EPERM} {refusal}".encode(errors="replace"))
    except Exception as error:  # noqa: BLE001 - the shim reports any error
        number = getattr(error, "errno", -1) or -1
        if session is not None and number in LIMITS_REACHED:
            number = errno.EPERM
        os.write(answer, f"{number} {step}: {why(error, program)}".encode(errors="replace"))


def begun_in(place: Place, request: LaunchRequest, files: list[int], session: Session | None) -> tuple[int, list[int]]:
    """Give this process the limits of a run, and return the bundle, -1 if there is none, and its other *files*."""
    if place.join is not None:
        place.join()
        return -1, files
    reset_limits(session)
    bundle, files = (files[0], files[1:]) if request.code is not None else (-1, files)
    return bundle, [files[0], files[-1]]  # no worker gives a job an input


def command_line(request: LaunchRequest, env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of *request*, those of its container engine if it has one.

    Raises:
        OSError: its image, a bind or the engine is missing.

    """
    if request.container is None:
        return request.argv, env
    code = None if request.code is None else request.code["directory"]
    is_terminal, is_typed = request.pty, request.typed
    return containers.prepared(request.argv, env, request.cwd, request.container, code, pty=is_terminal, typed=is_typed)


def with_code_directory(request: LaunchRequest, place: Place, uid: int, rules: Rules) -> LaunchRequest:
    """Make the directory for the code of *request* in its run directory, and return the request with its place."""
    made = code_directory.make_code_directory(place.run_dir, uid)
    try:
        if rules.code_place is None or place.guard_line is None:
            return request
        pin(request, made, rules.code_place, place.guard_line)
        return pinned(request, rules.code_place)
    finally:
        os.close(made)


def reset_limits(session: Session | None) -> None:
    """Undo the launcher's own limits, and forbid core dumps, which can be as large as the memory of the job.

    The limits of a session stay. They forbid core dumps unless one of its modules permits them.
    """
    if session is None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def take(outputs: list[int], request: LaunchRequest, uid: int) -> None:
    """Make *outputs* the standard output, error and perhaps input of this process, or its terminal."""
    if request.pty:
        found = os.fstat(outputs[0])
        if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) in PSEUDO_TERMINALS:
            os.fchown(outputs[0], uid, -1)  # programs open their terminal by its name
        fcntl.ioctl(outputs[0], termios.TIOCSCTTY, 0)
        if request.typed:
            os.dup2(outputs[0], 0)
    for standard, fd in zip((1, 2, 0), outputs if len(outputs) > 1 else outputs * 2, strict=False):
        os.dup2(fd, standard)


def drop(account: pwd.struct_passwd, session: Session | None) -> None:
    """Give up root for good, in this order: supplementary groups, group, user.

    Raises:
        Refused: some privilege is left.

    """
    uid, gid = account.pw_uid, account.pw_gid
    if session is None:
        os.initgroups(account.pw_name, gid)
    else:
        os.setgroups(session.groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3 or 0 in os.getgroups():
        raise Refused(f"could not become {account.pw_name}")
    if any(succeeds(act) for act in (partial(os.setresuid, 0, 0, 0), partial(os.setresgid, 0, 0, 0))):
        raise Refused(f"could not give up root for {account.pw_name}")


def succeeds(act: Callable[[], object]) -> bool:
    """Return whether the kernel permits *act*."""
    try:
        act()
    except PermissionError:
        return False
    return True


def environment(sent: dict[str, str], cwd: str, account: pwd.struct_passwd, session: Session | None) -> dict[str, str]:
    """Return the environment of the job: what was *sent*, with the variables of a login on this host.

    Variables of a session are used where nothing else has set them.
    Variables of the dynamic loader stay: this process has become the user, and the job is the user's own program.
    """
    runtime = f"/run/user/{account.pw_uid}"
    env = {"PATH": PATH, **(session.environment if session is not None else {}), **sent}
    if MARK in sent:
        env.update(with_srun(env, env["PATH"]))
    env["PWD"] = cwd  # a shell believes any other name of the directory, such as a link of the workers
    env.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name, SHELL=account.pw_shell or "/bin/sh")
    env.pop("XDG_RUNTIME_DIR", None)
    with contextlib.suppress(OSError):
        if os.stat(runtime).st_uid == account.pw_uid:
            env["XDG_RUNTIME_DIR"] = runtime
    return env
