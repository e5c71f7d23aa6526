"""Notifications at the end of a job, and when its run is marked. Pure. See docs/internals/adr/0009."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief, plain

#: Most notifications of one job.
MOST_NOTIFICATIONS = 16
#: The number of the first notification before the end: that a run is marked, or that the rest of an array is held.
#: Those before it are about the end of the job. All kinds are in the order of the job's targets.
FIRST_BEFORE_END = MOST_NOTIFICATIONS
#: The place of each kind of mark among the notifications of a run. The history has their numbers: never change one.
_PLACES = {"idle": 0, "nan": 1, "stalled": 2, "step": 3, "disk": 4}
#: Places of a run: those of unknown kinds share the last one. Runs from the last attempt on share their numbers.
_PLACES_OF_RUN, _LAST_ATTEMPT = 8, 1_000_000
#: Longest target, in characters.
MOST_TEXT = 2000
#: The target whose mail account sends to plain mail addresses.
MAIL = "mail"

#: Patterns, compiled only when needed: most jobs have no notifications.
_NAME = r"[A-Za-z][A-Za-z0-9_-]{0,63}"
_URL = r"[A-Za-z][A-Za-z0-9+.-]{0,31}://\S+"
_ADDRESS = r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,190}"
_FORMS = "a target of the site by its name, a mail address, or a URL such as ntfy://ntfy.sh/TOPIC"


class When(str, Enum):
    """The ends of a job that trigger a notification."""

    #: Any end.
    END = "end"
    #: Any end but success: the job failed, was lost or was cancelled.
    FAIL = "fail"

    def __str__(self) -> str:
        return self.value


class NotificationKind(str, Enum):
    """The kind of destination of a notification."""

    #: A named target of the site's settings. Only the settings hold its secrets.
    TARGET = "target"
    #: A mail address. The site's target ``mail`` sends to it.
    ADDRESS = "address"
    #: A URL of Apprise.
    URL = "url"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification to send at the final end of a job. A URL in ``to`` may hold secrets: display ``shown``."""

    to: str
    when: When = When.END

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: ``to`` is no valid destination, or a field is of the wrong type.

        """
        to: object = self.to
        when: object = self.when
        if not isinstance(to, str) or not isinstance(when, When):
            raise BadRequest(f"{brief(to)} cannot be a target: write {_FORMS}")
        if to.startswith("command:"):
            raise BadRequest("no command runs at a job's end: submit a second job, gpuqueue submit --after ID:any …")
        if len(self.to) > MOST_TEXT or plain(self.to) != self.to or _kind(self.to) is None:
            # A malformed text may be a part of a URL, so the message must not repeat a secret.
            raise BadRequest(f"{brief(masked(self.to))} cannot be a target: write {_FORMS}")

    def __repr__(self) -> str:
        """Return a text without secrets, since it may appear in logs."""
        return f"Notification({self.shown!r}, {self.when})"

    @property
    def kind(self) -> NotificationKind:
        """Return the kind of the destination."""
        found = _kind(self.to)
        assert found is not None  # noqa: S101 - checked in __post_init__
        return found

    @property
    def target(self) -> str | None:
        """Return the name of the site's target that sends this notification, or None if the destination is a URL."""
        return {NotificationKind.TARGET: self.to, NotificationKind.ADDRESS: MAIL}.get(self.kind)

    @property
    def scheme(self) -> str | None:
        """Return the scheme of the URL, or None if the destination is no URL."""
        return self.to.partition("://")[0].lower() if self.kind is NotificationKind.URL else None

    @property
    def shown(self) -> str:
        """Return the destination without secrets: only the scheme of a URL."""
        return masked(self.to)

    def follows(self, *, succeeded: bool) -> bool:
        """Return whether to send the notification for a job that succeeded or did not."""
        return self.when is When.END or not succeeded


def check_notifications(notifications: object) -> None:
    """Check that *notifications* are a tuple of notifications, and no more than a job may have.

    Raises:
        BadRequest: they are of another type, or too many.

    """
    if not isinstance(notifications, tuple) or not all(isinstance(each, Notification) for each in notifications):
        raise BadRequest(f"notifications must be a tuple of Notification, not {brief(notifications)}")
    if len(notifications) > MOST_NOTIFICATIONS:
        raise BadRequest(f"a job can notify at most {MOST_NOTIFICATIONS} targets, not {len(notifications)}")


def first_about(kind: str, attempt: int) -> int:
    """Return the number of the first notification about a mark of this *kind* at the run *attempt* of a job."""
    place = _PLACES.get(kind, _PLACES_OF_RUN - 1)
    return FIRST_BEFORE_END * (1 + place + _PLACES_OF_RUN * (min(max(attempt, 1), _LAST_ATTEMPT) - 1))


def target_number(number: int) -> int:
    """Return the place in the job's targets of the notification *number*."""
    return number % FIRST_BEFORE_END


def is_before_end(number: int) -> bool:
    """Return whether the notification *number* says that a run is marked, or that the rest of an array is held."""
    return number >= FIRST_BEFORE_END


def mark_and_attempt(number: int) -> tuple[str, int]:
    """Return the kind of the mark that the notification *number* is about, and the run; for an array idle and 1."""
    attempt, place = divmod(number // FIRST_BEFORE_END - 1, _PLACES_OF_RUN)
    return next((kind for kind, each in _PLACES.items() if each == place), ""), attempt + 1


def _kind(to: str) -> NotificationKind | None:
    for kind, form in (
        (NotificationKind.URL, _URL),
        (NotificationKind.ADDRESS, _ADDRESS),
        (NotificationKind.TARGET, _NAME),
    ):
        if re.fullmatch(form, to):
            return kind
    return None


def masked(to: str) -> str:
    """Return *to* without secrets: any part of a URL after its scheme may be one."""
    scheme, mark, _ = to.partition("://")
    return f"{scheme}{mark}…" if mark else to


def targets(text: str) -> dict[str, str]:
    """Return the URLs by target name in a setting such as ``team=slack://… mail=mailto://…``.

    Raises:
        BadRequest: an entry is malformed. The message repeats no secret.

    """
    found: dict[str, str] = {}
    for word in text.split():
        name, equals, url = word.partition("=")
        if not equals or not re.fullmatch(_NAME, name):
            raise BadRequest("an entry names no target: write them like team=slack://… mail=mailto://…")
        if not re.fullmatch(_URL, url):
            raise BadRequest(f"target {name} is no URL: write it like {name}=slack://…")
        if name in found:
            raise BadRequest(f"target {name} is named twice")
        found[name] = url
    return found


class Outcome(str, Enum):
    """The outcome of a notification."""

    #: It was sent at least once.
    SENT = "sent"
    #: All tries to send it failed.
    GIVEN_UP = "given_up"
    #: The job did not end in a way that triggers it.
    NOT_NEEDED = "not_needed"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """The delivery state of the notification ``number`` of a job. ``outcome`` is None while delivery is pending.

    From ``FIRST_BEFORE_END`` on it is about a marked run or a held array: see :func:`mark_and_attempt`.
    """

    number: int
    tries: int = 0
    outcome: Outcome | None = None
    at: datetime | None = None
    trouble: str | None = None
