"""The values of an array: reads those in files, and checks that the command uses them.

A typing error would make many wrong jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuqueue.errors import BadRequest
from gpuqueue.model import sweep
from gpuqueue.model.array import Array
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import format_bytes

#: Longest name of a placeholder in a message, in columns.
LONGEST_NAME = 40
#: Largest file that is searched for the variables of a sweep, in bytes.
LARGEST_FILE = 1_000_000
#: Largest file of values, in bytes. Each start of a member carries them all.
MAX_VALUES_BYTES = 256 * 1024
#: The name of the sweep through the lines of ``--each-line``.
LINE = "line"


def with_file(text: str) -> str:
    """Return the sweep *text* with the lines of a file as its values, if it names one (``data=@FILE``).

    Raises:
        BadRequest: the file cannot be read, is too large, or has no values.

    """
    name, equals, values = text.partition("=")
    path = values.strip()
    if not equals or not path.startswith("@") or path.startswith("@["):  # a list, as show prints it
        return text
    return f"{name}={sweep.listing(_lines(f'--sweep {plain(text)}', path[1:]))}"


def each_line(path: str) -> str:
    """Return the sweep through the lines of the file *path*. Raises as :func:`with_file` does."""
    return f"{LINE}={sweep.listing(_lines(f'--each-line {plain(path)}', path))}"


def _lines(typed: str, path: str) -> list[str]:
    """Return the lines of a file that are not empty, without the space around them. *typed* names it in messages."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_VALUES_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{typed}: cannot read the file ({error.strerror}): name a file with a value a line") from None
    if len(content) > MAX_VALUES_BYTES:
        most = format_bytes(MAX_VALUES_BYTES)
        raise BadRequest(f"{typed}: the file has more than {most} of values: split it over several arrays")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadRequest(f"{typed}: the file is no text in UTF-8: write a value a line") from None
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    if not lines:
        raise BadRequest(f"{typed}: the file is empty: write a value a line")
    return lines


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
