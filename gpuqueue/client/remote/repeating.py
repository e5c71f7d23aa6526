"""The group ``client.cron`` over the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuqueue.client.remote.link import Link
from gpuqueue.client.remote.operations import asking
from gpuqueue.client.remote.submit import new_job, warn_from
from gpuqueue.client.repeating import Cron
from gpuqueue.model.repeating import RepeatingJob

if TYPE_CHECKING:
    from gpuqueue.model.job_request import JobRequest


@asking("cron")
class RemoteCron(Cron):
    """The repeating jobs at the site of a service."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def add(
        self,
        times: str,
        request: JobRequest,
        *,
        zone: str | None = None,
        overlap: bool = False,
        catch_up: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> RepeatingJob:
        """Have the service submit *request* again and again. Its code is that of now, if it travels."""
        rules = {"times": times, "zone": zone, "overlap": overlap, "catch_up": catch_up}
        body = {**rules, "job": new_job(self._link, request, note)}
        made, answer = self._link.answered("POST", "/repeating-jobs", body, kind=RepeatingJob)
        warn_from(answer, note)
        return made
