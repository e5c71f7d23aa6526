"""What a job may wait for besides a device: other jobs, a start time, a release by a user. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: Most jobs that one job may wait for.
MOST_DEPENDENCIES = 1000
#: Accepted forms of a start time, for help texts and error messages; the words that mean no later start.
BEGINS, AT_ONCE = "2h, 16:00, 3am, tomorrow, fri 18:00, 2026-11-01 or 2026-11-01T09:00", frozenset({"now", "none"})
#: Largest id of a job that another job can wait for.
_MAX_ID = 10**15 - 1
_KEY = pattern(r"[A-Za-z0-9_.@+:-]{1,128}")
_MEMBER = pattern(r"[1-9][0-9]{0,14}_[0-9]")
_DEPENDENCY = pattern(r"([1-9][0-9]{0,14})(?::([a-z]+))?")


class Condition(str, Enum):
    """How a dependency must have ended."""

    #: The job succeeded.
    OK = "ok"
    #: The job ended in any state.
    ANY = "any"
    #: The job failed, was lost or was cancelled.
    FAIL = "fail"
    #: Each member of an array waits until the member of its index in another array has succeeded (Slurm: aftercorr).
    CORR = "corr"

    def __str__(self) -> str:
        return self.value

    @property
    def ended(self) -> str:
        """Return how the job must have ended, as a participle: it has ``succeeded``."""
        words = {Condition.ANY: "ended", Condition.FAIL: "failed", Condition.CORR: "succeeded, member by member"}
        return words.get(self, "succeeded")


#: The dependencies of Slurm that there are here.
OF_SLURM = {
    "afterok": Condition.OK,
    "afterany": Condition.ANY,
    "afternotok": Condition.FAIL,
    "aftercorr": Condition.CORR,
}
#: What to know in place of the others.
_IN_PLACE = {
    "after": "a job waits for the end of another, not for its start: --after 12:any",
    "singleton": "in place of it: --dedupe KEY, with which a second submit queues nothing while the first job is there",
}


@dataclass(frozen=True, slots=True)
class Dependency:
    """Another job, and how it must have ended."""

    job_id: int
    condition: Condition = Condition.OK

    def __post_init__(self) -> None:
        """Validate the id and the condition.

        Raises:
            BadRequest: the id is no valid job id, or the condition is no :class:`Condition`.

        """
        if type(self.job_id) is not int or not 0 < self.job_id <= _MAX_ID:
            raise BadRequest(f"a job to wait for is named by its id, not {brief(self.job_id)}")
        if not isinstance(self.condition, Condition):
            raise BadRequest(
                f"the condition of a dependency must be {', '.join(Condition)}, not {brief(self.condition)}"
            )

    def __str__(self) -> str:
        return f"{self.job_id}:{self.condition}"

    @classmethod
    def parse(cls, text: str) -> tuple[Dependency, ...]:
        """Return the dependencies in *text*, such as ``12`` or ``12:any,13:fail``. The default condition is ``ok``.

        Raises:
            BadRequest: *text* is malformed, or names a member of an array.

        """
        found = []
        for word in text.split(","):
            match = _DEPENDENCY.fullmatch(word.strip())
            if _MEMBER.match(word.strip()):
                raise BadRequest(f"{brief(word)}: a job can wait only for a whole array: write {word.split('_')[0]}")
            if match is None or match[2] not in {None, *(each.value for each in Condition)}:
                raise BadRequest(f"{brief(word)} is no job to wait for: {_meant(text)}")
            found.append(cls(int(match[1]), Condition(match[2] or Condition.OK)))
        return tuple(found)


def _meant(text: str) -> str:
    """Return what to type in place of *text*, such as ``afterok:12:13`` of Slurm."""
    typed = []
    for word in text.split(","):
        kind, *ids = word.strip().split(":")
        condition = OF_SLURM.get(kind)
        if kind in _IN_PLACE:
            return _IN_PLACE[kind]
        if condition is None or not ids or not all(map(_DEPENDENCY.fullmatch, ids)):
            return "write --after 12, or 12:ok, 12:any, 12:fail, 12:corr; several with commas"
        typed += ids if condition is Condition.OK else [f"{number}:{condition}" for number in ids]
    return f"did you mean --after {','.join(typed)}?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """What a job waits for before it waits for a device.

    ``after`` are its dependencies, ``begin_at`` is its earliest start. With ``hold`` the job is submitted in the state
    held. At most one job of a user with the same ``dedupe`` key waits or runs at a time.
    """

    after: tuple[Dependency, ...] = ()
    begin_at: datetime | None = None
    hold: bool = False
    dedupe: str | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: a field is of the wrong type or out of range.

        """
        self._check_types()
        if len(self.after) > MOST_DEPENDENCIES:
            raise BadRequest(f"a job can wait for at most {MOST_DEPENDENCIES} others, not {len(self.after)}")
        if len({each.job_id for each in self.after}) < len(self.after):
            raise BadRequest("a job can wait for each other job only once: name it once")
        if sum(each.condition is Condition.CORR for each in self.after) > 1:
            raise BadRequest("an array can follow only one other array member by member: name one with :corr")
        if self.dedupe is not None and not _KEY.fullmatch(self.dedupe):
            raise BadRequest(f"{brief(self.dedupe)} is no dedupe key: 1 to 128 letters, digits and _ . @ + : - only")
        if self.begin_at is not None and self.begin_at.tzinfo is None:
            raise BadRequest(f"begin must be a datetime with a time zone, not {brief(self.begin_at)}")

    @property
    def followed(self) -> int | None:
        """Return the array that is followed member by member, None if there is none."""
        return next((each.job_id for each in self.after if each.condition is Condition.CORR), None)

    def _check_types(self) -> None:
        """Refuse values of a wrong type, which a program can pass and the command line cannot."""
        words: tuple[tuple[str, object, tuple[type, ...], str], ...] = (
            ("after", self.after, (tuple,), "a tuple of Dependency"),
            ("begin", self.begin_at, (datetime, type(None)), "a datetime with a time zone"),
            ("hold", self.hold, (bool,), "true or false"),
            ("the dedupe key", self.dedupe, (str, type(None)), "text"),
        )
        each_after = [("after", each, (Dependency,), "a tuple of Dependency") for each in _each(self.after)]
        for what, value, kinds, wanted in (*words, *each_after):
            if not isinstance(value, kinds):
                raise BadRequest(f"{what} must be {wanted}, not {brief(value)}")


def _each(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


NO_WAITS = Waits()
