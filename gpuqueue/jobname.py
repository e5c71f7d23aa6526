"""What people call jobs: the one place where such names are read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuqueue.array import Indexes, Member
from gpuqueue.errors import BadRequest
from gpuqueue.words import brief


@dataclass(frozen=True, slots=True)
class JobName:
    """What people call a job: ``17``, a member ``17_2``, or a part of an array ``17_5-9``."""

    id: int
    part: Indexes | None = None

    @classmethod
    def parse(cls, text: str) -> JobName:
        """Return what *text* names.

        Raises:
            BadRequest: it is no name of a job.

        """
        found = re.fullmatch(r"([1-9][0-9]{0,15})(?:_([0-9,-]+))?", text)
        if found is None or int(found[1]) > 2**53:
            raise BadRequest(f"{brief(text)} is no job: write 17, or of an array a member 17_2 or a part 17_5-9")
        return cls(int(found[1]), Indexes.parse(found[2]) if found[2] else None)

    @property
    def member(self) -> Member | None:
        """Return the one member that is meant, None where it is another job or several."""
        if self.part is None or len(self.part) != 1:
            return None
        return Member(self.id, next(iter(self.part)))

    def each(self) -> Iterator[str]:
        """Yield the names of the jobs that are meant, one by one: the members of a part, else the name itself."""
        if self.part is None:
            yield str(self)
        else:
            yield from (f"{self.id}_{index}" for index in self.part)

    def __str__(self) -> str:
        return str(self.id) if self.part is None else f"{self.id}_{self.part}"
