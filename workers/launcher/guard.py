"""The guard of one run: a root process, parent and subreaper of the job's processes. Standard library only.

The shim has the account of the workers, so it can neither wait for the submitter's processes nor signal them. The guard
does both on its behalf. It ends all processes of the run as soon as the shim is gone, and nobody but root can end the
guard. On other requests it packs the results of a run, in a process that has become their owner, or deletes the code
of a run. :mod:`workers.shim.launch_protocol` has the messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import select
import signal
import socket
from array import array

from gpuqueue.system.run_processes import address_of
from workers.launcher import code_directory
from workers.launcher.account import Refused, Rules
from workers.launcher.become import LaunchRequest, Place, become
from workers.launcher.cgroup import RunGroup
from workers.launcher.code_directory import become_owner, open_code_directory
from workers.launcher.run_directory import checked, open_run
from workers.launcher.second_command import ActiveRun
from workers.launcher.session import Session, session_of
from workers.launcher.ticket import admitted
from workers.results.pack import MOST_REQUEST_BYTES, STALL_S, ArchiveRequest, NoCopy, PackFailed, Progress, stalled
from workers.results.pack import pack as pack_code
from workers.run import process_tree
from workers.shim.containers import forwards
from workers.shim.host_memory import HostMemory
from workers.shim.launch_protocol import (
    COMMAND,
    GREETING,
    MOST_BYTES,
    MOST_DESCRIPTORS,
    PACK,
    PORT,
    REMOVE,
    START,
    SWEEP,
    TOKEN,
    wake_on,
)
from workers.shim.master_port import with_master_port
from workers.shim.shared_memory import END_S, SharedMemory, notes
from workers.shim.tree import POLL_S, PR_SET_PDEATHSIG, WAKE, Tree, prctl, signal_all

PR_SET_CHILD_SUBREAPER = 36
#: The folder with an entry for each run of the host, below the directory of the runs.
LIVE = "live"
#: The number of keyctl(2), for which the C library has no function, by the machine.
KEYCTL = {"x86_64": 250, "aarch64": 219}
KEYCTL_JOIN_SESSION_KEYRING = 1
#: How long a shim may take to send its request, in seconds.
REQUEST_S = 10.0
#: Matches the token of a run.
_TOKEN = re.compile(rb"[0-9]{1,9}\.[0-9a-z]{1,64}")
#: Matches a token and the number of a port.
_PORT = re.compile(rb"([0-9]{1,9}\.[0-9a-z]{1,64}) ([1-9][0-9]{0,4})")
#: The requests that end the job: all processes of the run, or the first one, which passes the signal on.
TERMS = (b"signal %d" % signal.SIGTERM, b"first %d" % signal.SIGTERM)
#: What the process that packs writes while it makes progress. No answer has it.
PACK_PROGRESS = b"\0"


def serve(shim: socket.socket, rules: Rules) -> None:
    """Do what the process at the other end of *shim* asks for, once."""
    shim.settimeout(REQUEST_S)
    message, fds, _, _ = socket.recv_fds(shim, MOST_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    shim.settimeout(None)
    verb, _, rest = message.partition(b" ")
    if verb == GREETING:
        shim.send(GREETING)
    elif verb == SWEEP and _TOKEN.fullmatch(rest):
        found = (RunGroup.find(base, rest.decode()) for base in (rules.cgroups, rules.earlier_cgroups))
        ended = sum(group.end() for group in found if group is not None)
        shim.send(b"swept %d" % (ended + process_tree.sweep(TOKEN, rest.decode())))
    elif verb == REMOVE:
        shim.send(removal(rest.decode(errors="replace"), rules))
    elif verb == PORT and (match := _PORT.fullmatch(rest)) is not None:
        pids = process_tree.carrying(TOKEN, match[1].decode())
        shim.send(f"at {address_of(int(match[2]), pids) or ''}".encode())
    elif verb == PACK and len(fds) == 2:  # noqa: PLR2004 - the request and the output
        pack_results(shim, rest.decode(errors="replace"), fds[0], fds[1], rules)
    elif verb == START and len(fds) >= 2:  # noqa: PLR2004 - the spec and an output
        start(shim, rest.decode(errors="replace"), fds[0], fds[1:], rules)


def removal(name: str, rules: Rules) -> bytes:
    """Delete the content of ``code`` in the run directory *name*, and return the answer: ``removed`` if it is empty."""
    try:
        code_directory.empty_code_directory(open_run(name, rules), rules)
    except Refused as refusal:
        return f"no -1 {refusal}".encode()[:MOST_BYTES]
    except OSError as error:
        return f"no {error.errno} {error.strerror}".encode()[:MOST_BYTES]
    return b"removed"


def start(shim: socket.socket, name: str, spec: int, files: list[int], rules: Rules) -> None:
    """Start the job of the open file *spec* with its other *files*, and stay until its last process is gone.

    *name* is that of its run directory.
    """
    number = -1
    try:
        request = LaunchRequest.read(spec)
        number = errno.EPERM  # it counts as this host's: another host may have the account
        run_dir = open_run(name, rules) if request.code is not None else -1
        request = admitted(request, rules.ticket_key, run_dir)
        if rules.ticket_key is not None:  # nothing else says that the path from the worker is that of the run
            request.env["GPUQUEUE_RUN_DIR"] = os.path.join(rules.runs, checked(name))
        # No worker chooses these: it could lead the training of a person to another host.
        request = request._replace(env=with_master_port(request.env))
        leave_keyring()
        session = session_of(shim, request.name, request.uid, rules)
    except Refused as refusal:
        shim.send(f"no {number} {refusal}".encode()[:MOST_BYTES])
        return
    except OSError as error:
        shim.send(f"no {error.errno} cannot make a process: {error.strerror}".encode())
        return
    try:
        run(shim, request, [spec, *files], run_dir, rules, session)
    finally:
        if session is not None:
            session.close()


def leave_keyring() -> None:
    """Begin an empty session keyring (keyctl(2)). A job could use the keys that other jobs have put into a common one.

    Raises:
        OSError: the kernel cannot make one.

    """
    number = KEYCTL.get(os.uname().machine)
    libc = ctypes.CDLL(None, use_errno=True)
    if number is not None and libc.syscall(ctypes.c_long(number), ctypes.c_long(KEYCTL_JOIN_SESSION_KEYRING), None) < 0:
        error = ctypes.get_errno()
        if error not in {errno.ENOSYS, errno.EPERM}:  # no keyrings here, or none for anybody in this container
            raise OSError(error, f"no session keyring: {os.strerror(error)}")


def run(
    shim: socket.socket, request: LaunchRequest, files: list[int], run_dir: int, rules: Rules, session: Session | None
) -> None:
    """Start the job of *request* with the open *files*, and stay until its last process is gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKE)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    step, group, shared = "make a control group", None, SharedMemory(os.path.join(rules.runs, LIVE))
    is_pinned = request.code is not None and rules.code_place is not None
    try:
        group = group_of(request, rules)
        step = "make a process"
        reader, answer = os.pipe()
        line, theirs = socket.socketpair() if is_pinned else (None, None)
        me = os.getpid()
        pid = os.fork()
    except Refused as refusal:
        shim.send(f"no -1 {refusal}".encode()[:MOST_BYTES])
        return
    except OSError as error:
        shim.send(f"no {error.errno} cannot {step}: {error.strerror}".encode())
        if group is not None:
            group.end()
        return
    if pid == 0:
        try:
            become(request, files[1:], Place(run_dir, theirs), rules, answer, me, group, session)
        finally:
            os._exit(127)
    for fd in (answer, *files, *([] if run_dir < 0 else [run_dir])):
        os.close(fd)
    if theirs is not None:
        theirs.close()
    if session is not None:
        session.restore()
    tree = Tree(pid)
    tree.forwards = forwards(request.container)
    try:
        if begun(shim, tree, reader):
            wake_on(shim)
            if follow(shim, tree, group, shared, ActiveRun.of(request, rules, group, session, line)):
                report_left(shim, shared, request, rules)
                report_gone(shim)
    finally:  # after an error too, nothing may be left
        end(tree, group)


