"""Jobs in PAM sessions: real modules, a service of PAM of its own, a real launcher and real accounts."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bounded import until
from one_shim import RUN_TOKEN, Shim
from submitters import Launcher, People

from gpuqueue.model.run import EndingKind
from workers.launcher.pam import DIRECTORY, LIBRARY
from workers.run.environment import TOKEN
from workers.shim.tree import open_files

Start = Callable[..., Shim]

NAME = f"gpuqueue-test-{os.getpid()}"
PERMITTED = {kind: f"{kind} required pam_permit.so" for kind in ("auth", "account", "session")}
#: Notes when the session of an account is opened and closed, and how many processes the account has then.
NOTE = """#!/bin/sh
alive=$(find /proc -maxdepth 1 -user $PAM_USER -exec grep -L '^State:.Z' {{}}/status ';' 2> /dev/null | wc -l)
echo $PAM_TYPE $PAM_USER $alive >> {events}
"""
#: Opens a session as a guard does, and closes it: SERVICE NAME UID GROUP SHIM SECONDS.
PROGRAM = """
import socket, sys
from workers.launcher import session
from workers.launcher.account import Rules
from workers.launcher.pam import Service
service, name, uid, group, shim, seconds = sys.argv[1:]
session.SESSION_S = int(seconds)
rules = Rules(0, group, 1000, "/runs", pam=Service(service))
opened = session.session_of(socket.socket(fileno=int(shim)), name, int(uid), rules)
print("opened", flush=True)
opened.close()
"""


class PamService:
    """A service of PAM in the real directory, and the file of what its script has noted."""

    def __init__(self, folder: Path) -> None:
        self.name = NAME
        self.path = Path(DIRECTORY, NAME)
        self.folder = folder
        self._events = folder / "events"
        self.script = self.add("note", NOTE.format(events=self._events))

    def write(self, *lines: str) -> None:
        """Write the file: *lines*, and after them a line that permits, for each kind."""
        self.path.write_text("".join(f"{line}\n" for line in (*lines, *PERMITTED.values())))

    def add(self, name: str, text: str) -> Path:
        """Return the path of a new file of modules, which can be executed."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def events(self) -> list[str]:
        """Return what the script has noted."""
        return self._events.read_text().splitlines() if self._events.exists() else []


@pytest.fixture
def pam(people: People, open_dir: Path) -> Iterator[PamService]:
    """Return a service of PAM that is removed at the end."""
    assert people
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        pytest.skip(f"PAM is not installed: {error}")
    tops = [Path(top) for top in ("/usr/lib", "/usr/lib64", "/lib", "/lib64")]
    places = [each for top in tops for way in (".", "*") for each in top.glob(f"{way}/security/pam_exec.so")]
    if not places or not os.access(DIRECTORY, os.W_OK):
        pytest.skip("the modules of PAM are not installed, or no service can be added")
    found = PamService(open_dir)
    yield found
    found.path.unlink(missing_ok=True)


def started(pam: PamService, people: People, shim: socket.socket, seconds: int) -> subprocess.Popen[str]:
    """Start a process that opens a session of alice for *shim*."""
    alice = people.alice
    words = [pam.name, alice.pw_name, str(alice.pw_uid), people.group, str(shim.fileno()), str(seconds)]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True, pass_fds=[shim.fileno()]
    )


