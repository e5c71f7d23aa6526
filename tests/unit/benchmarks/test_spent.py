"""Tests that a worker's cost includes its child processes, and that a shared page counts once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from benchmarks.measure.spent import can_share, memory_mib, with_children

#: A process with a child; both live until their standard input ends.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(child.pid, flush=True)
sys.stdin.read()
"""
MIB = 2**20


@pytest.fixture
def parent() -> Iterator[tuple[psutil.Process, int]]:
    """Return a process and the pid of its child."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield psutil.Process(process.pid), int(process.stdout.readline())
        assert process.stdin is not None
        process.stdin.close()


def of(*, pss: int | None, rss: int, denied: bool = False) -> psutil.Process:
    """Return a process that reports this memory; *pss* is None on a system without PSS."""

    def full() -> Any:
        if denied:
            raise psutil.AccessDenied
        return SimpleNamespace(rss=rss) if pss is None else SimpleNamespace(rss=rss, pss=pss)

    return cast("psutil.Process", SimpleNamespace(memory_full_info=full, memory_info=lambda: SimpleNamespace(rss=rss)))


def test_a_process_is_counted_with_its_child(parent: tuple[psutil.Process, int]) -> None:
    """A process is counted with its child. Regression: the fork server of an idle worker was not counted."""
    process, child = parent

    both = with_children(process)

    assert [process.pid, child] == [each.pid for each in both]
    assert memory_mib(both, shared=False) > memory_mib([process], shared=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the PSS")
def test_a_shared_page_counts_once(parent: tuple[psutil.Process, int]) -> None:
    """A shared page counts once. Two processes that share an interpreter have less PSS than RSS in total."""
    both = with_children(parent[0])

    assert can_share(both)
    assert 0 < memory_mib(both, shared=True) < memory_mib(both, shared=False)


@pytest.mark.parametrize("other", [of(pss=None, rss=MIB), of(pss=1, rss=MIB, denied=True), of(pss=0, rss=MIB)])
def test_where_one_cannot_be_read_all_are_counted_otherwise(other: psutil.Process) -> None:
    """If one process has no PSS, all count by RSS. A figure in PSS with a floor in RSS has no meaningful ratio."""
    some = [of(pss=2 * MIB, rss=4 * MIB), other]

    assert not can_share(some)
    assert 5.0 == memory_mib(some, shared=False)
    assert can_share(some[:1])
    assert 2.0 == memory_mib(some[:1], shared=True)
