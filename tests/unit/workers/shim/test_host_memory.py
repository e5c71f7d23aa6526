"""Whether the kernel has ended a run for lack of host memory, by the counts that every account can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from workers.shim import host_memory
from workers.shim.host_memory import RECENT_S, HostMemory

GROUP = "low 0\nhigh 0\nmax {limits}\noom {limits}\noom_kill {kills}\n"
HOST = "nr_free_pages 12\npgpgin 4\noom_kill {kills}\nthp_fault_alloc 0\n"
GIB_KB = 2**20


class Kernel:
    """Files of the kernel with numbers that a test sets, and a clock."""

    def __init__(self, place: Path, events: str) -> None:
        self.now_s = 1000.0
        self._text, self._place = events, place
        self.set(kills=5)
        self.has(8.0)
        self.files = os.open(place / "events", os.O_RDONLY), os.open(place / "memory", os.O_RDONLY)

    def set(self, *, kills: int, limits: int = 0) -> None:
        """Set how many processes were killed, and how often the limit of the group was reached."""
        (self._place / "events").write_text(self._text.format(kills=kills, limits=limits))

    def has(self, available_gib: float) -> None:
        """Set the memory that is available."""
        lines = f"MemTotal: {64 * GIB_KB} kB\nMemFree: 1 kB\nMemAvailable: {round(available_gib * GIB_KB)} kB\n"
        (self._place / "memory").write_text(lines)


@pytest.fixture(params=[GROUP, HOST], ids=["group", "host"])
def kernel(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """Return the files of a control group, or of the host."""
    made = Kernel(tmp_path, request.param)
    monkeypatch.setattr(host_memory, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    yield made
    for fd in made.files:
        os.close(fd)


@pytest.mark.parametrize(
    ("status", "is_killed"), [(-9, True), (137, True), (-15, False), (1, False), (0, False), (None, False)]
)
def test_a_run_that_ended_by_sigkill_after_a_kill_has_its_reason(
    kernel: Kernel, status: int | None, *, is_killed: bool
) -> None:
    """A shell ends with 137 if its child was killed."""
    memory = HostMemory(kernel.files)
    kernel.set(kills=6)

    expected = "the host ran out of memory (8G of 64G available)" if is_killed else ""
    assert expected == memory.reason(status)


def test_a_run_that_somebody_has_killed_has_no_reason(kernel: Kernel) -> None:
    """Earlier kills of the kernel are not its reason, and neither is one long before its end."""
    memory = HostMemory(kernel.files)
    assert "" == memory.reason(-9)

    kernel.set(kills=6)
    kernel.now_s += 2.0
    memory.poll()
    kernel.now_s += RECENT_S - 1.0
    assert memory.reason(-9)
    kernel.now_s += 1.0
    assert "" == memory.reason(-9)


def test_the_memory_is_that_before_the_kill(kernel: Kernel) -> None:
    """After it, that of the killed process is available again."""
    memory = HostMemory(kernel.files)
    kernel.has(0.25)
    kernel.now_s += 1.0
    memory.poll()
    kernel.set(kills=6)
    kernel.has(50.0)

    assert "the host ran out of memory (256M of 64G available)" == memory.reason(-9)


def test_the_files_are_not_read_at_each_poll(kernel: Kernel) -> None:
    """The shim polls whenever a process of its job ends."""
    memory = HostMemory(kernel.files)
    kernel.has(0.25)
    memory.poll()
    kernel.has(16.0)
    kernel.set(kills=6)

    assert memory.reason(-9).endswith("(16G of 64G available)")


def test_a_limit_of_the_control_group_is_named(tmp_path: Path) -> None:
    """In a container the host may have much memory left."""
    kernel = Kernel(tmp_path, GROUP)
    memory = HostMemory(kernel.files)
    kernel.set(kills=6, limits=1)

    assert "the processes of its control group reached their memory limit (8G of 64G available)" == memory.reason(-9)


def test_a_host_without_these_files_says_nothing() -> None:
    """A kernel may hide them."""
    memory = HostMemory((-1, -1))
    memory.poll()

    assert ("", "") == (memory.reason(-9), memory.words())


def test_this_machine_has_the_files() -> None:
    """Whichever of the two it has, the count of kills is there, and so is the memory of the host."""
    events, memory = host_memory.opened()

    assert None not in host_memory._numbers(events, b"oom_kill")
    assert None not in host_memory._numbers(memory, b"MemTotal:", b"MemAvailable:")
