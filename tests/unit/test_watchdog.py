from __future__ import annotations

import pytest

from gpuqueue.units import GIB, MIB
from workers.watchdog import Excess, excess, limit_bytes


@pytest.mark.parametrize(
    ("used", "free", "promised", "expected"),
    [
        (6 * GIB, 10 * GIB, 0, Excess.NONE),
        (6 * GIB, 0, 5 * GIB, Excess.NONE),
        (6 * GIB + 1, 10 * GIB, 0, Excess.WARN),
        (6 * GIB + 307 * MIB, 10 * GIB, 0, Excess.WARN),
        (6 * GIB + 308 * MIB, 10 * GIB, 0, Excess.END),
        (6 * GIB + 1, 2 * GIB, 3 * GIB, Excess.END),
    ],
)
def test_a_little_more_is_warned_of_and_much_more_or_a_neighbours_is_ended(
    used: int, free: int, promised: int, expected: Excess
) -> None:
    """Five per cent may be CUDA's own; what was promised to somebody else is not to be had."""
    assert expected is excess(used, 6 * GIB, free_bytes=free, promised_bytes=promised)


def test_small_jobs_have_room_for_cudas_own_memory() -> None:
    """Five per cent of 1 GiB would be less than a context."""
    assert GIB + 256 * MIB == limit_bytes(GIB)
