"""Jobs in containers as their submitters: a real launcher, real accounts, real Charliecloud and real Podman."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from images import NAME, PodmanUser, container, make_tree, program
from one_shim import RUN_TOKEN, Shim
from submitters import Launcher, People

from gpuqueue.model.run import EndingKind
from workers.measure.active_runs import root_of
from workers.measure.monitor import owners
from workers.run.environment import TOKEN

Start = Callable[..., Shim]
pytestmark = pytest.mark.full
#: The first process, a daemon in a session of its own, and one that ignores SIGTERM.
TREE = (
    "trap 'echo warned' TERM; setsid sleep 1001 & sh -c \"trap '' TERM; sleep 1002\" & echo up; wait; wait; sleep 1000"
)


@pytest.fixture
def image(people: People) -> Iterator[str]:
    """Return the directory of an image that belongs to alice."""
    program("charliecloud")
    tree = Path(people.alice.pw_dir, "image")
    if not tree.exists():
        make_tree(tree)
        assert 0 == people.shell(people.alice, "true").returncode
        for path in (tree, *tree.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
    return str(tree)


@pytest.fixture
def in_charliecloud(as_user: Start, image: str) -> Start:
    """Return a function that runs words of a shell as alice, in a container of Charliecloud."""

    def start(words: str, *binds: str, image: str = image, **changes: Any) -> Shim:
        env = {TOKEN: RUN_TOKEN, "GPUQUEUE_JOB_ID": "1", "PATH": "/usr/bin:/bin", "OF_JOB": "yes"}
        boxed = container("charliecloud", image, program("charliecloud"), *binds)
        return as_user("sh", "-c", words, container=boxed, env=env, **changes)

    return start


def test_charliecloud_needs_no_set_user_id_program(in_charliecloud: Start, people: People, image: str) -> None:
    """With no_new_privs the job is in the image, as the submitter, in her directory, with both sets of variables."""
    home = people.alice.pw_dir
    Path(image, home.lstrip("/")).mkdir(parents=True, exist_ok=True)

    run = in_charliecloud(
        "id -u; pwd; echo $OF_IMAGE $OF_JOB $PATH; readlink /bin/sh; grep NoNew /proc/self/status; exit 7"
    )

    end = run.ended()
    assert 7 == end.ending.exit_code, (end, run.log())
    expected = [str(people.alice.pw_uid), home, "yes yes /bin", "busybox", "NoNewPrivs:\t1"]
    assert expected == run.log().splitlines()


def test_charliecloud_passes_signals_and_leaves_nothing(in_charliecloud: Start, people: People) -> None:
    """A signal is the ending of the job, and a cancel ends daemons in the container."""
    assert signal.SIGSEGV == in_charliecloud("kill -SEGV $$").ended().ending.signal

    run = in_charliecloud(TREE, kill_grace_s=0.5)
    until(lambda: "up" in run.log(), what="the job")
    pids = people.running(people.alice)
    daemon = next(pid for pid in pids if b"1001" in people.command_of(pid))
    assert {daemon: RUN_TOKEN} == owners([daemon], {RUN_TOKEN: root_of(run.directory.processes())})
    run.directory.ask_end(EndingKind.CANCELLED)

    assert EndingKind.CANCELLED is run.ended().ending.kind
    assert "warned" in run.log()
    assert [] == people.running(people.alice)


def test_a_missing_image_or_bind_is_named(in_charliecloud: Start) -> None:
    """The host is excluded for the job, and the reason says what is missing and what to do."""
    end = in_charliecloud("true", image="/nowhere/image").ended()
    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert "there is no image /nowhere/image on this host: ch-image pull" in end.ending.detail

    end = in_charliecloud("true", "/root/missing:/mnt").ended()
    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert "cannot bind /root/missing: Permission denied" in end.ending.detail


def test_her_binds_give_no_more_than_she_has(in_charliecloud: Start, open_dir: Path) -> None:
    """A file that only root can read is not bound, although its directory is open to all."""
    secret = open_dir / "secret"
    secret.touch(0o600)

    end = in_charliecloud("cat /mnt", f"{secret}:/etc/hosts").ended()

    assert EndingKind.REFUSED is end.ending.kind
    assert f"cannot bind {secret}: Permission denied" in end.ending.detail


def test_rootless_podman_needs_set_user_id_programs(
    as_user: Start, people: People, launch: Callable[..., Launcher]
) -> None:
    """Of an account with further user ids it fails with a line that says what to do, and works with --allow-setuid."""
    user = PodmanUser(people, "podids", ids=True)
    try:
        env = {TOKEN: RUN_TOKEN, "GPUQUEUE_JOB_ID": "1", **user.env}
        boxed = container("podman", NAME, user.program)
        who = {"name": user.account.pw_name, "uid": user.account.pw_uid, "cwd": user.account.pw_dir}
        user.shell("pkill -9 -u $USER catatonit")  # a login has left it

        end = as_user("sh", "-c", "id -u", container=boxed, env=env, **who).ended()
        assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
        assert "rootless Podman needs newuidmap" in end.ending.detail
        assert "set container_engine to charliecloud" in end.ending.detail

        other = launch("--allow-setuid")
        run = as_user("sh", "-c", "id -u; exit 3", container=boxed, env=env, launcher=other.socket, **who)
        assert 3 == run.ended().ending.exit_code, run.log()
        assert str(user.account.pw_uid) == run.log().splitlines()[0]
    finally:
        user.close()


def test_podman_works_for_an_account_without_further_ids(as_user: Start, people: People) -> None:
    """It needs no helper then: the account is root inside, and its files are its own outside."""
    user = PodmanUser(people, "podone", ids=False)
    try:
        env = {TOKEN: RUN_TOKEN, "GPUQUEUE_JOB_ID": "1", **user.env}
        who = {"name": user.account.pw_name, "uid": user.account.pw_uid, "cwd": user.account.pw_dir}
        boxed = container("podman", NAME, user.program)
        run = as_user("sh", "-c", "id -u; touch made; echo $OF_IMAGE", container=boxed, env=env, **who)

        assert 0 == run.ended().ending.exit_code, run.log()
        assert ["0", "yes"] == run.log().splitlines()
        assert user.account.pw_uid == Path(user.account.pw_dir, "made").stat().st_uid
        until(lambda: user.running() == [], what="the end of its processes")
    finally:
        user.close()
