"""A shim of an ordinary account and real Podman without root: what a container gets, and that none outlives its job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from images import NAME, PodmanUser, container
from installed_copy import site_packages
from submitters import People

from gpuqueue.model.run import EndingKind, RunDevice
from gpuqueue.system.process import ProcessIdentity
from workers.measure.active_runs import root_of
from workers.measure.monitor import owners
from workers.run.directory import Exit, Held, RunDir, ShimSpec
from workers.run.environment import TOKEN

pytestmark = pytest.mark.full
#: The account has no access to the interpreter of these tests, and the shim needs only the standard library.
PYTHON = "/usr/bin/python3"
SHIM = "import sys; sys.path.insert(0, sys.argv[1]); from workers.shim.supervisor import main; main(sys.argv[2])"
SWEEP = (
    "import sys; sys.path.insert(0, sys.argv[1]); from workers.run.process_tree import sweep; "
    "print(sweep('GPUQUEUE_TOKEN', sys.argv[2]))"
)
#: A first process that counts its warnings, a daemon, and a process that ignores SIGTERM.
TREE = """
trap 'echo warned' TERM
setsid sleep 1001 &
sh -c "trap '' TERM; sleep 1002 & wait" &
echo up
while :; do sleep 0.1; done
"""


class Run:
    """A run of an account, in a container of Podman, with a shim of the account."""

    def __init__(self, user: PodmanUser, code: str, number: int, words: str, **changes: Any) -> None:
        self.user, self.token = user, f"1.{os.getpid():x}c{number}"
        runs = Path(user.account.pw_dir, "runs")
        held = Held(job_id=number, token=self.token, devices=(RunDevice(uuid="GPU-0", lease_bytes=1),))
        self.directory = RunDir.create(runs, held)
        run_dir = str(self.directory.path)
        env = {**user.env, TOKEN: self.token, "GPUQUEUE_JOB_ID": str(number), "GPUQUEUE_RUN_DIR": run_dir}
        spec: dict[str, Any] = {
            "argv": ("sh", "-c", words),
            "cwd": user.account.pw_dir,
            "env": {**env, "HF_TOKEN": "a secret"},
            "time_limit_s": None,
            "kill_grace_s": 1.0,
            "start_before": time.monotonic() + 60,
            "umask": 0o022,
            "container": container("podman", NAME, user.program),
        }
        self.directory.write_spec(ShimSpec(**{**spec, **changes}))
        self.directory.renew(time.monotonic() + 60)
        user.shell(f"chown -R {user.account.pw_uid}:{user.account.pw_gid} {runs}", as_root=True)
        who: dict[str, Any] = {"user": user.account.pw_uid, "group": user.account.pw_gid, "extra_groups": []}
        words_of_shim = [PYTHON, "-I", "-S", "-c", SHIM, code, run_dir]
        self.process = subprocess.Popen(words_of_shim, cwd="/", env=user.env, start_new_session=True, **who)

    def ended(self) -> Exit:
        """Wait for the end and return the shim's exit record."""
        assert 0 == self.process.wait(timeout=60)
        end = self.directory.exit()
        assert end is not None
        return end

    def log(self) -> str:
        """Return the job's output so far."""
        return self.directory.log.read_text() if self.directory.log.exists() else ""

    def processes(self) -> tuple[ProcessIdentity | None, ...]:
        """Return the identities that the shim has written."""
        return self.directory.processes()


@pytest.fixture(scope="module")
def user(people: People) -> Iterator[PodmanUser]:
    """Return an account with Podman and an image."""
    if not os.access(PYTHON, os.X_OK):
        pytest.skip(f"needs {PYTHON}")
    found = PodmanUser(people, "pod", ids=True)
    yield found
    found.close()


@pytest.fixture
def start(people: People, user: PodmanUser) -> Iterator[Callable[..., Run]]:
    """Return a function that starts a run. The process that holds the namespace is there, as after a worker's check."""
    code, started = str(site_packages(people.installation)), list[Run]()
    assert 0 == user.shell("podman unshare true").returncode

    def run(words: str, **changes: Any) -> Run:
        started.append(Run(user, code, int(time.monotonic_ns() % 10**9), words, **changes))
        return started[-1]

    yield run
    for each in started:
        each.process.kill()
        each.process.wait()
        each.directory.close()
        user.shell(f'{PYTHON} -I -S -c "{SWEEP}" {code} {each.token}')