def test_the_job_runs_in_a_session(
    as_user: Start, launch: Callable[..., Launcher], people: People, pam: PamService
) -> None:
    """The job has limits and variables of the session, below what was sent, and the session is closed after its end.

    The guard has its own limits again.
    """
    name = people.alice.pw_name
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # as it is, since root may be unable to raise it again
    lines = ("soft nofile 100", f"hard nofile {hard}", "soft cpu 7", "- priority 3")
    limits = pam.add("limits", "".join(f"{name} {line}\n" for line in lines))
    variables = "".join(f"{each} DEFAULT=pam\n" for each in ("OURS", "BOTH", "HOME", TOKEN))
    conf = pam.add("env", variables)
    pam.write(
        f"session required pam_exec.so {pam.script}",
        f"session required pam_env.so conffile={conf} readenv=0 user_readenv=0",
        f"session required pam_limits.so conf={limits}",
    )
    launcher = launch("--pam-service", pam.name)
    shown = f"ulimit -Sn; ulimit -St; ulimit -c; nice; echo $OURS $BOTH $HOME ${TOKEN}"
    env = {TOKEN: RUN_TOKEN, "PATH": "/usr/bin:/bin", "BOTH": "sent"}

    words = f"{shown}; until [ -e go ]; do sleep 0.05; done"
    run = as_user("/bin/sh", "-c", words, env=env, launcher=launcher.socket)

    until(lambda: len(run.log().splitlines()) == 5, what="the job")
    until(lambda: len(run.directory.processes()) == 3, what="its guard")  # the shim writes it after the job has begun
    guard = run.directory.processes()[2]
    assert guard is not None
    own, others = (Path(f"/proc/{pid}/limits").read_text() for pid in (guard.pid, launcher.process.pid))
    assert others == own
    assert os.getpriority(os.PRIO_PROCESS, launcher.process.pid) == os.getpriority(os.PRIO_PROCESS, guard.pid)
    assert [f"open_session {name} 0"] == pam.events()
    people.shell(people.alice, f"touch {people.alice.pw_dir}/go")
    assert 0 == run.ended().ending.exit_code
    assert [
        str(open_files(hard)),
        "420",
        "0",
        "3",
        f"pam sent {people.alice.pw_dir} {RUN_TOKEN}",
    ] == run.log().splitlines()
    until(lambda: len(pam.events()) == 2, what="the end of the session")
    assert [f"open_session {name} 0", f"close_session {name} 0"] == pam.events()
    Path(people.alice.pw_dir, "go").unlink()


@pytest.mark.parametrize("how", ["cancelled", "the shim killed"])
def test_a_session_is_closed_after_the_last_process(
    as_user: Start, launch: Callable[..., Launcher], people: People, pam: PamService, how: str
) -> None:
    """A job that ignores SIGTERM is killed, also if its shim was killed, and then the session is closed."""
    pam.write(f"session required pam_exec.so {pam.script}")
    socket_path = launch("--pam-service", pam.name).socket
    run = as_user("/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done", launcher=socket_path)
    until(lambda: run.log() == "up\n", what="the job")

    if how == "cancelled":
        run.directory.ask_end(EndingKind.CANCELLED)
        assert EndingKind.CANCELLED is run.ended().ending.kind
    else:
        run.process.kill()

    name = people.alice.pw_name
    until(lambda: pam.events() == [f"open_session {name} 0", f"close_session {name} 0"], what="the end of the session")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("account required pam_deny.so", "account): "),
        ("account required pam_nologin.so file={message}", "account): Authentication failure: it is in maintenance"),
        ("auth required pam_deny.so", "credentials): "),
        ("session required pam_deny.so", "session): "),
        pytest.param("session required pam_exec.so /bin/false", "session): ", marks=pytest.mark.full),
        pytest.param("session required pam_no_such_module.so", "session): ", marks=pytest.mark.full),
    ],
)
def test_what_a_module_refuses_goes_to_another_host(
    as_user: Start, launch: Callable[..., Launcher], people: People, pam: PamService, line: str, what: str
) -> None:
    """A module that refuses the account is the reason, nothing runs, and the host is excluded for the job."""
    pam.write(line.format(message=pam.add("message", "it is in\nmaintenance\n")))
    socket_path = launch("--pam-service", pam.name).socket

    end = as_user("touch", "made", launcher=socket_path).ended()

    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert end.ending.detail.startswith(f"the PAM service {pam.name} refuses {people.alice.pw_name} ({what}")
    assert not Path(people.alice.pw_dir, "made").exists()


def test_a_service_whose_file_is_gone_refuses(as_user: Start, launch: Callable[..., Launcher], pam: PamService) -> None:
    """Without its file PAM would use the modules of the service named other, so the job does not start."""
    pam.write()
    socket_path = launch("--pam-service", pam.name).socket
    pam.path.unlink()

    end = as_user("true", launcher=socket_path).ended()

    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert f"the PAM service {pam.name} has no file {pam.path} on this host" == end.ending.detail


