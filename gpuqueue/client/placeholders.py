"""Checks that the command of an array uses the values of the array: a typing error would make many wrong jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuqueue.errors import BadRequest
from gpuqueue.model.array import Array
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.text.sanitize import short

#: Longest name of a placeholder in a message, in columns.
LONGEST_NAME = 40
#: Largest file that is searched for the variables of a sweep, in bytes.
LARGEST_FILE = 1_000_000


def check(spec: JobSpec) -> None:
    """Check that each placeholder in the command is a value of the array, and that each swept value is used.

    A value is used as ``{lr}`` in an argument, or as ``GPUQUEUE_SWEEP_LR`` in an argument or in a file that the command
    names. The files are read only if an argument does not use the value.

    Raises:
        BadRequest: a placeholder is unknown, or nothing uses a swept value.

    """
    array = spec.array
    if array is None:
        return
    unknown = array.unknown(spec.argv)
    if unknown:
        raise BadRequest(_unknown(array, unknown))
    unused = array.unused(spec.argv)
    if unused:
        unused = array.unused([*spec.argv, *_files(spec)])
    if unused:
        one = next(axis for axis in array.axes if axis.name == unused[0])
        raise BadRequest(
            f"nothing uses the values of {', '.join(unused)}: write {{{one.name}}} in an argument, or {one.variable} "
            "in the script"
        )


def _unknown(array: Array, unknown: list[str]) -> str:
    known = " and ".join(["{index}", *(f"{{{axis.name}}}" for axis in array.axes)])
    names = [short(f"{{{name}}}", LONGEST_NAME) for name in unknown]
    are = "is no value" if len(names) == 1 else "are no values"
    return f"{', '.join(names)} {are} of this array: it has {known}; for the text {names[0]} write {{{names[0]}}}"


def _files(spec: JobSpec) -> Iterator[str]:
    """Yield the text of each file that the command names."""
    for word in spec.argv:
        try:
            path = Path(spec.cwd, word)
            if path.is_file() and path.stat().st_size <= LARGEST_FILE:
                yield path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # no readable file
            continue
