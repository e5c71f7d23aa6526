"""Decides whether the service has signed what a worker wants started, where root has given the launcher the key.

The worker may be taken over, so the whole request is compared with the statement of the job's ticket
(:mod:`gpuqueue.model.ticket`): account, command, directory, code and environment. A run differs from its job in what is
listed here, and in nothing else. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time

from gpuqueue.model import ticket
from gpuqueue.model.slurm_variables import slurm_variables
from workers.launcher.account import Refused
from workers.run.signed_environment import MPS_PIPES, NO_PIPES, THREAD_COUNT, THREADS, with_hook
from workers.shim.code import DIRECTORY, TREE
from workers.shim.containers import ENGINES
from workers.shim.launch_protocol import TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from workers.launcher.become import LaunchRequest

#: The PATH of a job whose submitter sent none.
PATH = "/usr/local/bin:/usr/bin:/bin"
#: The variable with what the worker has changed for the caps, the hook, threads and MPS: name -> [before, after].
CHANGED = "GPUQUEUE_CHANGED"
#: The variables that may differ: they only make frameworks use less device memory.
CAPS = frozenset(
    {
        *("TF_FORCE_GPU_ALLOW_GROWTH", "CUPY_GPU_MEMORY_LIMIT", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        *("XLA_PYTHON_CLIENT_MEM_FRACTION", "GPUQUEUE_TORCH_FRACTION", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    }
)
#: What the worker adds to the value of such a variable: sizes, shares and names. A shell may evaluate anything else.
_ADDED = re.compile(r"[\w.,:=%-]*", re.ASCII)
#: The variables that the worker sets for each run, and what they may be; empty stands for none.
_OF_RUN = {
    "GPUQUEUE_ATTEMPT": r"[0-9]{0,9}",
    "GPUQUEUE_MEM_BYTES": r"[0-9]{0,18}",
    "GPUQUEUE_TOKEN": r"([0-9]{1,9}\.[0-9a-z]{1,64})?",
    "GPUQUEUE_DEVICES": r"[\w.,:/-]*",
    "CUDA_VISIBLE_DEVICES": r"[\w.,:/-]*",
    "CUDA_DEVICE_ORDER": r"[A-Z_]*",
    "PYTHONUNBUFFERED": r"[\w.,:/ +-]*",
}
#: How many names of variables a message has.
SHOWN = 3


def admitted(request: LaunchRequest, key: bytes | None, run_dir: int) -> LaunchRequest:
    """Return *request* if the service has signed it, with the PATH that the job has here.

    Without *key* any request passes. *run_dir* is the open run directory of a job whose code came with it, else -1.

    Raises:
        Refused: it was not signed, or differs from what was signed.

    """
    if key is None:
        return request
    job = _whole(request.env.get("GPUQUEUE_JOB_ID", ""))
    if request.ticket is None:
        raise Refused(f"job {job} was not signed by the service, and this host starts no other: submit it again")
    statement = ticket.opened(key, request.ticket)
    if statement is None:
        raise Refused(f"job {job} has a ticket that the service of this host has not signed: submit it again")
    if time.time() > statement["until"]:
        raise Refused(f"the ticket of job {job} has expired: gpuqueue edit {job} with any option renews it")
    program = _program(request, statement)
    for what, agrees in _CHECKS:
        if not agrees(request, statement, job, program):
            raise Refused(f"job {job} differs from what the service has signed: {what}")
    if not _has_code(request, statement, run_dir):
        raise Refused(f"job {job} differs from what the service has signed: its code, or the directory for it")
    different = sorted(_different_variables(request, statement, job))
    if different:
        names = ", ".join(each[:40] for each in different[:SHOWN])
        raise Refused(f"job {job} differs from what the service has signed: its environment ({names})")
    return request._replace(env=_with_path(request.env, statement, program))


def admitted_command(plain: Mapping[str, Any], run: LaunchRequest, key: bytes | None) -> tuple[list[str], bool, bool]:
    """Return the words of the second command in *plain*, and whether it has a terminal and an input.

    *run* is what was admitted at the start of the job. Without *key* any command passes.

    Raises:
        Refused: the service has not signed it, or for another run.

    """
    job = _whole(run.env.get("GPUQUEUE_JOB_ID", ""))
    if run.container is not None:
        raise Refused("the job runs in a container, and a second command would run outside of it")
    if key is not None:
        statement = ticket.opened_command(key, str(plain["ticket"]))
        if statement is None:
            raise Refused(f"the service has not signed this command in job {job}, and this host starts no other")
        if (statement["job"], statement["token"], statement["uid"]) != (job, run.env.get(TOKEN), run.uid):
            raise Refused(f"the service has signed this command for another run than that of job {job}")
        if time.time() > statement["until"]:
            raise Refused("the signature of the command has expired: do the clocks of this host and the service agree?")
        plain = statement
    argv = plain["argv"]
    if type(argv) is not list or not argv or not all(type(word) is str for word in argv):
        raise Refused("the request for the command is damaged")
    return argv, bool(plain["terminal"]), bool(plain["input"])


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 0  # noqa: PLR2004 - 2^53 has 16


# ---- what runs -------------------------------------------------------------------------------------------------------


def _is_account(request: LaunchRequest, statement: Mapping[str, Any], _job: int, _program: str | None) -> bool:
    return (request.name, request.uid) == (statement["user"], statement["uid"])


def _is_job(_request: LaunchRequest, statement: Mapping[str, Any], job: int, _program: str | None) -> bool:
    if statement["array"] is None:
        return bool(job == statement["job"])
    return ticket.member_index(statement, job) is not None


def _is_command(request: LaunchRequest, statement: Mapping[str, Any], job: int, program: str | None) -> bool:
    """Return whether the command is the signed one, with the values of a member and the Python of an environment."""
    signed = list(statement["argv"])
    if statement["array"] is not None:
        index = ticket.member_index(statement, job)
        signed = [] if index is None else ticket.member_command(statement, index)
    if program is not None and statement["python"]:
        is_python = os.path.basename(program).startswith("python") and not others_change(program, request.uid)
        return is_python and request.argv[0] == program and request.argv[1:] == signed[1:]
    return request.argv == signed


def _has_variables_of_run(
    request: LaunchRequest, _statement: Mapping[str, Any], _job: int, _program: str | None
) -> bool:
    """Return whether the variables that the worker sets are numbers and names: a shell may evaluate anything else."""
    return all(re.fullmatch(shape, request.env.get(name, ""), re.ASCII) for name, shape in _OF_RUN.items())


def _is_umask(request: LaunchRequest, statement: Mapping[str, Any], _job: int, _program: str | None) -> bool:
    return bool(request.umask == statement["umask"])


def _is_terminal(request: LaunchRequest, statement: Mapping[str, Any], _job: int, _program: str | None) -> bool:
    """Return whether the job has a terminal only by its request: the worker has the other end, and can type there."""
    return request.pty == statement["pty"] and (not request.typed or bool(statement["typed"]))


def _is_directory(request: LaunchRequest, statement: Mapping[str, Any], _job: int, _program: str | None) -> bool:
    return request.code is not None or bool(request.cwd == statement["cwd"])


def _are_outputs(request: LaunchRequest, statement: Mapping[str, Any], _job: int, _program: str | None) -> bool:
    """Return whether no link to a log has another name than the signed one. Where there is none, none is made."""
    output, error = statement.get("outputs") or (None, None)
    return request.outputs.get("log") in {None, output} and request.outputs.get("stderr") in {None, error}


def _is_container(request: LaunchRequest, statement: Mapping[str, Any], _job: int, _program: str | None) -> bool:
    """Return whether the job runs in the signed image with the signed binds, by an engine that no other can change."""
    signed, container = statement.get("container"), request.container
    if signed is None or container is None:
        return signed is None and container is None
    program = container["program"]
    is_engine = os.path.basename(program) == ENGINES[container["engine"]].program
    return is_engine and not others_change(program, 0) and [container["image"], *container["binds"]] == signed


#: What is compared, in words for a message.
_CHECKS: tuple[tuple[str, Callable[[LaunchRequest, Mapping[str, Any], int, str | None], bool]], ...] = (
    ("its id", _is_job),
    ("its account", _is_account),
    ("its command", _is_command),
    ("its directory", _is_directory),
    ("its umask", _is_umask),
    ("the variables of its run", _has_variables_of_run),
    ("its terminal", _is_terminal),
    ("its container", _is_container),
    ("the links to its output", _are_outputs),
)


def _has_code(request: LaunchRequest, statement: Mapping[str, Any], run_dir: int) -> bool:
    """Return whether the job has the signed code, in its own run directory, or none if none was signed.

    The code is unpacked by the address, which is its digest.
    """
    code = request.code
    if code is None or statement["code"] is None:
        return code is None and statement["code"] is None
    directory = str(code.get("directory"))
    where = os.path.normpath(os.path.join(directory, TREE, str(code.get("cwd"))))
    return (
        [code.get("address"), code.get("cwd")] == statement["code"]
        and request.cwd == where
        and os.path.basename(directory) == DIRECTORY
        and _is_same(os.path.dirname(directory), run_dir)
    )


def _is_same(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except (OSError, ValueError):
        return False


# ---- its Python ------------------------------------------------------------------------------------------------------


def _program(request: LaunchRequest, statement: Mapping[str, Any]) -> str | None:
    """Return the Python of a job with a named environment, which each host knows by its settings; None without one.

    It is in the first directory of PATH. A job that is no script has no Python in its command, only this PATH.
    """
    if statement["environment"] is None:
        return None
    directory = request.env.get("PATH", "").partition(os.pathsep)[0]
    name = os.path.basename(request.argv[0]) if statement["python"] else "python"
    return os.path.join(directory, name)


def others_change(program: str, uid: int) -> bool:
    """Return whether others than root and the account *uid* can change *program*, or what it is a link to."""
    if not os.path.isabs(program):
        return True
    try:
        paths = [*_above(program), *_above(os.path.realpath(program))]
        processes = os.stat("/proc").st_dev  # a path there leads each process elsewhere
        return any(os.stat(path).st_dev == processes or _others_write(path, uid) for path in paths)
    except (OSError, ValueError):
        return True


def _others_write(path: str, uid: int) -> bool:
    found = os.stat(path)
    return found.st_uid not in {0, uid} or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _above(path: str) -> Iterator[str]:
    """Yield *path* and the directories above it."""
    yield path
    while path != "/":
        path = os.path.dirname(path)
        yield path


# ---- its environment -------------------------------------------------------------------------------------------------


def _different_variables(request: LaunchRequest, statement: Mapping[str, Any], job: int) -> Iterator[str]:
    """Yield names of variables that differ from the signed ones in a way that is not permitted, or a word for them."""
    try:
        slurms = slurm_variables(request.env, directory=request.cwd, host=os.uname().nodename)
        env = _restored(request.env, slurms)
    except _Changed as changed:
        yield str(changed)
        return
    yield from (name for name, value in slurms.items() if request.env.get(name) != value)
    is_array = statement["array"] is not None
    if is_array:
        index = ticket.member_index(statement, job)
        own = {} if index is None else ticket.member_variables(statement, index)
        yield from (name for name, _ in own.items() ^ ticket.members_of(env).items())
    has_environment = statement["environment"] is not None
    if has_environment:
        yield from ticket.of_another_python(env)
    signed = ticket.signed_part(env, is_array=is_array, has_environment=has_environment)
    digests = ticket.env_digests(signed, statement["secrets"])
    if any(digest != statement[name] for name, digest in digests.items()):
        yield "a variable is not as it was signed"
    if not _has_signed_path(request, statement):
        yield "PATH"


class _Changed(Exception):
    """The worker has changed a variable that it must not change. The message is its name."""


def _restored(env: Mapping[str, str], slurms: Mapping[str, str]) -> dict[str, str]:
    """Return *env* without what the worker has changed for the caps, the hook, threads and MPS, or as in Slurm.

    *slurms* are the variables of Slurm, from what is signed. The old values come from the worker as well. The digest
    of the whole environment proves them.

    Raises:
        _Changed: it has changed something else.

    """
    found = dict(env)
    try:
        changed = json.loads(env.get(CHANGED, "{}"))
        for name, (before, after) in changed.items():
            is_permitted = (
                (name in CAPS and _ADDED.fullmatch(after.replace((before or "").rstrip(","), "", 1)))
                or (name == "PYTHONPATH" and after == with_hook(before or ""))
                or (name == MPS_PIPES and after == NO_PIPES)
                or (name in slurms and slurms[name] == after)
                or (name in THREADS and before is None and THREAD_COUNT.fullmatch(after))
            )
            if not is_permitted or type(before) not in {str, type(None)} or found.pop(name) != after:
                raise _Changed(name)
            if before is not None:
                found[name] = before
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise _Changed(CHANGED) from None
    return found


def _has_signed_path(request: LaunchRequest, statement: Mapping[str, Any]) -> bool:
    """Return whether PATH is the signed one. Where none was signed, the launcher sets it."""
    path, signed = request.env.get("PATH"), statement["path"]
    if statement["environment"] is None:
        return not signed or path == signed
    directory, _, rest = (path or "").partition(os.pathsep)
    return not others_change(directory, request.uid) and (not signed or rest == signed)


def _with_path(env: Mapping[str, str], statement: Mapping[str, Any], program: str | None) -> dict[str, str]:
    """Return *env* with the signed PATH, and with the directory of *program* first, if there is one."""
    found = {name: value for name, value in env.items() if name != "PATH"}
    if program is not None:
        found["PATH"] = os.pathsep.join([os.path.dirname(program), statement["path"] or PATH])
    elif statement["path"]:
        found["PATH"] = statement["path"]
    return found
