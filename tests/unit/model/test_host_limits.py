"""The limits of a job's host memory and processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest, Impossible
from gpuqueue.model.host_limits import check_enforced, cpu_mem_of, cpus_of, words


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"cpus": 0.0}, "cpus must be from 0.01 to 10000, not 0.0"),
        ({"cpus": float("nan")}, "cpus must be from 0.01 to 10000, not nan"),
        ({"cpus": 10_001}, "cpus must be from 0.01 to 10000, not 10001"),
        ({"cpus": True}, "cpus must be a number, not True"),
        ({"cpu_mem_bytes": 0}, "cpu_mem must be from 1M to 1024T, not 0 bytes"),
        ({"cpu_mem_bytes": 2**60}, "cpu_mem must be from 1M to 1024T"),
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


def test_limits_are_read_as_they_are_typed() -> None:
    """Both have the forms of the command line and of Python."""
    assert [4.0, 0.5, 4, 0.5, None] == [*map(cpus_of, ("4", "0.5", 4, 0.5, None))]
    assert [32 * 2**30, 2**20, None] == [*map(cpu_mem_of, ("32G", 2**20, None))]


@pytest.mark.parametrize(
    ("read", "value", "text"),
    [
        (cpus_of, "many", "cpus must be a number such as 4 or 0.5, not 'many'"),
        (cpus_of, "", "cpus must be a number such as 4 or 0.5, not ''"),
        (cpus_of, True, "cpus must be a number such as 4 or 0.5, not True"),
        (cpus_of, [4], "cpus must be a number such as 4 or 0.5, not [4]"),
        (cpu_mem_of, "32", "cpu_mem: '32' is not a size: add the unit: 32M or 32G"),
        (cpu_mem_of, "much", "cpu_mem: 'much' is not a size: write it like 6G or 512MiB"),
        (cpu_mem_of, 1.5, "cpu_mem must be a size in bytes or such as 32G, not 1.5"),
        (cpu_mem_of, True, "cpu_mem must be a size in bytes or such as 32G, not True"),
    ],
)
def test_what_is_no_limit_is_refused_by_the_name_of_its_option(
    read: Callable[[object], object], value: object, text: str
) -> None:
    """The message says which option it is about, wherever the value was typed."""
    with pytest.raises(BadRequest) as refused:
        read(value)
    assert text == str(refused.value)


@pytest.mark.parametrize("hosts", [[], [None], [False, None], [False, True]])
def test_limits_that_a_host_may_enforce_are_accepted(hosts: list[bool | None]) -> None:
    """A host of an older version does not say what it can. Without a host nobody knows."""
    check_enforced(hosts)


def test_limits_that_no_host_can_enforce_are_impossible() -> None:
    """The job would be held on each host, and no release would change that."""
    with pytest.raises(Impossible, match="leave out --cpus and --cpu-mem") as refused:
        check_enforced([False, False])
    assert "\n" not in str(refused.value)
