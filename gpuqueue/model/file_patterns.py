"""Patterns that select files of a job's copy of its code, in the syntax of ``.gitignore``. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief

#: Most patterns of a job or of a request, and the longest one in characters.
MOST_PATTERNS, MOST_CHARACTERS = 32, 1024


def file_patterns(what: str, value: object) -> tuple[str, ...]:
    """Return the patterns in *value*, a sequence of texts. Messages name it *what*.

    Raises:
        BadRequest: *value* is no such sequence, has too many patterns, or one that cannot match a file.

    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BadRequest(f"{what} must be a list of patterns, not {brief(value)}")
    if len(value) > MOST_PATTERNS:
        raise BadRequest(f"{what} has at most {MOST_PATTERNS} patterns, not {len(value)}")
    for each in value:
        fault = _fault(each)
        if fault is not None:
            raise BadRequest(f"{what} cannot have the pattern {brief(each)}: {fault}. Write one such as 'results/**'")
    return tuple(value)


def of_request(value: object, *, with_code: bool) -> tuple[str, ...]:
    """Return the patterns of the files to keep, which a job must name. *with_code* says whether its code travels.

    Raises:
        BadRequest: they are invalid, or the job has no copy of its code, and so no files to keep.

    """
    found = file_patterns("keep", value)
    if not with_code:
        raise BadRequest("only a job whose code travels keeps files: add --snapshot DIR, or leave out --keep")
    return found


def from_directory(patterns: Sequence[str], directory: str) -> tuple[str, ...]:
    """Return *patterns*, which a person wrote in *directory* of the copy, as they read at the top of the copy.

    As in a ``.gitignore`` of the directory, a slash within a pattern ties it to the directory: ``results/**`` becomes
    ``/src/results/**``. A slash at its beginning ties it to the top, and other patterns match at any depth.
    """
    below = "".join(f"\\{each}" if each in "\\*?[]! #" else each for each in directory)
    return tuple(_below(each, "" if directory == "." else f"/{below}") for each in patterns)


def _below(pattern: str, directory: str) -> str:
    sign = "!" if pattern.startswith("!") else ""
    rest = pattern.removeprefix("!")
    is_tied = "/" in rest.rstrip("/") and not rest.startswith(("/", "**/"))
    return f"{sign}{directory}/{rest.removeprefix('./')}" if is_tied else pattern


def _fault(pattern: object) -> str | None:
    if not isinstance(pattern, str):
        return "it is no text"
    if not pattern.strip():
        return "it is empty"
    if len(pattern) > MOST_CHARACTERS:
        return f"it has more than {MOST_CHARACTERS} characters"
    if not pattern.isprintable():
        return "it has control characters"
    return "it is a comment" if pattern.startswith("#") else None
