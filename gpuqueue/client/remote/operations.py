"""The operations of the API that are one question and one answer. Each is listed once, in ``OPERATIONS``.

The route of the service and its OpenAPI entry follow from an entry (:mod:`gpuqueue.service.routes.described`), and so
does the method of the remote client, which has the arguments of the direct one. What is more than that is written by
hand: streams, files, long waits, submits, pages of long lists, and what only the client's process knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

from gpuqueue.client.remote.link import NOTHING, segment
from gpuqueue.codec.wire import type_named
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model import job_ref, times, validation
from gpuqueue.model.job import JobState
from gpuqueue.settings.parsers import read_host

if TYPE_CHECKING:
    from gpuqueue.client import selection
    from gpuqueue.model import code_snapshot, statistics
else:
    code_snapshot = later("gpuqueue.model.code_snapshot")
    selection = later("gpuqueue.client.selection")
    statistics = later("gpuqueue.model.statistics")

Group = TypeVar("Group", bound=type)


@dataclass(frozen=True, slots=True)
class Operation:
    """How an operation is asked for: the HTTP method and the path below the API, with its first argument in braces.

    The other arguments are in the query of a GET, and else in the body. ``answer`` names the type of the answer, and
    ``part`` the field of it that the client's method returns, None for the whole.
    """

    method: str
    path: str
    answer: str = "None"
    part: str | None = None


#: The operations, by the method of the client: its group, and its name.
OPERATIONS: Mapping[str, Operation] = {
    "access.audit": Operation("GET", "/audit", "tuple[AuditEntry, ...]"),
    "access.revoke_token": Operation("DELETE", "/tokens/{token_id}", "AccessToken"),
    "access.sign_in_code": Operation("POST", "/web/codes", "SignInCode"),
    "access.tokens": Operation("GET", "/tokens", "tuple[AccessToken, ...]"),
    "access.whoami": Operation("GET", "/me", "Me"),
    "cron.list": Operation("GET", "/repeating-jobs", "tuple[RepeatingJob, ...]"),
    "cron.pause": Operation("POST", "/repeating-jobs/{name}/pause", "RepeatingJob"),
    "cron.remove": Operation("POST", "/repeating-jobs/{name}/remove", "RepeatingJob"),
    "cron.resume": Operation("POST", "/repeating-jobs/{name}/resume", "RepeatingJob"),
    "cron.run": Operation("POST", "/repeating-jobs/{name}/run", "RepeatingJob"),
    "devices.cancel_reservation": Operation("POST", "/reservations/{reservation}/cancel"),
    "devices.limits": Operation("GET", "/limits", "LimitsInUse"),
    "devices.list": Operation("GET", "/devices", "list[DeviceStatus]"),
    "devices.lost": Operation("POST", "/hosts/{host}/lost", "dict[int, JobState]"),
    "devices.reservations": Operation("GET", "/reservations", "tuple[CalendarReservation, ...]"),
    "history.course": Operation("GET", "/stats/course", "Course"),
    "history.has": Operation("GET", "/history/{job_id}/known", "Whether", "answer"),
    "history.learning": Operation("GET", "/stats/learning", "LearningReport"),
    "history.never_began": Operation("GET", "/history/{job_id}/never-began", "NeverBegan", "indexes"),
    "history.stats": Operation("GET", "/stats", "Statistics"),
    "jobs.cancel": Operation("POST", "/jobs/{name}/cancel", "Change"),
    "jobs.choose": Operation("GET", "/job-choice", "tuple[Chosen, ...]"),
    "jobs.choose_ended": Operation("GET", "/ended-job-choice", "tuple[Chosen, ...]"),
    "jobs.events": Operation("GET", "/jobs/{name}/events", "tuple[Event, ...]"),
    "jobs.extend": Operation("POST", "/jobs/{name}/extend", "Job"),
    "jobs.get": Operation("GET", "/jobs/{name}", "Job"),
    "jobs.hold": Operation("POST", "/jobs/{name}/hold", "Change"),
    "jobs.move": Operation("POST", "/jobs/{name}/move", "Moved", "state"),
    "jobs.must_own": Operation("GET", "/me/may-change", "Whether", "why"),
    "jobs.named": Operation("GET", "/job-names", "tuple[str, ...]"),
    "jobs.newest": Operation("GET", "/jobs/{name}/newest", "Record"),
    "jobs.nobody_sends": Operation("GET", "/notification-trouble", "Whether", "why"),
    "jobs.note": Operation("PUT", "/jobs/{name}/note"),
    "jobs.release": Operation("POST", "/jobs/{name}/release", "Change"),
    "jobs.retries": Operation("GET", "/jobs/{name}/retries", "tuple[int, ...]"),
    "jobs.senders": Operation("GET", "/notification-senders", "tuple[Sender, ...]"),
    "jobs.tag": Operation("POST", "/jobs/{name}/tags"),
    "jobs.why": Operation("GET", "/jobs/{name}/why", "Why"),
    "snapshots.delete": Operation("DELETE", "/snapshots/{address}", "DeletedSnapshot"),
    "snapshots.diff": Operation("GET", "/jobs/{name}/diff", "bytes"),
    "snapshots.list": Operation("GET", "/snapshots", "tuple[StoredSnapshot, ...]"),
}


def _address(value: str) -> str:
    return code_snapshot.address_word(value)


#: What checks an argument before it is sent, by its name. Other arguments are checked by the service alone.
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    **{each: partial(validation.text_or_none, each) for each in ("user", "name", "tag", "action")},
    **{each: partial(validation.count, each) for each in ("limit", "steps")},
    **{each: partial(times.moment, each) for each in ("since", "until")},
    "address": _address,
    "array": job_ref.job_id,
    "by": lambda value: validation.word("by", value, statistics.By),
    "host": read_host,
    "job": job_ref.job_name,
    "state": lambda value: None if value is None else validation.word("state", value, selection.StateFilter),
    "states": lambda value: validation.words_of("states", value, JobState),
    "time": validation.added_time,
    "text": partial(validation.text_or_none, "a note"),
    "which": lambda value: validation.word("which", value, selection.Which),
    "words": partial(validation.words, "tags"),
}
#: The parameters of the API that have another name than the argument.
_PARAMETERS = {"states": "state"}


def asking(group: str) -> Callable[[Group], Group]:
    """Return a decorator that gives the remote class of *group* its methods in OPERATIONS.

    The class must inherit from the direct one. It has its link to the service as ``_link``.
    """

    def decorate(remote: Group) -> Group:
        for name, entry in OPERATIONS.items():
            of_group, _, method = name.partition(".")
            if of_group == group:
                setattr(remote, method, _method(entry, getattr(remote, method)))
        return remote

    return decorate


def _method(entry: Operation, direct: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that asks the service for *entry*, with the arguments of the method *direct*."""

    @wraps(direct)
    def ask(self: Any, *args: Any, **named: Any) -> Any:
        given = signature(direct).bind(self, *args, **named)
        given.apply_defaults()
        values = {name: _CHECKS.get(name, _unchecked)(value) for name, value in [*given.arguments.items()][1:]}
        before, _, rest = entry.path.partition("{")
        path = before + segment(values.pop(next(iter(values)))) + rest.partition("}")[2] if rest else before
        sent = {_PARAMETERS.get(name, name): value for name, value in values.items()}
        where = "query" if entry.method == "GET" else "body"
        answer = self._link.send(entry.method, path, kind=type_named(entry.answer) or NOTHING, **{where: sent or None})
        return answer if entry.part is None else getattr(answer, entry.part)

    return ask


def _unchecked(value: Any) -> Any:
    return value
