"""A real shim, a real launcher and real accounts: the job runs as its submitter, and nobody else touches it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bounded import until
from one_shim import RUN_TOKEN, Shim
from submitters import Launcher, People

from gpuqueue.model.run import EndingKind
from workers.measure.job_values import ValuesReader
from workers.run.environment import TOKEN
from workers.run.verdict import read_reports
from workers.shim import acl
from workers.shim.master_port import candidates
from workers.shim.tree import open_files

Start = Callable[..., Shim]


def test_the_job_is_the_submitter(as_user: Start, people: People) -> None:
    """The job has her ids, groups, home and environment, no privilege, and its exit code is kept."""
    alice = people.alice
    words = "id -u; id -g; id -G; pwd; echo $HOME $USER $LOGNAME $SHELL"
    status = "grep -E '^(Cap(Eff|Prm)|NoNew)' /proc/self/status"

    run = as_user("/bin/sh", "-c", f"{words}; {status}; ulimit -Hc; ls /proc/self/fd; umask; exit 7")

    end = run.ended()
    lines = run.log().splitlines()
    assert 7 == end.ending.exit_code
    assert [str(alice.pw_uid), str(alice.pw_gid)] == lines[:2]
    assert people.groups_of(alice) == set(map(int, lines[2].split()))
    assert [alice.pw_dir, f"{alice.pw_dir} {alice.pw_name} {alice.pw_name} /bin/sh"] == lines[3:5]
    assert {"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"} == set(lines[5:8])
    assert ["0", "0", "1", "2", "3", "0022"] == lines[8:]  # 3 is the directory that ls has open


def test_a_signal_is_the_ending(as_user: Start) -> None:
    """A job that dies of a signal is reported so, and its processor time and memory are known."""
    end = as_user("/bin/sh", "-c", "kill -SEGV $$").ended()

    assert (EndingKind.SIGNALLED, 11) == (end.ending.kind, end.ending.signal)
    assert end.max_rss_bytes is not None


def test_set_user_id_programs_work_only_where_root_allows_them(as_user: Start, launch: Callable[..., Launcher]) -> None:
    """With --allow-setuid a job has no no_new_privs."""
    other = launch("--allow-setuid")

    run = as_user("grep", "NoNewPrivs", "/proc/self/status", launcher=other.socket)

    assert (0, "NoNewPrivs:\t0\n") == (run.ended().ending.exit_code, run.log())


def test_the_output_opens_by_its_name(as_user: Start) -> None:
    """A job may open /dev/stdout and /dev/stderr, which is its log, a file of the service account."""
    run = as_user("/bin/sh", "-c", "echo one >> /dev/stdout; echo two >> /dev/stderr; echo three")

    assert 0 == run.ended().ending.exit_code
    assert ["one", "two", "three"] == run.log().splitlines()


def test_her_link_leads_to_the_log(as_user: Start, people: People, launcher: Launcher) -> None:
    """The link is hers and in her directory, she reads the log through it while the job runs, and nobody else does."""
    run_dir = f"{launcher.runs}/1/{RUN_TOKEN}"
    env = {"PATH": os.environ["PATH"], TOKEN: RUN_TOKEN, "GPUQUEUE_JOB_ID": "1", "GPUQUEUE_RUN_DIR": run_dir}
    run = as_user("/bin/sh", "-c", "echo one; cat out-1 >&2", env=env, outputs={"log": "out-%j"}, separate_stderr=True)

    assert 0 == run.ended().ending.exit_code
    link = Path(people.alice.pw_dir, "out-1")
    assert (people.alice.pw_uid, f"{run_dir}/log") == (link.lstat().st_uid, str(link.readlink()))
    assert "one\n" == (run.directory.path / "stderr").read_text()
    assert "one" in people.shell(people.alice, f"cat {link}").stdout
    assert 0 != people.shell(people.bob, f"cat {run_dir}/log").returncode


def test_separate_errors_stay_separate(as_user: Start) -> None:
    """Standard error goes to its own file if the job wants that."""
    run = as_user("/bin/sh", "-c", "echo out; echo err >&2", separate_stderr=True)

    assert 0 == run.ended().ending.exit_code
    assert ("out\n", "err\n") == (run.log(), (run.directory.path / "stderr").read_text())


@pytest.mark.parametrize("typed", [False, True], ids=["output", "typed"])
def test_a_terminal_belongs_to_the_submitter(as_user: Start, *, typed: bool) -> None:
    """A job with a terminal has it as its controlling terminal, and may open it by its name."""
    words = "test -t 1 && echo yes; echo through > $(readlink /proc/$$/fd/1); echo tty > /dev/tty"

    run = as_user("/bin/sh", "-c", words, pty=(80, 24), typed=typed)

    assert 0 == run.ended().ending.exit_code
    assert ["yes", "through", "tty"] == run.log().split()


def test_only_the_submitter_types_into_the_terminal(as_user: Start, people: People) -> None:
    """Alice's client attaches to the terminal of her job by its socket, and bob's does not."""
    run = as_user("/bin/sh", "-c", "echo up; read line; echo got $line", pty=(80, 24), typed=True)
    until(lambda: "up" in run.log(), what="the job")
    python = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{run.directory.path}/tty'); "
    words = f'python3 -I -c "{python}s.sendall(bytes([73, 0, 3, 104, 105, 10]))"'  # a frame: I, the length, hi

    bob, alice = people.shell(people.bob, words), people.shell(people.alice, words)

    assert "PermissionError" in bob.stderr
    assert "" == alice.stderr
    assert 0 == run.ended().ending.exit_code
    assert "got hi" in run.log()


def test_the_directory_is_entered_as_the_user(as_user: Start, people: People) -> None:
    """A directory that the submitter cannot enter is refused. Root could enter it."""
    end = as_user("pwd", cwd=people.bob.pw_dir).ended()

    assert EndingKind.REFUSED is end.ending.kind
    assert f"cannot enter the working directory {people.bob.pw_dir} as {people.alice.pw_name}" in end.ending.detail
    assert "Permission denied" in end.ending.detail


def test_a_program_that_is_missing_is_refused(as_user: Start) -> None:
    """A program that cannot be started is a refusal with a reason, as for a job of the worker's account."""
    end = as_user("no-such-program").ended()

    assert EndingKind.REFUSED is end.ending.kind
    assert "cannot start no-such-program" in end.ending.detail


