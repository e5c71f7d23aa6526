"""A second command in a run of a submitter: real accounts, a real shim, and a worker that may be taken over."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from factories import make_spec
from one_shim import RUN_TOKEN, Shim
from signed_runs import JOB, KEY, fields_of, signed
from submitters import Launcher, People

from gpuqueue.client.second_command import JobCommand, LocalLine
from gpuqueue.client.signing import Signer
from gpuqueue.errors import Refused, Unreachable
from gpuqueue.files.manifest import write_stream
from gpuqueue.files.take import take_snapshot
from gpuqueue.model.api import SecondCommand
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.model.terminal_size import Window
from gpuqueue.system.command_socket import SOCKET, request_frames

CPU = (RunDevice(uuid="cpu-h", lease_bytes=1, kind=DeviceKind.CPU),)
WAITS = "echo up; until [ -e go ]; do sleep 0.05; done"


@pytest.fixture
def key(open_dir: Path) -> Path:
    """Return the file with the key, which only root can read."""
    path = open_dir / "ticket-key"
    path.touch(0o400)
    path.write_text(f"{KEY.hex()}\n")
    return path


@pytest.fixture
def start(shims: Any, launch: Callable[..., Launcher], key: Path, people: People) -> Callable[..., Shim]:
    """Return a function that starts a run of a signed job and waits until it is up."""
    launcher, number = launch("--ticket-key", str(key)), count(1)
    people.shell(people.alice, f"rm -f {people.alice.pw_dir}/*")

    def started(spec: JobSpec, *, bundle: bytes | None = None) -> Shim:
        run = next(number)
        run_dir = launcher.runs / str(run) / RUN_TOKEN
        fields = fields_of(signed(spec), run_dir, CPU, token=RUN_TOKEN)
        argv = fields.pop("argv")

        def write_bundle() -> None:
            if bundle is not None:
                (run_dir / "bundle").write_bytes(bundle)

        more = {"runs": launcher.runs, "job_id": run, "launcher": launcher.socket, "before": write_bundle}
        made: Shim = shims(*argv, entered=True, **more, **fields)
        until(lambda: made.log() == "up\n" and (run_dir / SOCKET).exists(), what="the job")
        return made

    return started


@pytest.fixture
def hers(people: People) -> Callable[..., JobSpec]:
    """Return a function that makes the request of a job of alice's."""
    account = Account(name=people.alice.pw_name, uid=people.alice.pw_uid, host="h")

    def made(*argv: str, **changes: Any) -> JobSpec:
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "COLOUR": "blue"}
        return make_spec(**{"argv": argv, "cwd": people.alice.pw_dir, "account": account, "env": env, **changes})

    return made


def ticket_for(people: People, *argv: str, key: bytes = KEY, **changes: Any) -> str:
    """Return the signature of a command of alice's in the run."""
    plain = {"job": JOB, "token": RUN_TOKEN, "uid": people.alice.pw_uid, "argv": list(argv)}
    until_s = int(time.time()) + 60
    return Signer(key).command({**plain, "terminal": False, "input": True, "until": until_s, **changes})


def command_in(run: Shim, ticket: str | None, *argv: str, window: Window | None = None) -> JobCommand:
    """Begin a command in *run*, as the account of the workers does for the service."""
    line = LocalLine(run.directory.path, "7")
    line.send(request_frames(SecondCommand(argv=argv, window=window, has_input=window is None), ticket))
    return JobCommand(line)


def whole(command: JobCommand) -> str:
    """Return the output of *command*, once it has ended."""
    with closing(command):
        return b"".join(chunk for chunk, _ in command.output()).decode()


def test_a_signed_command_is_the_submitter_in_the_place_of_the_job(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People
) -> None:
    """It has the account, groups, umask, directory, limits and control group of the job, and no way to more rights."""
    about = "id; umask; pwd; ulimit -c; cat /proc/self/cgroup; grep NoNewPrivs /proc/self/status; echo $COLOUR"
    run = start(hers("/bin/sh", "-c", f"{WAITS.replace('echo up', f'({about}) > hers; echo up')}"))
    command = command_in(run, ticket_for(people, "/bin/sh", "-c", f"{about}; cat; exit 7"), "ignored")
    command.type(b"typed")
    command.end_input()

    text = whole(command)
    assert 7 == command.status
    own = people.shell(people.alice, f"cat {people.alice.pw_dir}/hers").stdout
    assert f"{own}typed" == text
    assert "NoNewPrivs:\t1" in own