def end(tree: Tree, group: RunGroup | None) -> None:
    """End all processes of the run, and stay until the last one is gone, even if it cannot be killed."""
    if group is not None:
        group.end()
    tree.end(0.0, lambda: None, warned=True)
    while tree.reap():
        signal.sigtimedwait(WAKE, POLL_S)
    if group is not None:
        group.end()


def group_of(request: LaunchRequest, rules: Rules) -> RunGroup | None:
    """Make the control group of the run, whose name is the token that the shim put into its environment.

    Raises:
        Refused: there is no token, and the run would not be limited.
        OSError: the run would not be limited; EPERM if this host cannot do that.

    """
    limits = rules.limits.within(request.limits)
    if limits.are_set and (lacking := limits.unsupported(rules.cgroups)) is not None:
        raise OSError(errno.EPERM, f"this host cannot limit the {lacking} of a run")
    token = request.env.get(TOKEN, "")
    if _TOKEN.fullmatch(token.encode(errors="replace")):
        return RunGroup.create(rules.cgroups, token, limits)
    if limits.are_set:
        raise Refused("the spec of the run is damaged: it has no token")
    return None


def begun(shim: socket.socket, tree: Tree, reader: int) -> bool:
    """Wait until the job has started, and answer the shim; return False if it does not start, or the shim has left."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(shim, select.POLLIN)
    ready = {fd for fd, _ in poll.poll()}
    reason = os.read(reader, MOST_BYTES - 16) if reader in ready else b""
    os.close(reader)
    if reader not in ready:  # the shim gives up; the child may be in a call that takes for ever
        return False
    if reason:
        os.waitpid(tree.pid, 0)
        shim.send(b"no " + reason)
        return False
    return send_to(shim, b"ok %d %d" % (tree.pid, os.getpid()))


def follow(
    shim: socket.socket, tree: Tree, group: RunGroup | None, shared: SharedMemory | None, run: ActiveRun | None
) -> bool:
    """Signal the processes of the run as the shim asks, until the last one is gone. Return False if the shim is.

    Second commands begin in *run*; a second command has none itself.
    """
    reported, memory = False, HostMemory()
    while tree.reap():
        memory.poll()
        if shared is not None:
            shared.poll()
        reported = reported or report_end(shim, tree, group, memory)
        fds: list[int] = []
        try:
            message, fds = received(shim)
        except BlockingIOError:
            signal.sigtimedwait(WAKE, POLL_S)
            continue
        except OSError:
            message = b""
        if not message:
            return False
        if message in TERMS and shared is not None:  # the last time to see what its processes use
            shared.read()
        if message == COMMAND and fds and run is not None and tree.status is None:
            begin_command(shim, socket.socket(fileno=fds.pop()), run)
        for fd in fds:
            os.close(fd)
        obey(message, tree, group)
    return reported or report_end(shim, tree, group, memory)


def received(shim: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message of the shim and its descriptors, without waiting.

    ``socket.recv_fds`` would wait, because it drops its flags.

    Raises:
        OSError: there is no message now, or the shim is gone.

    """
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    message, control, _, _ = shim.recvmsg(MOST_BYTES, socket.CMSG_SPACE(array("i", [0]).itemsize), flags)
    fds = array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