def test_limits_that_cannot_be_set_are_refused(as_user: Start) -> None:
    """A launcher without a unit for the runs limits nothing, so a job with a limit goes to another host."""
    end = as_user("true", limits={"memory_bytes": 2**30, "cpus": None}).ended()

    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert "cannot make a control group: this host cannot limit the memory of a run" == end.ending.detail


@pytest.mark.parametrize("forged", ["root", "bob's name", "bob's id", "nobody here", "system", "an id of no account"])
def test_a_forged_account_is_refused(as_user: Start, people: People, forged: str) -> None:
    """Name and user id must be those of one person of this host; root and system accounts run no job."""
    alice, bob = people.alice, people.bob
    name, uid, reason = {
        "root": ("root", 0, "root"),
        "bob's name": (bob.pw_name, alice.pw_uid, f"has the user id {bob.pw_uid}"),
        "bob's id": (alice.pw_name, bob.pw_uid, f"has the user id {alice.pw_uid}"),
        "nobody here": ("gqnobodyhere", alice.pw_uid, "there is no account gqnobodyhere"),
        "system": ("daemon", pwd.getpwnam("daemon").pw_uid, "system account"),
        "an id of no account": (alice.pw_name, 2**40, "there is no account"),
    }[forged]

    run = as_user("touch", "made", name=name, uid=uid)

    end = run.ended()
    assert EndingKind.REFUSED is end.ending.kind
    assert reason in end.ending.detail
    assert "" == run.log()
    assert not Path(alice.pw_dir, "made").exists()


def test_an_account_that_may_not_log_in_is_refused(as_user: Start, people: People) -> None:
    """A locked, expired or nologin account, and one outside of the group, run no job; back in order they do."""
    carol = people.add("carol")
    refusals = []
    for change in (
        ["-G", people.group],  # undoes the first refusal, and so on
        ["-s", "/usr/sbin/nologin"],
        ["-s", "/bin/sh", "-p", "!$6$salt$hash"],
        ["-p", "$6$salt$hash", "-e", "1990-01-01"],
        ["-e", ""],
    ):
        end = as_user("true", name=carol.pw_name, uid=carol.pw_uid, cwd="/").ended()
        refusals.append(end.ending.detail.removeprefix(f"no job runs as {carol.pw_name}: "))
        people.change(carol.pw_name, *change)
    last = as_user("true", name=carol.pw_name, uid=carol.pw_uid, cwd="/").ended()

    assert f"it is not in the group {people.group}" == refusals[0]
    assert ["", "its login shell is /usr/sbin/nologin", "it is locked", "it has expired"] == refusals[1:]
    assert 0 == last.ending.exit_code


