"""What the launcher takes from a spec, and the environment of a job."""

from __future__ import annotations

import json
import os
import pwd
import socket
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.model.slurm_variables import MARK
from workers.launcher import guard
from workers.launcher.account import Refused, Rules
from workers.launcher.become import LaunchRequest, environment
from workers.launcher.cgroup import Limits
from workers.launcher.main import changeable
from workers.run.signed_environment import SLURM_BIN
from workers.shim.launch_protocol import MOST_BYTES
from workers.shim.shared_memory import PLACE, SharedMemory

SPEC: dict[str, Any] = {
    "argv": ["true"],
    "cwd": "/",
    "env": {"A": "1"},
    "umask": 18,
    "start_before": 1.0,
    "pty": None,
    "typed": False,
    "user": {"name": "ada", "uid": 1001},
    "code": None,
}
ADA = pwd.struct_passwd(("ada", "x", 2**31 - 7, 1001, "", "/home/ada", "/bin/zsh"))


def read(tmp_path: Path, text: str) -> LaunchRequest:
    """Return the request in a spec with this text."""
    path = tmp_path / "spec"
    path.write_text(text)
    fd = os.open(path, os.O_RDONLY)
    try:
        return LaunchRequest.read(fd)
    finally:
        os.close(fd)


def test_a_spec_is_read(tmp_path: Path) -> None:
    """The request has the fields of the spec."""
    found = read(tmp_path, json.dumps(SPEC))

    assert ("ada", 1001, ["true"], {"A": "1"}, 18) == (found.name, found.uid, found.argv, found.env, found.umask)


def test_limits_are_read_if_there_are_any(tmp_path: Path) -> None:
    """The spec of a job without limits, or of a worker of an older version, has none."""
    limits = {"memory_bytes": 2**30, "cpus": 0.5}

    assert Limits(2**30, 0.5) == read(tmp_path, json.dumps({**SPEC, "limits": limits})).limits
    assert (
        Limits()
        == read(tmp_path, json.dumps({**SPEC, "limits": None})).limits
        == read(tmp_path, json.dumps(SPEC)).limits
    )


def test_the_adjustment_of_its_score_is_read_if_there_is_one(tmp_path: Path) -> None:
    """A worker of an older version says none."""
    assert 0 == read(tmp_path, json.dumps(SPEC)).oom_score_adj
    assert 300 == read(tmp_path, json.dumps({**SPEC, "oom_score_adj": 300})).oom_score_adj


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        *(
            json.dumps({**SPEC, **change})
            for change in (
                {"user": None},
                {"user": {"name": "ada", "uid": "0"}},
                {"user": {"name": "ada", "uid": True}},
                {"user": {"name": ["ada"], "uid": 1001}},
                {"argv": []},
                {"argv": [1]},
                {"argv": "true"},
                {"env": {"A": None}},
                {"env": []},
                {"umask": "022"},
                {"cwd": None},
                {"start_before": "soon"},
                {"code": "here"},
                {"limits": {"memory_bytes": "1G", "cpus": None}},
                {"limits": {"memory_bytes": True, "cpus": None}},
                {"limits": {"memory_bytes": -1, "cpus": None}},
                {"limits": {"memory_bytes": None, "cpus": 0}},
                {"limits": {"memory_bytes": None, "cpus": float("nan")}},
                {"limits": {"disk": 1}},
                {"limits": [1]},
                {"oom_score_adj": -1000},  # nobody ends it for lack of memory
                {"oom_score_adj": 1001},
                {"oom_score_adj": "300"},
                {"oom_score_adj": True},
                {"oom_score_adj": None},
            )
        ),
    ],
)
def test_a_damaged_spec_is_refused(tmp_path: Path, text: str) -> None:
    """A spec with a missing field or one of the wrong type starts nothing."""
    with pytest.raises(Refused, match="the spec of the run is damaged"):
        read(tmp_path, text)


def test_the_environment_is_that_of_a_login_and_what_was_sent() -> None:
    """What names the person or the session comes from this host; the rest is what the submitter sent."""
    sent = {"HOME": "/root", "USER": "root", "XDG_RUNTIME_DIR": "/run/user/0", "LD_LIBRARY_PATH": "/opt/cuda", "A": "1"}

    found = environment({**sent, "PWD": "/evil/link"}, "/home/ada/x", ADA, None)

    assert {"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada", "SHELL": "/bin/zsh"}.items() <= found.items()
    assert {"LD_LIBRARY_PATH": "/opt/cuda", "A": "1", "PATH": "/usr/local/bin:/usr/bin:/bin"}.items() <= found.items()
    assert "XDG_RUNTIME_DIR" not in found
    assert "/home/ada/x" == found["PWD"], "a shell believes any name of its directory"
    assert "/mine" == environment({"PATH": "/mine"}, "/", ADA, None)["PATH"]
    assert f"{SLURM_BIN}:/mine" == environment({"PATH": "/mine", MARK: "{}"}, "/", ADA, None)["PATH"]


def test_files_that_others_can_change_are_found(tmp_path: Path) -> None:
    """The launcher refuses to run code that others than root could replace, also by a directory above it."""
    folder = tmp_path / "open" / "inner"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o777)

    assert str(folder.parent) in list(changeable([str(folder)]))
    folder.parent.chmod(0o755)
    assert str(folder.parent) not in list(changeable([str(folder)])) or os.geteuid() != 0


@pytest.mark.parametrize("in_spec", [False, True])
@pytest.mark.parametrize("of_root", [False, True])
def test_only_root_has_shared_memory_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_root: bool, in_spec: bool
) -> None:
    """A worker that was taken over writes the spec, and could have data removed that people keep for later jobs."""
    file = Path(PLACE, f"gpuqueue-test-{os.getpid()}-root")
    shared = SharedMemory(str(tmp_path))
    monkeypatch.setattr(guard, "become_owner", lambda _uid, _guard: None)
    monkeypatch.setattr(shared, "candidates", lambda: {file.name: True})
    request = read(tmp_path, json.dumps({**SPEC, "remove_shared_memory": in_spec}))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        file.touch()
        guard.report_left(theirs, shared, request, Rules(0, "lab", 1000, "/runs", remove_shared_memory=of_root))
        answer, stays = ours.recv(MOST_BYTES), file.exists()
    finally:
        file.unlink(missing_ok=True)
        ours.close()
        theirs.close()

    (note,) = json.loads(answer.removeprefix(b"left "))
    assert ("removed_shared_memory" if of_root else "left_shared_memory", not of_root) == (note["kind"], stays)