def test_what_the_service_has_not_signed_for_this_run_is_refused(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People
) -> None:
    """A worker that was taken over can run no command of its own, nor one of another run, account or time."""
    run = start(hers("/bin/sh", "-c", WAITS))
    words = ("touch", f"{people.alice.pw_dir}/forged")
    good = ticket_for(people, *words)
    mac, _, statement = good.partition(" ")
    changed = json.dumps({**json.loads(statement), "argv": ["touch", "other"]}, sort_keys=True, separators=(",", ":"))
    signed_job = str(signed(hers(*words)).ticket)
    for ticket, reason in (
        (None, "has not signed this command"),
        (f"{mac} {changed}", "has not signed this command"),
        (signed_job, "has not signed this command"),
        (ticket_for(people, *words, key=bytes(32)), "has not signed this command"),
        (ticket_for(people, *words, token="9.z"), "another run"),
        (ticket_for(people, *words, job=8), "another run"),
        (ticket_for(people, *words, uid=people.bob.pw_uid), "another run"),
        (ticket_for(people, *words, until=int(time.time()) - 1), "expired"),
    ):
        with pytest.raises(Refused, match=reason):
            whole(command_in(run, ticket, *words))
    assert "forged" not in people.shell(people.alice, f"ls {people.alice.pw_dir}").stdout
    assert "" == whole(command_in(run, good, "anything"))
    assert "forged" in people.shell(people.alice, f"ls {people.alice.pw_dir}").stdout


def test_a_command_without_a_signed_input_or_terminal_gets_none(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People
) -> None:
    """A worker that was taken over types nothing into a command that was asked for without an input."""
    run = start(hers("/bin/sh", "-c", WAITS))
    command = command_in(run, ticket_for(people, "cat", input=False), "cat")
    command.type(b"typed by a worker")
    command.end_input()
    assert ("", 0) == (whole(command), command.status)


def test_a_terminal_has_its_size_and_its_owner(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People
) -> None:
    run = start(hers("/bin/sh", "-c", WAITS))
    words = ("/bin/sh", "-c", "stty size; stat -c %U $(tty); exec sh -c 'kill -INT $$'")
    ticket = ticket_for(people, *words, terminal=True, input=False)
    command = command_in(run, ticket, *words, window=Window(columns=99, rows=33))
    assert ["33 99", people.alice.pw_name] == whole(command).split("\r\n")[:2]
    assert -signal.SIGINT == command.status


def test_a_command_sees_the_pinned_code_of_its_job(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People, tmp_path: Path
) -> None:
    """The workers move the directory of the code away: the command sees that of the job."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "go.sh").write_text("echo hers\n")
    snapshot = take_snapshot(tmp_path / "project", root=tmp_path / "project")
    spec = hers("/bin/sh", "-c", WAITS, snapshot=f"{snapshot.address}:.")
    run = start(spec, bundle=b"".join(write_stream(snapshot.manifest, snapshot.blob)))
    run.directory.code.rename(run.directory.path / "moved")
    (run.directory.code / "tree").mkdir(parents=True)
    (run.directory.code / "tree" / "go.sh").write_text("echo evil\n")

    words = ("/bin/sh", "-c", ". ./go.sh; . $PWD/go.sh; touch go")
    assert "hers\nhers\n" == whole(command_in(run, ticket_for(people, *words), *words))
    assert 0 == run.ended().ending.exit_code


@pytest.mark.parametrize("what", ["job", "shim", "client"])
def test_nothing_of_a_command_is_left(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People, what: str
) -> None:
    """It ends, with a daemon that it has made, when the job ends, its shim is killed, or its client leaves."""
    run = start(hers("/bin/sh", "-c", WAITS))
    script = "trap '' TERM HUP; (setsid env -u GPUQUEUE_TOKEN sleep 1000 &); echo begun; while :; do sleep 0.1; done"
    command = command_in(run, ticket_for(people, "/bin/sh", "-c", script), "sh")
    output = command.output()
    assert (b"begun\n", False) == next(output)
    if what == "job":
        people.shell(people.alice, f"touch {people.alice.pw_dir}/go")
        list(output)
        assert (-signal.SIGKILL, True) == (command.status, command.run_has_ended)
        end = run.ended()
        assert (0, ()) == (end.ending.exit_code, end.notes)
    elif what == "shim":
        run.process.kill()
        with pytest.raises(Unreachable, match="is gone"):
            list(output)
    else:
        command.close()
        until(lambda: len(people.running(people.alice)) <= 2, what="the end of the command")
        people.shell(people.alice, f"touch {people.alice.pw_dir}/go")
        assert 0 == run.ended().ending.exit_code
    command.close()
    until(lambda: [] == people.running(people.alice), what="the end of all processes of alice")
