"""The files of submissions: for each one a directory with its calls, their results, and the id of its job.

An executor without a key makes a directory for each submission and removes it when all its jobs have ended. With a
key, the directory has a name that follows from the names of the calls, and stays: a program that starts again finds
the job of each call, and its value.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from gpuqueue.errors import BadRequest, unusable
from gpuqueue.executor.calls import has_value
from gpuqueue.executor.inside import CALLS, RESULT
from gpuqueue.lazy.frozen import dataclass

#: How the name of a directory begins that follows from no key.
_UNNAMED = "calls-"
#: How long a directory without a key stays whose program has not removed it, in seconds: 90 days.
KEEP_S = 90 * 86400.0
#: The file with the names of the calls, their functions, and the job.
_ABOUT = "about"


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a submission is: its calls, by their names and functions, and its job, None before it is submitted.

    ``travels``: the calls travel with the code, and their results are fetched.
    """

    names: tuple[str, ...]
    functions: tuple[str, ...]
    travels: bool
    job: int | None = None

    @property
    def is_array(self) -> bool:
        """Whether the job is an array with a member for each call."""
        return len(self.names) > 1

    def label(self, number: int) -> str:
        """Return the name of the job of call *number*: ``"17"``, or ``"17_2"`` for a member."""
        return f"{self.job}_{number}" if self.is_array else str(self.job)


@dataclass(frozen=True, slots=True)
class Submission:
    """A directory of calls, and what is known of them."""

    folder: Path
    about: About

    @property
    def dedupe(self) -> str:
        """The dedupe key of the job, if the executor has a key: that and the name of the directory."""
        return f"{self.folder.parent.name}.{self.folder.name}"

    def result(self, number: int) -> Path:
        """Return the file of the result of call *number*."""
        return self.folder / f"{number}{RESULT}"

    def write(self, calls: bytes) -> None:
        """Write the *calls*, and who they are. Results of earlier jobs are removed."""
        for number in range(len(self.about.names)):
            self.result(number).unlink(missing_ok=True)
        _replace(self.folder / CALLS, calls)
        self.record()

    def record(self) -> None:
        """Write what is known of the calls."""
        _replace(self.folder / _ABOUT, json.dumps(asdict(self.about)).encode())

    def with_job(self, job: int) -> Submission:
        """Return the submission with its *job*, once that is written."""
        found = replace(self, about=replace(self.about, job=job))
        found.record()
        return found

    def remove(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Submissions:
    """The submissions of an executor in *directory*, which have names and stay if it has a *key*."""

    def __init__(self, directory: Path, key: str | None) -> None:
        self._directory, self.key = directory if key is None else directory / key, key
        _prune(directory)

    def new(self, about: About) -> Submission:
        """Return a submission with a directory of its own.

        Raises:
            GpuQueueError: the directory cannot be made.

        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.key is None:
                return Submission(Path(tempfile.mkdtemp(prefix=_UNNAMED, dir=self._directory)), about)
            digest = hashlib.sha256(json.dumps(about.names).encode()).hexdigest()[:16]
            folder = self._directory / digest
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise unusable(self._directory, error) from None
        return Submission(folder, about)

    def known(self) -> Iterator[Submission]:
        """Yield the submissions under the key, the oldest job first and those without a job last."""
        folders = self._directory.glob("*/") if self.key is not None else ()
        found = [each for each in map(_read, folders) if each is not None]
        yield from sorted(found, key=lambda each: each.about.job or 10**18)


class KeptCalls:
    """The calls that an executor with a key has submitted, by their names."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self._held: dict[str, tuple[Submission, int]] = {}
        for each in submissions:
            self.add(each)

    def add(self, submission: Submission) -> None:
        """Add a *submission*. Its job is that of its calls from now on, unless a call has a value already."""
        for number, name in enumerate(submission.about.names):
            before = self._held.get(name)
            if before is None or not has_value(before[0].result(before[1])):
                self._held[name] = submission, number

    def find(self, name: str, function: str) -> tuple[Submission, int] | None:
        """Return the submission of the call *name* and its number there, None if it was never submitted.

        Raises:
            BadRequest: the call was one of another function.

        """
        found = self._held.get(name)
        if found is not None and found[0].about.functions[found[1]] != function:
            before = found[0].about.functions[found[1]]
            raise BadRequest(
                f"call {name} of key {found[0].folder.parent.name} was one of {before}, and now is one of {function}: "
                f"choose another key, or remove {found[0].folder.parent}"
            )
        return found


def _prune(directory: Path) -> None:
    """Remove old directories of programs that did not wait for their jobs."""
    for folder in directory.glob(f"{_UNNAMED}*/"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > KEEP_S:
                shutil.rmtree(folder, ignore_errors=True)


def _read(folder: Path) -> Submission | None:
    with suppress(OSError, ValueError, TypeError):
        about = About(**json.loads((folder / _ABOUT).read_bytes()))
        names, functions = tuple(about.names), tuple(about.functions)
        return Submission(folder, replace(about, names=names, functions=functions))
    return None


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)
