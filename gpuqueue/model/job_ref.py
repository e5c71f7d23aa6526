"""The names of jobs that users type and programs pass: ids, array members, parts of arrays, ranges of ids. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuqueue.errors import BadRequest, JobNotFound
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.array import Indexes, Member
from gpuqueue.text.sanitize import brief

#: Largest id that both the store and the history can hold.
MAX_ID = 2**53
_SPAN = pattern(r"([1-9][0-9]{0,15})-([1-9][0-9]{0,15})")
#: Most ranges of indexes in one argument of a script. Such an argument has at most 4096 characters.
_MOST_RANGES = 200


@dataclass(frozen=True, slots=True)
class JobName:
    """The name of a job: ``17``, a member ``17_2``, or a part of an array ``17_5-9``."""

    id: int
    part: Indexes | None = None

    @classmethod
    def parse(cls, text: str) -> JobName:
        """Return the job, member or part that *text* names.

        Raises:
            BadRequest: *text* is no name of a job.

        """
        found = re.fullmatch(r"([1-9][0-9]{0,15})(?:_([0-9,-]+))?", text)
        if found is None or int(found[1]) > MAX_ID:
            raise BadRequest(f"{brief(text)} is no job: write 17, or of an array a member 17_2 or a part 17_5-9")
        return cls(int(found[1]), Indexes.parse(found[2]) if found[2] else None)

    @property
    def member(self) -> Member | None:
        """Return the member, if the name has exactly one index; else None."""
        if self.part is None or len(self.part) != 1:
            return None
        return Member(self.id, next(iter(self.part)))

    def each(self) -> Iterator[str]:
        """Yield the names of the single jobs: of each member if this is a part of an array, else the name itself."""
        if self.part is None:
            yield str(self)
        else:
            yield from (f"{self.id}_{index}" for index in self.part)

    def __str__(self) -> str:
        return str(self.id) if self.part is None else f"{self.id}_{self.part}"

    @classmethod
    def of_parts(cls, array_id: int, indexes: Indexes) -> Iterator[JobName]:
        """Yield names that together cover these members of an array, in ranges without steps, as scripts require."""
        ranges = [r for each in indexes.ranges for r in ([each] if each.step == 1 else (range(k, k + 1) for k in each))]
        for start in range(0, len(ranges), _MOST_RANGES):
            yield cls(array_id, Indexes(tuple(ranges[start : start + _MOST_RANGES])))


@dataclass(frozen=True, slots=True)
class JobSpan:
    """A range of job ids, ``12-19``, including both ends."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def meant(text: str) -> JobName | JobSpan:
    """Return what *text* names: a job, an array, a member or a part of an array, or a range of ids.

    Raises:
        BadRequest: *text* names no job.

    """
    found = _SPAN.fullmatch(text)
    if found is None:
        return JobName.parse(text)
    first, last = int(found[1]), int(found[2])
    if last < first or last > MAX_ID:
        raise BadRequest(f"{brief(text)} is no range of jobs: write the lower id first, such as 12-19")
    return JobSpan(first, last)


def job_id(value: object) -> int:
    """Return a job's id. A number that no job can have raises JobNotFound."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"a job's id is a whole number, not {brief(value)}")
    if not 0 < value <= MAX_ID:
        raise JobNotFound(f"there is no job {brief(value)}: ids are numbers from 1 up")
    return value


def job_name(value: object) -> JobName:
    """Return the parsed name of a job, given as an id or as text: ``17``, ``"17_2"``, ``"17_5-9"``."""
    return JobName.parse(value) if isinstance(value, str) else JobName(job_id(value))


def one_job(value: object) -> JobName:
    """Return the parsed name of exactly one job, given as for :func:`job_name`."""
    name = job_name(value)
    if name.part is not None and name.member is None:
        raise BadRequest(f"{name} is several jobs: name one, or all of {name.id}")
    return name


def whole_job(value: object) -> int:
    """Return the id of a job or of a whole array."""
    name = job_name(value)
    if name.part is not None:
        raise BadRequest(f"{name} is a part of an array, which is changed as a whole: write {name.id}")
    return name.id