def begin_command(shim: socket.socket, channel: socket.socket, run: ActiveRun) -> None:
    """Fork the guard of a second command in *run*. Its shim is at the other end of *channel*."""
    guard = os.getpid()
    with channel, contextlib.suppress(OSError):  # without a process the shim sees the end of the channel
        if os.fork() == 0:
            try:
                shim.close()
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() == guard:
                    serve_command(channel, run)
            finally:
                os._exit(0)


def serve_command(channel: socket.socket, run: ActiveRun) -> None:
    """Start the second command that the process at the other end of *channel* asks for, and stay until its end."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    channel.settimeout(REQUEST_S)
    message, fds, _, _ = socket.recv_fds(channel, MOST_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    channel.settimeout(None)
    if message != COMMAND or len(fds) < 2:  # noqa: PLR2004 - the request and an output
        return
    try:
        request, count = run.command(fds[0])
        reader, answer = os.pipe()
        me = os.getpid()
        pid = os.fork()
    except Refused as refusal:
        channel.send(f"no {errno.EPERM} {refusal}".encode()[:MOST_BYTES])
        return
    except OSError as error:
        channel.send(f"no {error.errno} cannot make a process: {error.strerror}".encode())
        return
    if pid == 0:
        try:
            become(request, fds[1 : count + 1], Place(join=run.join), run.rules, answer, me, run.group, run.session)
        finally:
            os._exit(127)
    for fd in (answer, *fds):
        os.close(fd)
    tree = Tree(pid)
    try:
        if begun(channel, tree, reader):
            wake_on(channel)
            if follow(channel, tree, None, None, None):
                report_gone(channel)
    finally:
        end(tree, None)


def report_left(shim: socket.socket, shared: SharedMemory, request: LaunchRequest, rules: Rules) -> None:
    """Report the shared memory that the run has left. A process that has become its owner examines it."""
    candidates = shared.candidates()
    if not candidates:
        return
    guard = os.getpid()
    with contextlib.suppress(OSError):
        reader, answer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                shim.close()
                become_owner(request.uid, guard)
                os.write(answer, json.dumps(notes(candidates, remove=rules.remove_shared_memory)).encode())
            finally:
                os._exit(0)
        os.close(answer)
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        text = os.read(reader, MOST_BYTES) if poll.poll(END_S * 1000) else b""
        os.kill(pid, signal.SIGKILL)  # not reaped, so the pid is still its own
        if len(text) > len(b"[]"):
            send_to(shim, b"left " + text)


def report_gone(shim: socket.socket) -> None:
    """Report to the shim that the last process has ended, and what all have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    send_to(shim, b"gone %d %f" % (usage.ru_maxrss, usage.ru_utime + usage.ru_stime))