def test_a_container_has_what_the_job_needs(start: Callable[..., Run], user: PodmanUser) -> None:
    """The account's id, its directory, the files of the run, both sets of variables; no command line has the secret."""
    words = "id -u; pwd; echo $OF_IMAGE $HF_TOKEN $PATH $HOME; touch made"
    report = "echo '{\"loss\": 1}' >> $GPUQUEUE_RUN_DIR/metrics"

    run = start(f"{words}; {report}; cat /proc/*/cmdline 2>/dev/null | grep -c 'a secre[t]'; exit 7")

    assert 7 == run.ended().ending.exit_code, run.log()
    home = user.account.pw_dir
    assert [str(user.account.pw_uid), home, f"yes a secret /bin {home}", "0"] == run.log().splitlines()[:4]
    assert user.account.pw_uid == Path(home, "made").stat().st_uid
    assert '{"loss": 1}\n' == (run.directory.path / "metrics").read_text()
    assert [] == user.containers()


def test_a_cancel_warns_once_and_leaves_nothing(start: Callable[..., Run], user: PodmanUser) -> None:
    """The first process gets SIGTERM once, all others end, and Podman takes the container for ended."""
    run = start(TREE)
    until(lambda: "up" in run.log(), what="the job")

    run.directory.ask_end(EndingKind.CANCELLED)
    os.kill(run.process.pid, signal.SIGUSR1)

    assert EndingKind.CANCELLED is run.ended().ending.kind
    assert 1 == run.log().count("warned")
    assert ([], []) == (user.running(), user.containers())


def test_the_warning_signal_reaches_the_job(start: Callable[..., Run]) -> None:
    """Podman passes it on: the job ends by itself before its time limit."""
    run = start("trap 'echo saved; exit 0' USR1; while :; do sleep 0.1; done", time_limit_s=20.0, signal=(10, 17.0))

    assert 0 == run.ended().ending.exit_code, run.log()
    assert "saved\n" == run.log()


def test_memory_in_a_container_is_attributed_to_its_job(start: Callable[..., Run], user: PodmanUser) -> None:
    """A daemon in the container, in a session of its own and without the token, belongs to the run."""
    run = start("env -i /bin/setsid /bin/sleep 1003 & echo up; sleep 1000")

    def daemon() -> int | None:
        lines = {pid: People.command_of(pid) for pid in user.pids()}
        return next((pid for pid, line in lines.items() if line == b"/bin/sleep\x001003\x00"), None)

    pid = until(daemon, what="the daemon")
    assert pid is not None
    assert {pid: run.token} == owners([pid], {run.token: root_of(run.processes())})
    run.directory.ask_end(EndingKind.CANCELLED)
    assert EndingKind.CANCELLED is run.ended().ending.kind
    assert [] == user.running()


def test_no_container_outlives_a_killed_shim(start: Callable[..., Run], user: PodmanUser, people: People) -> None:
    """With worker and shim gone, the sweep of the next worker ends the container, and its monitor puts it away."""
    run = start(TREE)
    until(lambda: "up" in run.log(), what="the job")

    run.process.kill()
    run.process.wait()
    code = site_packages(people.installation)
    swept = user.shell(f'{PYTHON} -I -S -c "{SWEEP}" {code} {run.token}')

    assert (0, "") == (swept.returncode, swept.stderr)
    assert int(swept.stdout) >= 1
    until(lambda: user.running() == [], what="the end of the container")
    until(lambda: user.containers() == [], what="the end of its record")


def test_a_killed_monitor_leaves_no_container(start: Callable[..., Run], user: PodmanUser) -> None:
    """The shim removes a container whose engine was killed with kill -9."""
    run = start("sleep 1000 & echo up; wait")
    until(lambda: "up" in run.log(), what="the job")

    assert 0 == user.shell("kill -9 $(pgrep -u $USER conmon) $(pgrep -u $USER -x podman)").returncode

    assert signal.SIGKILL == run.ended().ending.signal
    assert ([], []) == (user.running(), user.containers())


def test_a_missing_image_is_no_failure_of_the_job(start: Callable[..., Run], user: PodmanUser) -> None:
    """Nothing is pulled at the start. The host is excluded, and the reason says what to do."""
    end = start("true", container=container("podman", "localhost/missing:1", user.program)).ended()

    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert "the image localhost/missing:1 is not on this host: podman pull" in end.ending.detail


@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize("separate", [False, True])
def test_the_owner_reads_the_log_whether_or_not_the_container_starts(
    start: Callable[..., Run], user: PodmanUser, runtime: str, *, separate: bool
) -> None:
    """Crun gives its output to the user inside before the last steps of a start, some of which fail on this machine."""
    if shutil.which(runtime) is None:
        pytest.skip(f"needs {runtime}")
    with user.runtime(runtime):
        run = start("echo here; no-such-program", separate_stderr=separate)
        status = run.ended().ending.exit_code

    names = [run.directory.log, *([run.directory.path / "stderr"] if separate else [])]
    for name in names:
        shown = user.shell(f"cat {name}")
        assert (0, "") == (shown.returncode, shown.stderr), run.directory.log.stat()
    everything = "".join(name.read_text() for name in names)
    assert "" != everything
    assert ("here" in everything) == (status == 127)
