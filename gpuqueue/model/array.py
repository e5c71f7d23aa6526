"""Job arrays: their indexes and their members. Pure. The parameters of a sweep are in sweep.py.

An **array** is one job in the queue that stands for many similar jobs. Each of its **members** has an **index** and
becomes a job of its own when a device claims it. A **sweep** is an array whose members go through all combinations of
some values. Member *k* of array *A* has the id ``A + 1 + k``. The queue reserves these ids together with the array's
id. Users write the member as ``A_k``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later, pattern
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.model import sweep as sweeping
    from gpuqueue.model.sweep import Axis
else:
    sweeping = later("gpuqueue.model.sweep")

#: Every index is below this, so an array has at most this many members.
MOST_MEMBERS = 1_000_000
#: Longest text of indexes, in characters. Each claim of a member carries the text.
MOST_TEXT = 4000

#: Matches numbers above the limit too, so that the error can name the limit. ``int()`` refuses more than 4300 digits.
_RANGE = pattern(r"([0-9]{1,4000})(?:-([0-9]{1,4000})(?::([0-9]{1,4000}))?)?")
#: The placeholder ``{name}``, or ``{{name}}`` for a literal ``{name}``.
_PLACEHOLDER = pattern(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|\{([A-Za-z0-9_]+)\}")

#: ``{name}`` where it looks like a placeholder: neither ``${name}`` nor ``{{name}}``.
_LIKELY_PLACEHOLDER = re.compile(r"(?<![{$])\{([A-Za-z_][A-Za-z0-9_]*)\}(?!\})")
_VARIABLE = pattern(r"GPUQUEUE_SWEEP_[A-Z0-9_]+")


@dataclass(frozen=True, slots=True)
class Indexes:
    """Indexes of an array, as the ranges in which the user wrote them: ``0-99``, ``0-20:2,50``."""

    ranges: tuple[range, ...] = ()

    AS_TEXT = "Indexes of an array, such as 0-99 or 0-20:2,50."

    @classmethod
    def parse(cls, text: str) -> Indexes:
        """Return the indexes that *text* names. An empty text names none.

        Raises:
            BadRequest: *text* is malformed, or an index is too large.

        """
        return cls(tuple(map(_range, text.split(",")))) if text else cls()

    @classmethod
    def of(cls, indexes: Iterable[int]) -> Indexes:
        """Return *indexes* in ascending order, as the fewest ranges without steps."""
        ranges: list[range] = []
        for index in sorted(set(indexes)):
            if ranges and ranges[-1].stop == index:
                ranges[-1] = range(ranges[-1].start, index + 1)
            else:
                ranges.append(range(index, index + 1))
        return cls(tuple(ranges))

    def __str__(self) -> str:
        return ",".join(map(_text, self.ranges))

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def __contains__(self, index: object) -> bool:
        return any(index in each for each in self.ranges)

    def __iter__(self) -> Iterator[int]:
        return (index for each in self.ranges for index in each)

    def before(self, index: int) -> int:
        """Return how many of the indexes come before *index*, or 0 if *index* is not among them."""
        passed = 0
        for some in self.ranges:
            if index in some:
                return passed + some.index(index)
            passed += len(some)
        return 0

    @property
    def in_order(self) -> bool:
        """Return whether each range begins above the end of the previous one, so that no index occurs twice."""
        return all(one[-1] < other[0] for one, other in zip(self.ranges, self.ranges[1:], strict=False))


def _range(text: str) -> range:
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise BadRequest(f"{brief(text)} names no indexes: write them like 0-99, 0-20:2 or 1,5,7-9")
    first, step = int(found[1]), int(found[3] or 1)
    last = int(found[2] or first)
    if last < first or step < 1:
        raise BadRequest(f"{brief(text)} names no index: write the smaller number first, and no step of 0")
    if last >= MOST_MEMBERS:
        raise BadRequest(f"{brief(text)}: an index is at most {MOST_MEMBERS - 1}")
    return range(first, last + 1, step)


def _text(indexes: range) -> str:
    if len(indexes) == 1:
        return str(indexes[0])
    return f"{indexes[0]}-{indexes[-1]}" + (f":{indexes.step}" if indexes.step > 1 else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Array:
    """The request of an array: its indexes, its concurrency limit ``at_once`` and the axes of its sweep.

    After ``max_failures`` failed members without a success the rest is held. None: as the site says; 0: never. The last
    axis varies fastest. Axes that are linked change together.
    """

    indexes: Indexes
    at_once: int | None = None
    max_failures: int | None = None
    axes: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        """Validate the indexes, the concurrency limit and the axes.

        Raises:
            BadRequest: there is no index, an index occurs twice or out of order, the text of the indexes is too long,
                the concurrency limit or the number of failures is out of range, two axes have the same name, or the
                first axis is linked.

        """
        if not self.indexes.ranges:
            raise BadRequest("an array needs at least one index: write it like 0-99")
        if not self.indexes.in_order:
            raise BadRequest(f"the indexes {brief(str(self.indexes))} do not ascend: name each once, in their order")
        if len(str(self.indexes)) > MOST_TEXT:
            raise BadRequest(f"the indexes take more than {MOST_TEXT} characters: write them as ranges")
        if self.at_once is not None and not 1 <= self.at_once <= MOST_MEMBERS:
            raise BadRequest(f"--at-once must be 1 to {MOST_MEMBERS} members, not {brief(self.at_once)}")
        if self.max_failures is not None and not 0 <= self.max_failures <= MOST_MEMBERS:
            raise BadRequest(f"--max-failures must be 0 to {MOST_MEMBERS} members, not {brief(self.max_failures)}")
        names = [axis.name.lower() for axis in self.axes]
        if len(set(names)) < len(names):
            raise BadRequest("two sweeps have the same name: give each its own (capitals make no difference)")
        if self.axes and self.axes[0].linked:
            raise BadRequest(f"the sweep of {self.axes[0].name} is linked to one before it, and there is none: add it")

    @classmethod
    def parse(cls, text: str) -> Array:
        """Return the array that *text* describes, such as ``0-99`` or ``0-99%8`` (at most 8 at once).

        Raises:
            BadRequest: *text* is malformed.

        """
        indexes, percent, most = text.partition("%")
        if percent and not re.fullmatch(r"[0-9]{1,4000}", most):
            raise BadRequest(f"{brief(text)}: write the number of concurrent members after %, such as 0-99%8")
        return cls(indexes=Indexes.parse(indexes), at_once=int(most) if percent else None)

    @classmethod
    def asked(
        cls, indexes: str | None, axes: Iterable[str], at_once: int | None, max_failures: int | None = None
    ) -> Array | None:
        """Return the array that the options of a submit ask for, or None if they ask for none.

        Raises:
            BadRequest: the options contradict each other, or one is malformed.

        """
        swept = tuple(sweeping.Axis.typed(each) for each in axes)
        if indexes is not None and swept:
            raise BadRequest(
                "an array and a sweep exclude each other: write the index as one more sweep, such as k=0..9"
            )
        if swept:
            return replace(cls.sweep(swept, at_once), max_failures=max_failures)
        if indexes is None:
            for value, what in ((at_once, "a concurrency limit"), (max_failures, "a number of failures")):
                if value is not None:
                    raise BadRequest(f"{what} needs an array or a sweep: add one, such as --array 0-99")
            return None
        found = replace(cls.parse(indexes), max_failures=max_failures)
        if at_once is None:
            return found
        if found.at_once is not None:
            raise BadRequest(f"the concurrency limit is given twice, %{found.at_once} and {at_once}: leave out one")
        return replace(found, at_once=at_once)

    @classmethod
    def sweep(cls, axes: Iterable[Axis], at_once: int | None = None) -> Array:
        """Return the array of all combinations of the values of *axes*.

        Raises:
            BadRequest: there are too many combinations.

        """
        count = 1
        found = tuple(axes)
        for axis in found:
            count *= len(axis)
        if count > MOST_MEMBERS:
            raise BadRequest(f"the sweeps have {count} combinations: at most {MOST_MEMBERS} go into one array")
        return cls(indexes=Indexes((range(count),)), at_once=at_once, axes=found)

    @classmethod
    def of_rows(cls, columns: Mapping[str, Sequence[str]]) -> Array:
        """Return the array with a member for each row of *columns*: name of a parameter -> its value in each row.

        Raises:
            BadRequest: a name is invalid, or a value is empty.

        """
        rows = [*zip(*columns.values(), strict=True)]
        values = {name: [*dict.fromkeys(each)] for name, each in columns.items()}
        if rows == [*islice(product(*values.values()), len(rows) + 1)]:
            return cls.sweep(sweeping.Axis(name, sweeping.exactly(each)) for name, each in values.items())
        texts = enumerate((name, sweeping.exactly(each)) for name, each in columns.items())
        axes = tuple(sweeping.Axis(name, text, linked=place > 0) for place, (name, text) in texts)
        return cls(indexes=Indexes((range(len(rows)),)), axes=axes)

    def __len__(self) -> int:
        return len(self.indexes)

    def values(self, index: int) -> dict[str, str]:
        """Return the value of each placeholder in the member *index*: ``index`` and the name of each axis."""
        found: dict[str, str] = {}
        rest = index
        together: list[Axis] = []
        for axis in reversed(self.axes):
            together.append(axis)
            if not axis.linked:
                rest, place = divmod(rest, len(axis))
                found |= {each.name: each.value(place % len(each)) for each in together}
                together = []
        return {"index": str(index), **dict(reversed(found.items()))}

    def fill(self, text: str, index: int) -> str:
        """Return *text* with each known placeholder ``{name}`` replaced by its value in the member *index*.

        ``{{name}}`` becomes ``{name}``. All other braces stay as they are, so JSON survives.
        """
        if "{" not in text:
            return text
        values = self.values(index)

        def one(found: re.Match[str]) -> str:
            return f"{{{found[1]}}}" if found[1] else values.get(found[2], found[0])

        return _PLACEHOLDER.sub(one, text)

    def unknown(self, texts: Iterable[str]) -> list[str]:
        """Return the names in *texts* that look like placeholders but are unknown.

        JSON, shell variables (``${name}``) and doubled braces do not count as placeholders.
        """
        names = {"index", *(axis.name for axis in self.axes)}
        found = (each[1] for text in texts for each in _LIKELY_PLACEHOLDER.finditer(text))
        return [name for name in dict.fromkeys(found) if name not in names]

    def unused(self, texts: Iterable[str]) -> list[str]:
        """Return the names of the axes that *texts* use neither as a placeholder nor by their environment variable."""
        words = "\n".join(texts)
        used = {each[2] for each in _PLACEHOLDER.finditer(words)}
        variables = {each[0] for each in _VARIABLE.finditer(words)}
        return [axis.name for axis in self.axes if axis.name not in used and axis.variable not in variables]

    def environment(self, index: int, array_id: int) -> dict[str, str]:
        """Return the environment variables that identify the member *index* of the array *array_id*."""
        values = self.values(index)
        return {
            "GPUQUEUE_ARRAY_JOB_ID": str(array_id),
            "GPUQUEUE_ARRAY_INDEX": str(index),
            "GPUQUEUE_ARRAY_COUNT": str(len(self)),
            **{axis.variable: values[axis.name] for axis in self.axes},
        }


@dataclass(frozen=True, slots=True)
class Member:
    """The array that a job belongs to, and the job's index in it."""

    array_id: int
    index: int

    @classmethod
    def of(cls, job_id: int, array_id: int) -> Member:
        """Return the array member with the job id *job_id*."""
        return cls(array_id, job_id - array_id - 1)

    @property
    def id(self) -> int:
        """Return the id of the member's job."""
        return self.array_id + 1 + self.index

    def __str__(self) -> str:
        return f"{self.array_id}_{self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """The progress of an array.

    ``left`` are the members that wait for a claim, ``held`` those that wait for a release. ``ended`` counts the ended
    members by the name of their state. All other members are jobs of their own that have not ended. ``awaiting`` are
    those of ``left`` and ``held`` that wait for their member of the array that this one follows.
    """

    left: Indexes
    held: Indexes
    ended: Mapping[str, int]
    awaiting: Indexes = Indexes()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberEnds:
    """How the members of an array have ended, as the history knows.

    ``good`` succeeded and ``bad`` ended otherwise. ``is_over``: the array has ended. A job that is no array has no
    ``indexes``.
    """

    indexes: Indexes
    good: Indexes
    bad: Indexes
    is_over: bool
