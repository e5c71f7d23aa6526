"""The limits of a job's host memory and processors."""

from __future__ import annotations

from typing import Any

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest
from gpuqueue.model.host_limits import words


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"cpus": 0.0}, "--cpus must be from 0.01 to 10000, not 0.0"),
        ({"cpus": float("nan")}, "--cpus must be from 0.01 to 10000, not nan"),
        ({"cpus": 10_001}, "--cpus must be from 0.01 to 10000, not 10001"),
        ({"cpus": True}, "cpus must be a number, not True"),
        ({"cpu_mem_bytes": 0}, "--cpu-mem must be from 1M to 1024T, not 0 bytes"),
        ({"cpu_mem_bytes": 2**60}, "--cpu-mem must be from 1M to 1024T"),
        ({"cpu_mem_bytes": 1e9}, "cpu_mem must be a whole number"),
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, Any], text: str) -> None:
    """A limit that no run could keep, or that is none, is refused with its range."""
    with pytest.raises(BadRequest) as refused:
        make_spec(**limits)
    assert text in str(refused.value)


def test_limits_are_shown_in_words() -> None:
    """Each limit that is set is named with its unit."""
    assert "at most 1 processor" == words(1, None)
    assert "at most 0.5 processors, 32G of host memory" == words(0.5, 32 * 2**30)
