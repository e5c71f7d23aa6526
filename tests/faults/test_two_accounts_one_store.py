"""Two real accounts share a store that both can write to, without a service: what is refused there."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from forked_command import BIN
from private_store import StartStore
from service_site import as_account, skip_without_mounts
from submitters import People

from gpuqueue.model.job import JobState
from gpuqueue.queue.jobqueue import JobQueue

pytestmark = pytest.mark.full

REFUSED = 5


class Pair:
    """Alice runs a worker; alice, bob and root use its store."""

    def __init__(self, people: People, folder: Path, url: str) -> None:
        self.people = people
        self._mounts = folder / "mounts"
        self._mounts.mkdir()
        self._state = {each: folder / each.pw_name for each in (people.alice, people.bob)}
        for account, state in self._state.items():
            state.mkdir(mode=0o700)
            os.chown(state, account.pw_uid, account.pw_gid)
        self.environ = {
            "PATH": f"{people.installation}/bin:/usr/bin:/bin",
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_REDIS_URL": url,
            "GPUQUEUE_HOST": f"test-{os.getpid()}",
            "GPUQUEUE_DEVICES": "sim:1x8G",
            "GPUQUEUE_HEADROOM": "0",
        }
        self.queue = JobQueue(url)
        self.queue.recovery.open(0)
        words = as_account(people, people.alice, self._mounts, "gpuqueue-worker", "run", "--plain")
        self.worker = subprocess.Popen(words, env=self.of(people.alice), start_new_session=True)

    def of(self, account: pwd.struct_passwd) -> dict[str, str]:
        """Return the environment of an account."""
        return {**self.environ, "GPUQUEUE_STATE_DIR": str(self._state[account]), "HOME": account.pw_dir}

    def cli(self, account: pwd.struct_passwd, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run ``gpuqueue`` as an account."""
        command = as_account(self.people, account, self._mounts, "gpuqueue", *words)
        environ = {**self.of(account), **changes}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=100)
        skip_without_mounts(done)
        return done

    def root(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``gpuqueue`` as root."""
        environ = self.of(self.people.alice)
        command = [str(BIN / "gpuqueue"), *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture
def pair(people: People, open_dir: Path, start_store: StartStore) -> Iterator[Pair]:
    """Return two accounts at one store."""
    url = start_store()
    socket = Path(url.removeprefix("unix://"))
    socket.parent.chmod(0o755)
    socket.chmod(0o777)
    made = Pair(people, open_dir, url)
    yield made
    made.queue.close()
    for account in (people.alice, people.bob):
        people.shell(account, "kill -9 -1")
    made.worker.wait(timeout=30)


def test_a_colleague_changes_and_reads_nothing(pair: Pair) -> None:
    """Bob can neither cancel nor read a job of alice, whatever name he uses. Root on the machine can.

    A log that the job replaced by a link shows the file behind it to no account, not even to root.
    """
    alice, bob = pair.people.alice, pair.people.bob
    link = "echo mine; ln -sf /etc/shadow $GPUQUEUE_RUN_DIR/log; echo up > here; exec sleep 1000"
    made = pair.cli(alice, "submit", "--mem", "1G", "--cwd", alice.pw_dir, "--", "/bin/sh", "-c", link)
    assert 0 == made.returncode, made.stderr
    job = made.stdout.strip()
    until(Path(alice.pw_dir, "here").exists, what="the job", timeout_s=60)

    forged = {"USER": alice.pw_name, "LOGNAME": alice.pw_name}
    for done in (
        pair.cli(bob, "cancel", job),
        pair.cli(bob, "cancel", job, **forged),
        pair.cli(bob, "edit", job, "--priority", "high"),
    ):
        assert REFUSED == done.returncode
        assert f"is {alice.pw_name}'s" in done.stderr
    assert "mine" not in pair.cli(bob, "logs", job).stdout
    for done in (pair.cli(alice, "logs", job), pair.root("logs", job)):
        assert "root:" not in done.stdout + done.stderr
        assert "symbolic link" in done.stderr
    assert 0 == pair.root("cancel", job).returncode

    def over() -> bool:
        found = pair.queue.jobs.get(int(job))
        return found is None or found.state is JobState.CANCELLED

    until(over, what="the end of the job", timeout_s=60)


def test_root_of_a_user_namespace_has_no_special_rights(pair: Pair) -> None:
    """Bob who makes himself root in a user namespace may still not cancel alice's job."""
    alice, bob = pair.people.alice, pair.people.bob
    job = pair.cli(alice, "submit", "--mem", "1G", "--cwd", "/", "--", "sleep", "1000").stdout.strip()
    probe = "print(__import__('os').getuid())"
    inside = as_account(pair.people, bob, pair._mounts, "unshare", "-Ur", "python", "-c", probe)
    tried = subprocess.run(inside, env=pair.of(bob), capture_output=True, text=True, check=False, timeout=60)
    if tried.stdout != "0\n":
        pytest.skip(f"no user namespaces here: {tried.stderr.strip()}")

    command = as_account(pair.people, bob, pair._mounts, "unshare", "-Ur", "gpuqueue", "cancel", job)
    done = subprocess.run(command, env=pair.of(bob), capture_output=True, text=True, check=False, timeout=60)

    assert REFUSED == done.returncode
    assert f"is {alice.pw_name}'s" in done.stderr
