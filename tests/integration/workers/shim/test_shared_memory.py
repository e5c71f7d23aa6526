"""What a run leaves in /dev/shm: with real shims, processes, and files of other runs and of other processes."""

from __future__ import annotations

import contextlib
import mmap
import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bounded import until

from gpuqueue.model.run import EndingKind, RunNote
from gpuqueue.text.units import MIB
from workers.run.links import LIVE
from workers.shim.shared_memory import PLACE, unused

#: Makes files that stay mapped ("map=NAME"), stay open ("open=NAME") or are closed ("close=NAME"), and waits or exits.
#: A file to map may be there already.
MAKES = f"""
import mmap, os, sys, time
held = []
for word in sys.argv[1:]:
    way, _, name = word.partition("=")
    if way == "exit":
        os._exit(3)
    fd = os.open("{PLACE}/" + name, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, {MIB})
    if way == "map":
        held.append(mmap.mmap(fd, {MIB}))
    if way != "open":
        os.close(fd)
print("made", flush=True)
time.sleep(600)
"""
Start = Callable[..., Any]


@pytest.fixture
def name() -> Iterator[str]:
    """Return the start of the names of this test's files, which are removed afterwards."""
    start = f"gpuqueue-test-{os.getpid()}"
    yield f"{start}-a"
    for path in Path(PLACE).glob(f"{start}*"):
        path.unlink()


@pytest.fixture
def run(shims: Any, tmp_path: Path) -> Start:
    """Return a function that starts a run which makes files, and waits until it has made them.

    Another run is on the host, unless it is to be alone.
    """

    def start(*words: str, alone: bool = False, **changes: Any) -> Any:
        runs = tmp_path / ("alone" if alone else "runs")
        before = (lambda: None) if alone else (runs / LIVE / "0.other").touch
        started = shims(sys.executable, "-c", MAKES, *words, runs=runs, before=before, **changes)
        until(lambda: "made" in started.log(), what="the files")
        return started

    return start


def cancelled(run: Any) -> tuple[RunNote, ...]:
    """Cancel a run, wait for its end, and return its notes."""
    run.directory.ask_end(EndingKind.CANCELLED)
    notes: tuple[RunNote, ...] = run.ended().notes
    return notes


def test_what_a_cancelled_run_leaves_is_named(run: Start, name: str) -> None:
    """Segments and semaphores stay after a kill. The note has their owner, their size and the command."""
    (note,) = cancelled(run(f"map={name}", f"open=sem.{name}"))

    owner = pwd.getpwuid(os.geteuid()).pw_name
    words = f"left 2M of {owner} in /dev/shm, which no process uses; remove it with `rm "
    assert f"{words}{PLACE}/{name} {PLACE}/sem.{name}`" == note.words
    assert 0 == subprocess.run(note.words.split("`")[1].split(), check=False).returncode
    assert name not in unused()


def test_a_run_that_ends_at_once_is_named_too(shims: Any, name: str) -> None:
    """No process was seen to use the file, and no other run was there that could have made it."""
    notes = shims(sys.executable, "-c", MAKES, f"map={name}", "exit").ended().notes

    assert name in [item for note in notes for item in note.items]


def test_only_what_a_run_alone_was_seen_to_use_is_removed(run: Start, name: str) -> None:
    """The rest may be data that another run, or a person, keeps there for the next job."""
    beside = cancelled(run(f"map={name}-beside", f"close={name}-closed", remove_shared_memory=True))
    alone = run(f"map={name}", f"close={name}-staged", alone=True, job_id=2, remove_shared_memory=True)

    notes = cancelled(alone)

    assert [("left_shared_memory", (f"{name}-beside",))] == [(note.kind, note.items) for note in beside]
    named = {(note.kind, item) for note in notes for item in note.items if item.startswith(name)}
    assert {("removed_shared_memory", name), ("left_shared_memory", f"{name}-staged")} == named
    left = {item.name for item in Path(PLACE).glob(f"{name}*")}
    assert {f"{name}-beside", f"{name}-closed", f"{name}-staged"} == left


@pytest.mark.parametrize("way", ["mapped", "before", "directory"])
def test_what_is_in_use_or_was_there_is_never_named_or_removed(run: Start, name: str, way: str) -> None:
    """A living process maps one file, a job before has left another, which the run maps, and a directory is data."""
    path = Path(PLACE, name)
    if way == "before":
        path.write_bytes(b"data")
    started = run(*([f"map={name}"] if way != "directory" else []), remove_shared_memory=True)
    if way == "directory":
        path.mkdir()
    with contextlib.ExitStack() as stack:
        if way == "mapped":
            file = stack.enter_context(path.open("rb"))
            stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            file.close()
        notes = cancelled(started)

    assert () == notes
    assert path.exists()
    if way == "directory":
        path.rmdir()


def test_a_site_may_have_it_removed(run: Start, name: str) -> None:
    """The note says what was removed, and the next run can make it again."""
    (note,) = cancelled(run(f"map={name}", f"open=sem.{name}", alone=True, remove_shared_memory=True))

    assert note.words.startswith("removed 2M of ")
    assert note.words.endswith(f" in /dev/shm, which the run had left: {name}, sem.{name}")
    assert [] == list(Path(PLACE).glob(f"*{name}"))


def test_only_names_that_a_shell_takes_are_in_the_command(run: Start, name: str) -> None:
    """A name is chosen by the job, and a person types the command."""
    (note,) = cancelled(run(f"map={name}", f"map={name};reboot", f"map={name} $(reboot)"))

    assert note.words.endswith(f"; remove it with `rm {PLACE}/{name}` (2 more files are there)")