def test_the_submitter_reads_the_log_and_nobody_else_anything(as_user: Start, people: People) -> None:
    """Bob reads neither files nor environment of alice's run, and signals none of its processes. Alice reads her log.

    Nor does alice's own job reach the service's files and processes, so it cannot forge how it ended.
    """
    run = as_user("/bin/sh", "-c", "echo hello; exec sleep 1000", env={TOKEN: RUN_TOKEN, "SECRET": "xyzzy"})
    path = run.directory.path
    pids = until(lambda: len(run.directory.processes()) == 3 and run.directory.processes(), what="its processes")
    shim, job, guard = (each.pid for each in pids if each is not None)
    until(lambda: run.log() == "hello\n", what="its output")

    files = [path / name for name in ("spec", "log", "pid", "claim", "heartbeat", "log.times")]
    bobs = [f"cat {file}" for file in files] + [f"ls {path}", f"cat {path}/reports", f"cat /proc/{job}/environ"]
    bobs += [f"kill -9 {pid}" for pid in (shim, job, guard)]
    alices = [f"cat {file}" for file in files if file.name != "log"] + [f"ls {path}", f"touch {path}/exit"]
    alices += [f"mkdir {path}/inside"]
    alices += [f"echo forged > {path}/{name}" for name in ("spec", "pid", "exit", "cancel", "heartbeat")]
    alices += [f"ln -sf /etc/passwd {path}/{name}" for name in ("log", "exit", "cancel")]
    alices += [f"kill -9 {pid}; cat /proc/{pid}/environ" for pid in (shim, guard)]
    for account, tries in ((people.bob, bobs), (people.alice, alices)):
        done = people.shell(account, "; ".join(f"({each}) && echo REACHED '{each}'" for each in tries))
        assert "" == done.stdout
        assert len(tries) <= len(done.stderr.splitlines())  # each of them says why not
    assert "hello\n" == people.shell(people.alice, f"cat {path}/log").stdout

    run.directory.ask_end(EndingKind.CANCELLED)
    assert EndingKind.CANCELLED is run.ended().ending.kind


def test_only_the_service_account_is_served(launcher: Launcher, people: People) -> None:
    """The socket is closed to users; if it were open, the launcher would still hang up on them."""
    python = "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
    python += f"s.connect('{launcher.socket}'); s.send(b'hello'); print(s.recv(9))"
    words = f'/usr/bin/env -i python3 -I -c "{python}"'

    closed = people.shell(people.alice, words)
    os.chmod(launcher.socket, 0o666)  # noqa: PTH101, S103
    opened = people.shell(people.alice, words)

    assert "PermissionError" in closed.stderr
    assert "ConnectionResetError" in opened.stderr or "BrokenPipeError" in opened.stderr or "b''\n" == opened.stdout
    assert "hello" not in opened.stdout


def test_the_reports_of_the_job_are_read_and_removed(as_user: Start) -> None:
    """The job writes its reports about torch into a file of the service account, with any umask."""
    report = (Path(__file__).parents[3] / "golden" / "inside-v1.json").read_text()
    reports = "$(dirname $(readlink /proc/$$/fd/1))/reports"
    run = as_user("/bin/sh", "-c", f"umask 077; printf %s '{report}' >> {reports}")

    assert (0, "") == (run.ended().ending.exit_code, run.log())
    found = read_reports(run.directory.path)
    assert found is not None
    assert found.reserved_on
    run.directory.settle()
    assert not (run.directory.path / "reports").exists()


def test_the_metrics_of_the_job_are_read_and_removed(as_user: Start) -> None:
    """The job appends to a file of the service account, in place of which it cannot put anything else."""
    line = '{"metric":{"acc":0.5},"param":{"lr":"0.1"}}'
    own = "$(dirname $(readlink /proc/$$/fd/1))/metrics"
    run = as_user("/bin/sh", "-c", f"umask 077; echo '{line}' >> {own}; rm -f {own} 2> /dev/null; ls {own} > /dev/null")

    assert (0, "") == (run.ended().ending.exit_code, run.log())
    reader = ValuesReader(run.directory.path)
    reader.read(0.0, 9.0, b"")
    found = reader.values()
    assert found is not None
    assert ({"acc": 0.5}, {"lr": "0.1"}) == (found.last(), found.params)
    run.directory.settle()
    assert not (run.directory.path / "metrics").exists()


def test_after_the_end_the_submitter_only_reads(as_user: Start, people: People) -> None:
    """Alice can write no file of her ended run, and what she has linked to her home is emptied with the log."""
    link = f"{people.alice.pw_dir}/kept"
    words = f"echo hello; ln $(readlink /proc/$$/fd/1) {link}; ln $(dirname $(readlink /proc/$$/fd/1))/reports {link}2"
    run = as_user("/bin/sh", "-c", words, separate_stderr=True)
    assert (0, "hello\n") == (run.ended().ending.exit_code, run.log())
    path = run.directory.path
    assert "hello\n" == people.shell(people.alice, f"cat {link}").stdout

    places = [f"{path}/{name}" for name in ("log", "stderr", "reports", "metrics", "inside", "more")] + [
        link,
        f"{link}2",
    ]
    tries = "; ".join(f"(echo more >> {place}) && echo WROTE {place}" for place in places)
    assert "" == people.shell(people.alice, tries).stdout
    run.directory.settle()
    assert "hello\n" == people.shell(people.alice, f"cat {path}/log").stdout

    assert acl.remove(str(path / "log"))
    assert "" == people.shell(people.alice, f"cat {link} {link}2").stdout
    assert not (path / "log").exists()


