"""The address and the port by which the processes of one run find each other."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuqueue.system.environment import travelling
from workers.shim import master_port
from workers.shim.master_port import candidates, is_free, with_master_port

#: What the worker has changed already.
CHANGED = json.dumps({"CUPY_GPU_MEMORY_LIMIT": [None, "7"]})
#: Reserves a port of those from the first to before the last argument, prints it, and keeps it until its input ends.
RESERVE = """
import sys
from workers.shim import master_port
master_port.candidates = lambda: range(int(sys.argv[1]), int(sys.argv[2]))
print(master_port.reserve(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Callable[[int, int], tuple[subprocess.Popen[str], str]]]:
    """Return a function that starts a process which reserves a port of a range, and returns it with its answer."""
    started: list[subprocess.Popen[str]] = []

    def reserving(first: int, behind: int) -> tuple[subprocess.Popen[str], str]:
        words = [sys.executable, "-c", RESERVE, str(first), str(behind)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield reserving
    for process in started:
        process.kill()
        process.communicate()


def test_two_runs_never_have_the_same_port(start: Callable[[int, int], tuple[subprocess.Popen[str], str]]) -> None:
    """A port is that of a run until its shim is gone, also by kill -9, whether or not the job listens there."""
    first = next(port for port in range(21000, 29000) if is_free(port) and is_free(port + 1))

    one, port = start(first, first + 2)
    _, other = start(first, first + 2)
    _, none = start(first, first + 2)
    one.kill()
    one.wait()
    _, again = start(first, first + 2)

    assert {str(first), str(first + 1)} == {port, other}
    assert ("None", port) == (none, again)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])  # noqa: S104 - on all of this machine for a moment
def test_a_port_on_which_a_process_listens_is_not_free(address: str) -> None:
    """The process may listen on one address of either version of IP, and torch listens on all."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
            listener.bind((address, 0))
            listener.listen()
            port = listener.getsockname()[1]
            assert not is_free(port)
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert is_free(port)


@pytest.mark.parametrize(
    ("ephemeral", "expected"),
    [
        ("32768\t60999\n", range(20000, 29500)),
        ("22000 60999", range(12500, 22000)),
        ("2000 65535", range(1024, 2000)),
        ("1024 65535", range(20000, 29500)),  # no port is below
        ("", range(20000, 29500)),
        (None, range(20000, 29500)),
    ],
)
def test_ports_are_below_those_of_connections(
    ephemeral: str | None, expected: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would give away another port between the check and its use."""
    if ephemeral is not None:
        (tmp_path / "range").write_text(ephemeral)
    monkeypatch.setattr(master_port, "EPHEMERAL", str(tmp_path / "range"))

    assert expected == candidates.__wrapped__()


@pytest.mark.parametrize(
    ("env", "added"),
    [
        ({}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456", "PET_MASTER_PORT": "23456"}),
        ({"MASTER_ADDR": "localhost"}, {"MASTER_PORT": "23456", "PET_MASTER_PORT": "23456"}),
        ({"MASTER_PORT": "29501"}, {"MASTER_ADDR": "127.0.0.1"}),
        ({"PET_MASTER_PORT": "29501"}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456"}),
        ({"MASTER_ADDR": "node1"}, {}),  # a port of this host is of no use there
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "29501"}, {}),
        ({"MASTER_ADDR": ""}, {}),
    ],
)
def test_what_the_submitter_has_set_stays(
    env: dict[str, str], added: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue adds what is missing, and a job does not pass it on to the jobs that it submits."""
    monkeypatch.setattr(master_port, "reserve", lambda: 23456)
    env = {"PATH": "/bin", **env}

    found = with_master_port({**env, "CUPY_GPU_MEMORY_LIMIT": "7", "GPUQUEUE_CHANGED": CHANGED})

    changed = found.pop("GPUQUEUE_CHANGED")
    assert {**env, **added, "CUPY_GPU_MEMORY_LIMIT": "7"} == found
    assert env == travelling({**found, "GPUQUEUE_CHANGED": changed})


def test_a_run_without_a_free_port_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job starts, and its framework takes the default. What the submitter calls by our name does no harm."""
    monkeypatch.setattr(master_port, "reserve", lambda: None)

    for theirs in ("", "[", "7", '["a"]', "[" * 100_000):
        found = with_master_port({"GPUQUEUE_CHANGED": theirs})
        assert {"MASTER_ADDR": "127.0.0.1"} == {name: found[name] for name in found if name != "GPUQUEUE_CHANGED"}
        assert {"MASTER_ADDR": [None, "127.0.0.1"]} == json.loads(found["GPUQUEUE_CHANGED"])