def test_a_limit_of_the_session_is_not_the_hosts_shortage(
    as_user: Start, launch: Callable[..., Launcher], people: People, pam: PamService
) -> None:
    """A person with more processes than the limits permit gets no other one there, and the host goes on."""
    limits = pam.add("limits", f"{people.alice.pw_name} hard nproc 0\n")
    pam.write(f"session required pam_limits.so conf={limits}")
    socket_path = launch("--pam-service", pam.name).socket
    first = as_user("sleep", "1000", launcher=socket_path)
    until(lambda: len(people.running(people.alice)) == 1 and len(first.directory.processes()) == 3, what="her process")

    end = as_user("true", launcher=socket_path).ended()

    assert (EndingKind.REFUSED, True, False) == (end.ending.kind, end.host_lacks, end.hosts_fault)
    assert "Resource temporarily unavailable" in end.ending.detail


def hanging(pam: PamService, kind: str) -> Path:
    """Write a service with a script that hangs in calls of *kind*, and return the file for the pid of the script."""
    pid = pam.folder / "pid"
    script = pam.add("hang", f"#!/bin/sh\n[ $PAM_TYPE != {kind} ] || {{ echo $$ > {pid}; exec sleep 600; }}\n")
    pam.write(f"session required pam_exec.so {script}")
    return pid


def kill(pid: Path) -> None:
    """Kill the process whose pid is in a file."""
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_session_that_does_not_open_is_given_up(people: People, pam: PamService) -> None:
    """A module that hangs ends its guard after a time, and the shim gets the reason."""
    pid = hanging(pam, "open_session")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, started(pam, people, theirs, 1) as guard:
        assert -signal.SIGKILL == guard.wait(timeout=60)
        ours.settimeout(60)
        answer = ours.recv(4096).decode()

    kill(pid)
    assert f"no {errno.EPERM} the PAM service {pam.name} has not opened a session after 1 s" == answer


@pytest.mark.full
def test_a_module_that_ends_its_guard_is_named(people: People, pam: PamService) -> None:
    """The shim gets a reason even if a module takes the guard down with it."""
    pam.write(f"session required pam_exec.so {pam.add('killer', '#!/bin/sh' + chr(10) + 'kill -9 $PPID')}")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, started(pam, people, theirs, 600) as guard:
        assert -signal.SIGKILL == guard.wait(timeout=60)
        ours.settimeout(60)
        assert f"no {errno.EPERM} the PAM service {pam.name} has ended its guard" == ours.recv(4096).decode()


@pytest.mark.full
def test_a_shim_that_leaves_ends_a_guard_whose_session_does_not_open(people: People, pam: PamService) -> None:
    """A shim whose time is over does not wait for the modules."""
    pid = hanging(pam, "open_session")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, started(pam, people, theirs, 600) as guard:
        until(lambda: pid.exists() and pid.read_text().endswith("\n"), what="the script")
        ours.shutdown(socket.SHUT_WR)
        assert -signal.SIGKILL == guard.wait(timeout=60)

    kill(pid)


@pytest.mark.full
def test_a_session_that_does_not_close_is_given_up(people: People, pam: PamService) -> None:
    """A module that hangs at the end of a session leaves no guard behind for ever."""
    pid = hanging(pam, "close_session")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, started(pam, people, theirs, 1) as guard:
        assert guard.stdout is not None
        assert "opened\n" == guard.stdout.readline()
        assert -signal.SIGALRM == guard.wait(timeout=60)

    kill(pid)


def test_pam_is_loaded_only_where_it_is_wanted(launch: Callable[..., Launcher], pam: PamService) -> None:
    """A launcher without a service has no library of PAM in its memory."""
    pam.write()

    launchers = [launch(), launch("--pam-service", pam.name)]
    found = [Path(f"/proc/{each.process.pid}/maps").read_text() for each in launchers]

    assert [False, True] == [LIBRARY in each for each in found]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpuqueue-no-such-service", f"there is no file {DIRECTORY}/gpuqueue-no-such-service"),
        ("../shadow", "../shadow is no name of a service: use lower-case letters, digits, _ and -"),
    ],
)
def test_a_launcher_without_its_service_does_not_start(people: People, open_dir: Path, name: str, reason: str) -> None:
    """One line says what is wrong with the service of PAM."""
    words = ["--account", "root", "--group", people.group, "--socket", str(open_dir / "socket")]
    words += ["--runs", str(open_dir), "--pam-service", name]

    done = subprocess.run(
        [sys.executable, "-I", "-S", people.launcher, *words], capture_output=True, text=True, check=False, timeout=60
    )

    assert (1, f"gpuqueue launcher: no PAM session can be opened: {reason}\n") == (done.returncode, done.stderr)