def obey(message: bytes, tree: Tree, group: RunGroup | None) -> None:
    """Send the signal that *message* names to all processes of the run, or to the first one."""
    target, _, number = message.partition(b" ")
    if number.isdigit() and int(number) in signal.valid_signals():
        if target == b"signal":
            if int(number) == signal.SIGKILL and group is not None:
                group.kill()
            signal_all(int(number))
        elif target == b"first" and tree.status is None:
            tree.send_first(int(number))


def report_end(shim: socket.socket, tree: Tree, group: RunGroup | None, memory: HostMemory) -> bool:
    """Report to the shim how the first process ended; return False while it lives."""
    if tree.status is None:
        return False
    shortage = "" if tree.status == 0 else None if group is None else group.shortage(memory.words())
    if shortage is None:  # only the group above, or the host, has a count
        shortage = memory.reason(tree.status)
    return send_to(shim, b"ended %d %s" % (tree.status, shortage.encode()))


def send_to(shim: socket.socket, message: bytes) -> bool:
    """Send *message*; return whether it was sent. If the shim is gone, the next read reports it."""
    try:
        shim.send(message, socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def pack_results(asker: socket.socket, name: str, request: int, output: int, rules: Rules) -> None:
    """Pack the results in the run directory *name* into *output*, and send the answer to *asker*.

    Nothing in the code directory is opened as root, and the request is not read as root either: its patterns come from
    users.
    """
    guard = os.getpid()
    try:
        run_dir = open_run(name, rules)
        code, uid = open_code_directory(run_dir, rules)
        reader, answer = os.pipe()
        pid = os.fork()
    except Refused as refusal:
        asker.send(f"no -1 {refusal}".encode()[:MOST_BYTES])
        return
    except OSError as error:
        asker.send(f"no {error.errno} {error.strerror}".encode())
        return
    if pid == 0:
        try:
            asker.close()
            os.close(run_dir)
            os.close(reader)
            os.write(answer, answer_of_owner(code, uid, request, output, answer, guard))
        finally:
            os._exit(0)
    for fd in (code, request, output, answer):
        os.close(fd)
    try:
        text = answer_of_packer(asker, reader)
    finally:
        os.kill(pid, signal.SIGKILL)  # not reaped, so the pid is still its own
    if text:
        asker.send(text)


def answer_of_owner(code: int, uid: int, request: int, output: int, answer: int, guard: int) -> bytes:
    """Become the owner, the account *uid*, write the archive, and return the answer."""
    try:
        become_owner(uid, guard)
        progress = Progress(output, lambda: os.write(answer, PACK_PROGRESS))
        lines = pack_code(code, ArchiveRequest.read(os.pread(request, MOST_REQUEST_BYTES, 0)), output, progress)
        text = "packed " + "\n".join(lines)
    except NoCopy as error:
        text = f"no {errno.ENOENT} {error}"
    except (PackFailed, Refused) as error:
        text = f"no -1 {error}"
    except BrokenPipeError as error:
        text = f"no {errno.EPIPE} {error.strerror}"
    except Exception as error:  # noqa: BLE001 - the asker reports any error
        text = f"no -1 {getattr(error, 'strerror', None) or repr(error)}"
    return text.encode(errors="replace")[:MOST_BYTES]


def answer_of_packer(asker: socket.socket, reader: int) -> bytes:
    """Return the answer of the child; none if *asker* is gone. A child that makes no progress gets no more time."""
    poll = select.poll()
    poll.register(asker, select.POLLIN)
    poll.register(reader, select.POLLIN)
    text = b""
    while ready := {fd for fd, _ in poll.poll(STALL_S * 1000)}:
        if asker.fileno() in ready:
            return b""
        part = os.read(reader, MOST_BYTES)
        if not part:
            return text or b"no -1 the process that packed the results was killed"
        text = (text + part.replace(PACK_PROGRESS, b""))[:MOST_BYTES]
    return f"no -1 {stalled()}".encode()
