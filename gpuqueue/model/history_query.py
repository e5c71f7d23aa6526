"""Queries to the history: which jobs, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from datetime import datetime
from enum import Enum
from typing import Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model import job_ref, times, validation
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, tags_of
from gpuqueue.model.run import EndingKind, Record
from gpuqueue.text.sanitize import brief

#: Longest text to search for, in characters. SQLite takes patterns of at most 50000 bytes.
MAX_TEXT = 1000
#: Parameters of the API, by the field of :class:`HistoryQuery`, where they have another name.
PARAMETERS: Mapping[str, str] = {"array_id": "array", "states": "state", "endings": "ending", "tags": "tag"}
#: Arguments of :meth:`HistoryQuery.of`, by the field, where they have another name.
ARGUMENTS: Mapping[str, str] = {
    "array_id": "array",
    "min_peak_bytes": "min_peak",
    "min_duration_s": "min_duration",
    "max_duration_s": "max_duration",
}


class Sort(str, Enum):
    """Sort key of a list of jobs. The largest or newest value is first, names ascend, unknown values are last."""

    #: The id, which is the order of submission.
    ID = "id"
    #: The end of the job. Jobs that have not ended are last.
    ENDED = "ended"
    #: The duration of the current or last run.
    DURATION = "duration"
    #: The peak memory of the current or last run.
    PEAK = "peak"
    #: The submitting account, then the newest job first.
    USER = "user"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryQuery:
    """Filters, order and page of a list of jobs. A job must match all filters that are set.

    ``since`` (inclusive) and ``until`` (exclusive) bound the time of submission. ``device`` is a UUID, the start of one
    or ``HOST:INDEX``. ``model`` is a part of a device's name, case-insensitive. Both match if any run of the job was on
    such a device.

    These filters match the current or last run: ``endings``, ``exit_code`` (128 + n also matches signal n, 124 also the
    time limit, 130 also cancelled), ``host``, ``min_peak_bytes`` (the sum over all devices), ``min_duration_s`` and
    ``max_duration_s``. An unknown value matches no filter.

    ``name`` is the whole name or a shell pattern such as ``sweep*``. ``array_id`` selects the members of that array.
    ``user`` is the name of the submitting account, ``owner`` the whole account: its name and its uid. ``tags`` must all
    be tags of the job. ``text`` is a part of the command or of the note, case-insensitive for ASCII letters.

    ``metric`` is the name of a metric: its last value in the current or last run is the order, in place of ``sort``.
    What is no finite number comes last.

    To get the next page in any order, set ``after_id`` to the id of the last job seen. New jobs then cause neither
    duplicates nor gaps. ``before_id`` selects jobs with a lower id, whatever the order.
    """

    user: str | None = None
    owner: Account | None = None
    name: str | None = None
    states: tuple[JobState, ...] = ()
    endings: tuple[EndingKind, ...] = ()
    exit_code: int | None = None
    array_id: int | None = None
    tags: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    device: str | None = None
    model: str | None = None
    host: str | None = None
    min_peak_bytes: int | None = None
    min_duration_s: float | None = None
    max_duration_s: float | None = None
    text: str | None = None
    sort: Sort = Sort.ID
    reverse: bool = False
    limit: int = 50
    before_id: int | None = None
    after_id: int | None = None
    metric: str | None = None

    @classmethod
    def of(  # noqa: PLR0913 - one argument for each criterion
        cls,
        *,
        user: str | None = None,
        name: str | None = None,
        states: Sequence[JobState | str] = (),
        endings: Sequence[EndingKind | str] = (),
        exit_code: int | None = None,
        array: int | None = None,
        tags: Sequence[str] = (),
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        device: str | None = None,
        model: str | None = None,
        host: str | None = None,
        min_peak: str | int | None = None,
        min_duration: str | float | None = None,
        max_duration: str | float | None = None,
        text: str | None = None,
        sort: Sort | str = "id",
        reverse: bool = False,
        limit: int = 50,
        before_id: int | None = None,
        after_id: int | None = None,
        metric: str | None = None,
    ) -> HistoryQuery:
        """Return the query for criteria as a person gives them.

        Args:
            user: The submitting account.
            name: The whole name, or a pattern such as ``"sweep*"``.
            states: The job's state is one of these.
            endings: The ending of the current or last run is one of these.
            exit_code: The exit code of the current or last run. 128 + n also matches a run killed by signal n,
                124 a run that exceeded its time limit, and 130 a cancelled run.
            array: The id of an array. Only its members match.
            tags: The job has all of these tags.
            since: The job was submitted at this time or later: a datetime, or a text such as ``"7d"`` (ago).
            until: The job was submitted before this time, in the same forms.
            device: ``HOST:INDEX``, a UUID or a prefix of one. A job matches if any of its runs used the device.
            model: A part of a device's name, such as ``"A100"``. A job matches if any of its runs used such a device.
            host: The host of the current or last run.
            min_peak: Minimum peak memory of the current or last run, summed over its devices: bytes or ``"20G"``.
            min_duration: Minimum duration of the current or last run: seconds or a text such as ``"2h"``.
            max_duration: Maximum duration, in the same form as *min_duration*.
            text: A part of the command or of the note. ASCII letters match regardless of case.
            sort: ``"id"`` (newest first), ``"ended"``, ``"duration"``, ``"peak"`` or ``"user"``.
            reverse: Reverse the order. Unknown values come last in both orders.
            limit: The largest number of jobs to return.
            before_id: Only jobs with a smaller id.
            after_id: Only jobs after this one in the requested order. For the next page, pass the last job's id.
            metric: The name of a metric whose last value in the current or last run is the order, the largest first,
                in place of *sort*.

        Raises:
            BadRequest: an argument is invalid.

        """
        query = cls(
            user=validation.text_or_none("user", user),
            name=validation.text_or_none("name", name),
            states=validation.words_of("states", states, JobState),
            endings=validation.words_of("endings", endings, EndingKind),
            exit_code=None if exit_code is None else validation.count("exit_code", exit_code),
            array_id=None if array is None else job_ref.job_id(array),
            tags=tags_of(validation.words("tags", tags)),
            since=times.moment("since", since),
            until=times.moment("until", until),
            device=validation.text_or_none("device", device),
            model=validation.text_or_none("model", model),
            host=validation.text_or_none("host", host),
            min_peak_bytes=validation.size_or_none("min_peak", min_peak),
            min_duration_s=validation.duration_or_none("min_duration", min_duration),
            max_duration_s=validation.duration_or_none("max_duration", max_duration),
            text=validation.text_or_none("text", text, most=MAX_TEXT),
            sort=validation.word("sort", sort, Sort),
            reverse=bool(reverse),
            limit=validation.count("limit", limit),
            before_id=None if before_id is None else job_ref.job_id(before_id),
            after_id=None if after_id is None else job_ref.job_id(after_id),
            metric=_metric_name(metric),
        )
        times.ordered(query.since, query.until)
        shortest, longest = query.min_duration_s, query.max_duration_s
        if shortest is not None and longest is not None and longest < shortest:
            raise BadRequest("--max-duration must not be less than --min-duration: no run is both")
        return query

    @property
    def is_by_id(self) -> bool:
        """Whether the order is that of the ids."""
        return self.sort is Sort.ID and self.metric is None

    @property
    def is_about_runs(self) -> bool:
        """Whether a job without a run matches none of the criteria."""
        of_runs = (self.exit_code, self.device, self.model, self.host, self.min_peak_bytes, self.min_duration_s)
        return bool(self.endings) or self.max_duration_s is not None or any(each is not None for each in of_runs)

    def parameters(self) -> dict[str, Any]:
        """Return the query as parameters of the API. What is not set is left out.

        Raises:
            BadRequest: an owner is set, which the API has no parameter for.

        """
        if self.owner is not None:
            raise BadRequest("a service finds the jobs of a user, not those of an owner")
        return {
            PARAMETERS.get(each.name, each.name): value
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None and value != ()
        }

    def must_fold(self) -> None:
        """Check that the members of arrays can be folded into one row each.

        Raises:
            BadRequest: they cannot be in this order, or the query is for the members of one array.

        """
        if not self.is_by_id and (self.sort is not Sort.ENDED or self.metric is not None):
            raise BadRequest("members are folded in the order of ids or of ends only: leave out sort, or list them")
        if self.array_id is not None:
            raise BadRequest("the members of one array are not folded: leave out array, or search for the members")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldedRow:
    """A job, or an array with the number of its matching members in each state.

    The next page continues after ``last_id``: the id of the job, or the last id of the array in the requested order.
    """

    record: Record
    last_id: int
    members: Mapping[JobState, int] = field(default_factory=dict)

    #: What the API sends beside the fields.
    DERIVED = ("words",)

    @property
    def words(self) -> str:
        """The numbers of the members, in words, those that succeeded last; empty for a job."""
        good_last = sorted(self.members, key=lambda state: state is JobState.SUCCEEDED)
        return ", ".join(f"{self.members[state]} {state}" for state in good_last)


def _metric_name(name: str | None) -> str | None:
    """Return the name of a metric.

    Raises:
        BadRequest: *name* cannot be one.

    """
    from gpuqueue.model.job_values import NAME  # noqa: PLC0415 - few searches name a metric

    found = validation.text_or_none("metric", name)
    if found is not None and not NAME.fullmatch(found):
        raise BadRequest(f"{brief(found)} is no name of a metric")
    return found
