"""Tests of the place of control groups: real groups of cgroup v2, where this machine permits them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.launcher import cgroup

FIND = "import sys; from workers.launcher.cgroup import of_launcher; print(of_launcher(sys.argv[1]))"
SOCKET = "/run/gpuqueue/launcher.sock"


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a new control group, such as systemd makes for a unit."""
    own = cgroup._own()
    found = Path(own or "/", f"gpuqueue-test-{secrets.token_hex(4)}")
    if own is None or not os.access(own, os.W_OK):
        pytest.skip("this machine permits no control groups (cgroup v2)")
    found.mkdir()
    yield found
    for each in (found / "run-gpuqueue-launcher.sock", found):
        if each.is_dir():
            each.rmdir()


def found_in(group: Path) -> str:
    """Return what a launcher finds that runs in *group*."""

    def enter() -> None:
        (group / "cgroup.procs").write_text("0")

    done = subprocess.run(
        [sys.executable, "-c", FIND, SOCKET],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=enter,
    )
    return done.stdout.strip()


def test_a_group_that_systemd_has_not_delegated_is_left_alone(group: Path) -> None:
    """Without Delegate=yes the group belongs to systemd, so a launcher makes no groups below it."""
    assert "None" == found_in(group)
    assert not [each for each in group.iterdir() if each.is_dir()]


def test_a_delegated_group_is_divided(group: Path) -> None:
    """With Delegate=yes there is a directory for the runs of each launcher."""
    os.setxattr(group, "user.delegate", b"1")

    assert str(group / "run-gpuqueue-launcher.sock") == found_in(group)


def test_an_empty_group_of_a_dead_guard_is_removed(group: Path) -> None:
    """The next launcher removes the group of a run whose guard was killed."""
    os.setxattr(group, "user.delegate", b"1")
    left = group / "run-gpuqueue-launcher.sock" / "1.abc"
    left.mkdir(parents=True)

    found_in(group)
    assert not left.exists()


def test_a_group_of_the_same_name_is_not_taken_over(tmp_path: Path) -> None:
    """A second run with the same token gets no group: it must not end the processes of the first."""
    assert cgroup.RunGroup.create(str(tmp_path), "1.abc") is not None
    assert cgroup.RunGroup.create(str(tmp_path), "1.abc") is None
    assert cgroup.RunGroup.create(None, "1.abc") is None
