"""A job runs as the worker's account and can replace any file of its run directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.system.logs import LogTail, last_bytes
from gpuqueue.system.safe_open import read_small
from gpuqueue.system.terminal_socket import TerminalSocket

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another account")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file that the job must not show."""
    path = tmp_path / "elsewhere" / "log"
    path.parent.mkdir()
    path.write_text("root's password\n")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory."""
    path = tmp_path / "runs" / "7.1"
    path.mkdir(parents=True)
    return path


def link_the_file(run: Path, secret: Path) -> None:
    """Replace the log by a link."""
    (run / "log").symlink_to(secret)


def link_the_directory(run: Path, secret: Path) -> None:
    """Replace the run directory by a link."""
    run.rmdir()
    run.symlink_to(secret.parent)


def shown(log: Path) -> bytes:
    """Return what ``gpuqueue logs`` would print."""
    tail = LogTail()
    tail.turn_to(log)
    return b"".join(tail.rest())


@pytest.mark.parametrize("replace", [link_the_file, link_the_directory])
def test_a_link_in_place_of_a_log_is_not_followed(
    run: Path, secret: Path, replace: Callable[[Path, Path], None]
) -> None:
    """``gpuqueue logs`` in an admin's root shell used to print the file that the link named."""
    replace(run, secret)

    with pytest.raises(Refused, match="cannot be read"):
        shown(run / "log")
    assert b"" == last_bytes(run / "log", 100)
    with pytest.raises((OSError, GpuQueueError)):
        read_small(run / "log")


@as_root
def test_a_file_of_another_account_is_not_read(run: Path, secret: Path) -> None:
    """A hard link to another account's file is no link that the system reports."""
    os.link(secret, run / "log")
    os.chown(run, NOBODY, NOBODY)

    with pytest.raises(Refused, match="belongs to another account than its directory"):
        shown(run / "log")


def test_a_state_directory_behind_a_link_works(tmp_path: Path, run: Path) -> None:
    """Only the run directory and its files must be no links: many sites keep the state on another disk by a link."""
    (run / "log").write_text("epoch 1\n")
    (tmp_path / "state").symlink_to(tmp_path / "runs")

    assert b"epoch 1\n" == shown(tmp_path / "state" / "7.1" / "log")


@as_root
def test_typed_keys_reach_no_socket_of_another_account(run: Path) -> None:
    """A job could replace its terminal's socket by a link to one of root's, such as that of a container engine."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run.parent / "s"))
        listener.listen()
        (run / "tty").symlink_to(run.parent / "s")
        os.chown(run, NOBODY, NOBODY)

        with pytest.raises(PermissionError, match="belongs to another account"):
            TerminalSocket(run / "log")
