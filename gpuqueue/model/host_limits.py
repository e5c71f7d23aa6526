"""The limits of a job's host memory and processors. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpuqueue.errors import BadRequest, Impossible
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_BYTES, MIB, format_bytes, parse_bytes

#: Smallest limits: less time than the kernel can measure out, and less memory than any program needs.
LEAST_CPUS, LEAST_BYTES = 0.01, MIB
#: Largest number of processors.
MOST_CPUS = 10_000


def cpus_of(value: object) -> float | None:
    """Return a number of processors, given as a number or as text such as ``0.5``, or None. The spec checks its range.

    Raises:
        BadRequest: *value* is no number.

    """
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise BadRequest(f"cpus must be a number such as 4 or 0.5, not {brief(value)}") from None
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
        raise BadRequest(f"cpus must be a number such as 4 or 0.5, not {brief(value)}")
    return value


def cpu_mem_of(value: object) -> int | None:
    """Return host memory in bytes, given in bytes or as text such as ``32G``, or None. The spec checks its range.

    Raises:
        BadRequest: *value* is no size.

    """
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except BadRequest as error:
            raise BadRequest(f"cpu_mem: {error}") from None
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadRequest(f"cpu_mem must be a size in bytes or such as 32G, not {brief(value)}")
    return value


def check(cpus: float | None, cpu_mem_bytes: int | None) -> None:
    """Check the limits of a job. None is no limit.

    Raises:
        BadRequest: a limit is out of range.

    """
    if cpus is not None and not LEAST_CPUS <= cpus <= MOST_CPUS:  # false for NaN, too
        raise BadRequest(f"cpus must be from {LEAST_CPUS} to {MOST_CPUS}, not {brief(cpus)}")
    if cpu_mem_bytes is not None and not LEAST_BYTES <= cpu_mem_bytes <= MAX_BYTES:
        raise BadRequest(f"cpu_mem must be from 1M to 1024T, not {brief(cpu_mem_bytes)} bytes")


def words(cpus: float | None, cpu_mem_bytes: int | None) -> str | None:
    """Return the limits in words, such as ``at most 4 processors, 32G of host memory``; None without a limit."""
    parts = [f"{cpus:g} processor{'' if cpus == 1 else 's'}"] if cpus is not None else []
    parts += [f"{format_bytes(cpu_mem_bytes)} of host memory"] if cpu_mem_bytes is not None else []
    return f"at most {', '.join(parts)}" if parts else None


def check_enforced(hosts: Iterable[bool | None]) -> None:
    """Check that a host can enforce the limits; *hosts* are whether each can, None if that is unknown.

    Raises:
        Impossible: none can.

    """
    known = list(hosts)
    if known and not any(can is not False for can in known):
        raise Impossible(
            "no host can limit processors and host memory of this job, because only hosts that run jobs as their "
            "submitters can: leave out --cpus and --cpu-mem (of a job that waits: gpuqueue edit ID --cpus none "
            "--cpu-mem none)"
        )
