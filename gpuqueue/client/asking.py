"""What has happened: questions to the book."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from gpuqueue.client import validation
from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import JobState
from gpuqueue.model.tags import tags_of

if TYPE_CHECKING:
    from gpuqueue.model import run as runs
    from gpuqueue.model.array import Indexes
    from gpuqueue.model.history_query import Sort
    from gpuqueue.model.run import EndingKind, Record
    from gpuqueue.model.statistics import By, Course, Statistics
else:
    runs = later("gpuqueue.model.run")

#: What statistics are of if nobody says since when.
STATS_PERIOD = timedelta(days=30)


class Asking(Connection):
    """Asks the history."""

    def history(  # noqa: PLR0913 - each is one thing that a person may ask for
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        states: Sequence[JobState] = (),
        endings: Sequence[EndingKind] = (),
        exit_code: int | None = None,
        array: int | None = None,
        tags: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
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
    ) -> list[Record]:
        """Return the first *limit* jobs that match all that is given, with their runs, in the order of *sort*.

        Args:
            user: The submitting account.
            name: The whole name, or a pattern such as ``"sweep*"``.
            states: One of these.
            endings: How the current or last run ended: one of these.
            exit_code: That of the current or last run; 128 + n is also of one that signal n killed,
                124 of one that was out of time, and 130 of one that was cancelled.
            array: The id of the array whose members they are.
            tags: Words that all are tags of the job.
            since: Submitted then or later.
            until: Submitted before.
            device: ``HOST:INDEX``, a UUID or its start; a job matches if any of its runs was there.
            model: A part of a device's name, such as ``"A100"``; as with *device*.
            host: Where the current or last run is or was.
            min_peak: Peak memory of the current or last run, over all its devices, in bytes or such as ``"20G"``.
            min_duration: How long it took, in seconds or such as ``"2h"``.
            max_duration: As *min_duration*.
            text: A part of the command or of the note; the case of ASCII letters does not count.
            sort: ``"id"`` (newest first), ``"ended"``, ``"duration"``, ``"peak"`` or ``"user"``.
            reverse: The other way round. What is not known stands last in either.
            limit: How many at most.
            before_id: Only jobs older than this one.
            after_id: Go on after this job in the order asked for: the next page, where it was the last seen.

        Raises:
            BadRequest: something makes no sense.
            JobNotFound: the book does not have the job *after_id*, and the order needs it.

        """
        from gpuqueue.model.history_query import MAX_TEXT, HistoryQuery, Sort  # noqa: PLC0415 - as in book: a submit asks nothing

        query = HistoryQuery(
            user=validation.text_or_none("user", user),
            name=validation.text_or_none("name", name),
            states=validation.words_of("states", states, JobState),
            endings=validation.words_of("endings", endings, runs.EndingKind),
            exit_code=None if exit_code is None else validation.count("exit_code", exit_code),
            array_id=None if array is None else validation.job_id(array),
            tags=tags_of(validation.words("tags", tags)),
            since=validation.moment_or_none("since", since),
            until=validation.moment_or_none("until", until),
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
            before_id=None if before_id is None else validation.job_id(before_id),
            after_id=None if after_id is None else validation.job_id(after_id),
        )
        return self.book.history(query)

    def never_began(self, array: int) -> Indexes:
        """Return which members of an array were cancelled before any device took them: no history has a line of them.

        Raises:
            BadRequest: *array* is no id.

        """
        return self.book.never_began(validation.job_id(array))

    def stats(
        self,
        by: By | str = "user",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str | None = None,
    ) -> Statistics:
        """Return what the runs of a period come to, by ``"user"``, ``"device"``, ``"host"`` or local ``"day"``.

        Args:
            by: What makes a group.
            since: The last thirty days if nothing is said.
            until: Now if nothing is said; what lies in the future is left out.
            user: Only this user's jobs.

        Raises:
            BadRequest: something makes no sense, or the period has more than MAX_STEPS days to tell apart.

        """
        from gpuqueue.model.statistics import MAX_STEPS, By  # noqa: PLC0415 - as in history

        start, end = self._period(since, until)
        if validation.word("by", by, By) is By.DAY and (end - start).days >= MAX_STEPS:
            raise BadRequest(f"a table by day takes at most {MAX_STEPS} days: ask for a part of them")
        name = validation.text_or_none("user", user)
        return self.book.statistics(by=validation.word("by", by, By), since=start, until=end, user=name)

    def course(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        steps: int = 30,
        user: str | None = None,
    ) -> Course:
        """Return how a period went, in so many equal *steps*; its ends and *user* as in :meth:`stats`.

        Raises:
            BadRequest: something makes no sense.

        """
        from gpuqueue.model.statistics import MAX_STEPS  # noqa: PLC0415 - as in history

        start, end = self._period(since, until)
        if not 1 <= validation.count("steps", steps) <= MAX_STEPS:
            raise BadRequest(f"steps must be from 1 to {MAX_STEPS}, not {steps}")
        return self.book.course(since=start, until=end, count=steps, user=validation.text_or_none("user", user))

    def _period(self, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
        now = datetime.now(timezone.utc)
        given = validation.moment_or_none("until", until)
        end = now if given is None else min(given, now)
        start = validation.moment_or_none("since", since) or end - STATS_PERIOD
        if end <= start:
            raise BadRequest("nothing lies between since and until, or it is all in the future")
        return start, end