def test_an_open_installation_is_refused(people: People, open_dir: Path) -> None:
    """A launcher whose code belongs to a user does not start, because that user would become root."""
    code = open_dir / "installation"
    shutil.copytree(people.installation, code, symlinks=True)
    launcher = code / people.launcher.relative_to(people.installation)
    os.chown(launcher.parents[1] / "shim", people.alice.pw_uid, -1)
    words = [
        "--account",
        "root",
        "--group",
        people.group,
        "--socket",
        str(open_dir / "socket"),
        "--runs",
        str(open_dir),
    ]

    done = subprocess.run(
        [sys.executable, "-I", "-S", str(launcher), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (1, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "can be changed by others than root: install gpuqueue where only root can" in done.stderr


@pytest.mark.parametrize("open_to", ["its owner", "its group"])
def test_a_directory_that_others_can_change_gets_no_socket(people: People, open_dir: Path, open_to: str) -> None:
    """A launcher does not listen where the service account could put a link in the place of its socket.

    The launcher changes owner and mode of its socket, and would change those of any file of the machine.
    """
    place = open_dir / "run"
    place.mkdir()
    os.chown(place, people.service.pw_uid if open_to == "its owner" else 0, people.service.pw_gid)
    place.chmod(0o755 if open_to == "its owner" else 0o775)
    words = ["--account", people.service.pw_name, "--group", people.group, "--socket", str(place / "launcher.sock")]
    words += ["--runs", str(open_dir)]

    done = subprocess.run(
        [sys.executable, "-I", "-S", people.launcher, *words], capture_output=True, text=True, check=False, timeout=60
    )

    assert (1, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert f"{place} can be changed by others than root: name another directory with --socket" in done.stderr
    assert [] == list(place.iterdir())


#: Puts a key into the session keyring, or looks for it: numbers of system calls of x86_64; see add_key(2), keyctl(2).
PUT_KEY = "import ctypes; print(ctypes.CDLL(None).syscall(248, b'user', b'gpuqueue-test', b'secret', 6, -3) > 0)"
FIND_KEY = "import ctypes; print(ctypes.CDLL(None).syscall(250, 10, -3, b'user', b'gpuqueue-test', 0) > 0)"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the system calls are those of x86_64")
def test_a_job_has_no_keys_of_another(as_user: Start, people: People) -> None:
    """Each run begins with an empty session keyring, where Kerberos keeps tickets: bob's finds nothing of alice's."""
    first = as_user("python3", "-c", f"{PUT_KEY}; {FIND_KEY}", env={"PATH": "/usr/bin:/bin"})
    if first.ended().ending.exit_code or first.log().split()[:1] != ["True"]:
        pytest.skip(f"this machine has no keyrings: {first.log()}")
    bob = people.bob

    other = as_user(
        "python3", "-c", FIND_KEY, name=bob.pw_name, uid=bob.pw_uid, cwd=bob.pw_dir, env={"PATH": "/usr/bin:/bin"}
    )

    other.ended()
    assert (["True", "True"], ["False"]) == (first.log().split(), other.log().split())


def test_the_launcher_chooses_where_the_processes_of_a_run_meet(as_user: Start) -> None:
    """Each run has a port of its own at this host, whatever account it has."""
    words = "echo $MASTER_ADDR $MASTER_PORT $PET_MASTER_PORT; sleep 600"
    runs = [as_user("/bin/sh", "-c", words) for _ in range(2)]
    until(lambda: all(run.log() for run in runs), what="the jobs")

    (one, port, of_torchrun), (other, another, _) = (run.log().split() for run in runs)
    for run in runs:
        run.directory.ask_end(EndingKind.CANCELLED)
        run.ended()
    assert ("127.0.0.1", "127.0.0.1", port) == (one, other, of_torchrun)
    assert port != another
    assert {int(port), int(another)} <= set(candidates())


def test_a_job_has_the_limits_of_a_job(as_user: Start) -> None:
    """All open files that are permitted, and a place before the queue when host memory runs out; never behind it."""
    run = as_user("/bin/sh", "-c", "ulimit -Sn; ulimit -Hn; cat /proc/self/oom_score_adj", oom_score_adj=300)

    assert 0 == run.ended().ending.exit_code
    soft, hard, adjustment = map(int, run.log().split())
    assert (open_files(hard), 300) == (soft, adjustment)
    forged = as_user("/bin/true", oom_score_adj=-1000)
    assert "the spec of the run is damaged" in forged.ended().ending.detail
