"""The progress of jobs that run on other hosts.

The workers of those hosts read it from the logs, and keep it beside them. The relay of a host sends it when somebody
looks at the queue: one short request for all runs of the host, whose answer all viewers share for a second. If workers
wrote it to the store instead, each heartbeat would make a write to the store longer, and everybody with access to the
store could read it without the right to see the output. Sending the logs would move gigabytes for one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from gpuqueue.model.job import Job
from gpuqueue.model.progress import Progress, Reading
from gpuqueue.model.relay import RunProgress
from gpuqueue.service.relay_requests import ProgressRequest
from gpuqueue.service.relays import Relays
from gpuqueue.system.progress_file import MOST_COLUMNS
from gpuqueue.text.sanitize import short
from gpuqueue.text.units import MAX_S

#: For how long an answer is new, and for how long it is shown if no newer one comes, in seconds.
FRESH_S, SHOWN_S = 1.0, 10.0
#: How long viewers wait for an answer, and for how long a host that was late is not asked again, in seconds.
WAIT_S, LATE_S = 1.0, 10.0
#: Most hosts whose progress is kept.
MOST_HOSTS = 1000

#: The progress of runs, by job and attempt.
Known = Mapping[tuple[int, int], Reading]


class _Host:
    """The last answer of one host, and the request that goes on. Times are on the monotonic clock."""

    def __init__(self) -> None:
        self.known: Known = {}
        self.answered_s = self.late_s = float("-inf")
        self.asked: ProgressRequest | None = None


class HostProgress:
    """What the relays of all hosts have answered. Use it in the event loop only."""

    def __init__(self, relays: Relays) -> None:
        self._relays = relays
        self._hosts: OrderedDict[str, _Host] = OrderedDict()

    async def of(self, jobs: Iterable[Job]) -> dict[int, Reading]:
        """Return the progress of *jobs*, which run on other hosts, by job id. A host that does not answer has none."""
        jobs = list(jobs)
        names = sorted({job.host for job in jobs if job.host is not None})
        answers = dict(zip(names, await asyncio.gather(*map(self._of_host, names)), strict=True))
        # A host answers only for its own jobs: those that the queue knows to run there.
        found = ((job.id, answers.get(job.host or "", {}).get((job.id, job.attempt))) for job in jobs)
        return {job_id: reading for job_id, reading in found if reading is not None}

    async def _of_host(self, name: str) -> Known:
        host = self._hosts.setdefault(name, _Host())
        self._hosts.move_to_end(name)
        if len(self._hosts) > MOST_HOSTS:
            self._hosts.popitem(last=False)
        now_s = time.monotonic()
        if now_s - host.answered_s >= FRESH_S and now_s - host.late_s >= LATE_S:
            await self._ask(name, host)
        return host.known if time.monotonic() - host.answered_s < SHOWN_S else {}

    async def _ask(self, name: str, host: _Host) -> None:
        """Wait for an answer of the host *name*, if it has a relay. A late answer is kept, too."""
        if host.asked is None:
            asked = self._relays.progress(name)
            if asked is None:
                return
            host.asked = asked
            loop = asyncio.get_running_loop()
            end = loop.call_later(SHOWN_S, asked.end)

            def note(answer: asyncio.Future[Sequence[RunProgress] | None]) -> None:
                end.cancel()
                host.asked = None
                runs = answer.result()
                if runs is not None:
                    host.known, host.answered_s = _checked(runs), time.monotonic()

            asked.answer.add_done_callback(note)
        answer = host.asked.answer
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            await asyncio.wait_for(asyncio.shield(answer), WAIT_S)
            return
        host.late_s = time.monotonic()


def _checked(runs: Iterable[RunProgress]) -> Known:
    """Return what a host says of its runs, without what cannot be. The counts were read from logs there."""
    found = {}
    for run in runs:
        attempt = run.token.partition(".")[0]
        if 0 <= run.share <= 1 and attempt.isascii() and attempt.isdecimal() and len(attempt) < 10:  # noqa: PLR2004 - digits
            left_s = None if run.left_s is None else min(max(0.0, run.left_s), MAX_S)
            counts = short(run.counts, MOST_COLUMNS)
            progress = Progress(share=run.share, counts=counts, left_s=left_s)
            found[run.job, int(attempt)] = Reading(progress, is_sure=run.is_sure)
    return found
