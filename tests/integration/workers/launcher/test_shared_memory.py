"""Shared memory that a job of a submitter leaves: examined and removed as the submitter, never as root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bounded import until
from one_shim import Shim
from submitters import Launcher, People

from gpuqueue.model.run import EndingKind, RunNote
from workers.run.links import LIVE
from workers.shim.shared_memory import PLACE

Start = Callable[..., Shim]


@pytest.fixture
def name() -> Iterator[str]:
    """Return the start of the names of this test's files, which are removed afterwards."""
    start = f"gpuqueue-test-{os.getpid()}-user"
    yield start
    for path in Path(PLACE).glob(f"*{start}*"):
        path.unlink()


def notes_of(run: Shim) -> tuple[RunNote, ...]:
    """Cancel a run once it has made its files, and return its notes."""
    until(lambda: run.log() == "made\n", what="its files")
    run.directory.ask_end(EndingKind.CANCELLED)
    return run.ended().notes


@pytest.mark.parametrize("removes", [False, True])
def test_shared_memory_of_a_submitter_is_named_or_removed(
    as_user: Start, people: People, launch: Callable[..., Launcher], name: str, *, removes: bool
) -> None:
    """The note has her name. A file of a colleague that her job has open is neither named nor removed.

    Root decides, and not the worker, which says the opposite.
    """
    launcher = launch(*(["--remove-shared-memory"] if removes else []))
    of_bob = Path(f"{PLACE}/{name}-bob")
    script = f"exec 3<>{PLACE}/{name} 4<{of_bob}; head -c 65536 /dev/zero >&3; echo made; exec sleep 600"
    begun = f"until [ -e {of_bob} ]; do sleep 0.01; done; {script}"
    (launcher.runs / LIVE).mkdir(parents=True, exist_ok=True)
    if not removes:
        (launcher.runs / LIVE / "0.other").touch()

    run = as_user("/bin/sh", "-c", begun, launcher=launcher.socket, remove_shared_memory=not removes)
    until(lambda: len(run.directory.processes()) == 3, what="the start of the run")
    assert 0 == people.shell(people.bob, f"umask 0; echo data > {of_bob}").returncode
    (note,) = notes_of(run)

    kind = "removed_shared_memory" if removes else "left_shared_memory"
    assert (kind, (name,), 1, 65536, people.alice.pw_name) == (
        note.kind,
        note.items,
        note.count,
        note.size_bytes,
        note.owner,
    )
    assert [not removes, True] == [Path(PLACE, name).exists(), of_bob.exists()]


def test_a_run_of_a_submitter_that_leaves_nothing_has_no_note(as_user: Start, name: str) -> None:
    """A file that the job itself removes is not left."""
    run = as_user("/bin/sh", "-c", f"exec 3<>{PLACE}/{name}; rm {PLACE}/{name}; echo made; exec sleep 600")

    assert () == notes_of(run)
