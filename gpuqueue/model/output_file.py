"""The names of the links to the log of a run: ``--output`` and ``--error``, with the codes of Slurm. Pure."""

from __future__ import annotations

import posixpath
import re

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief

#: Longest pattern, in characters.
MAX_LENGTH = 1024
#: Why a job whose code travels has no such link.
NOT_HERE = (
    "the code of this job travels, so no file of its directory can show its output: leave out --output and --error; "
    "gpuqueue logs ID > FILE writes the file"
)
#: The codes that differ between runs. The host of the run replaces them (``workers/shim/output_link.py``).
_OF_RUN = "jAaN"
_CODE = re.compile(r"%(.?)", re.DOTALL)


def pattern_of(text: str, *, option: str, name: str, user: str) -> str:
    """Return the pattern *text* of *option* with the codes of the submit replaced: ``%x`` and ``%u``.

    Raises:
        BadRequest: it has a code that is not known.

    """
    words = {"x": name, "u": user}

    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        if code in words:
            return words[code].replace("/", "_").replace("%", "%%")
        if not code or code not in f"{_OF_RUN}%":
            raise BadRequest(
                f"{option} {brief(text)}: the codes are %j, %A, %a, %N, %x, %u and %%, not {brief(match[0])}"
            )
        return match[0]

    return _CODE.sub(replaced, text)


def check(pattern: str) -> None:
    """Check the pattern of a job.

    Raises:
        BadRequest: it names no file.

    """
    fits = 0 < len(pattern) <= MAX_LENGTH and not pattern.endswith("/") and "\0" not in pattern
    if not fits or not set(_CODE.findall(pattern)) <= {*_OF_RUN, "%"}:
        raise BadRequest(f"{brief(pattern)} names no file for the output: name one, such as out-%j.txt")


def check_members(pattern: str, *, is_array: bool) -> None:
    """Check that the runs of an array have links of their own, and that no other job uses an index.

    Raises:
        BadRequest: they have not.

    """
    codes = set(_CODE.findall(pattern))
    if is_array and not codes & {"j", "a"}:
        raise BadRequest(f"{brief(pattern)} is one file for all members of the array: give each its own, such as %A_%a")
    if not is_array and "a" in codes:
        raise BadRequest(f"{brief(pattern)}: %a is the index of a member, and this is no array")


def place_of(pattern: str) -> tuple[str, str | None]:
    """Return the directory of the link, up to a code of the run, and its name, None if that differs between runs."""
    directory, name = posixpath.split(pattern)
    is_same = not _of_run(name) and not _of_run(directory)
    while _of_run(directory):
        directory = posixpath.dirname(directory)
    return directory.replace("%%", "%"), name.replace("%%", "%") if is_same else None


def _of_run(text: str) -> set[str]:
    return {*_OF_RUN}.intersection(_CODE.findall(text))
