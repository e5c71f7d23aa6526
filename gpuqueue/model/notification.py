"""Notifications at the end of a job, and when it is idle. Pure. See docs/internals/adr/0009."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief, plain

#: Most notifications of one job.
MOST_NOTIFICATIONS = 16
#: The number of the first notification before the end: that a run is idle, or of an array that its rest is held. Those
#: before it are about the end of the job. Both kinds are in the order of the job's targets.
FIRST_ABOUT_IDLE = MOST_NOTIFICATIONS
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


def target_number(number: int) -> int:
    """Return the place in the job's targets of the notification *number*."""
    return number % FIRST_ABOUT_IDLE


def is_about_idle(number: int) -> bool:
    """Return whether the notification *number* says that a run is idle, or that the rest of an array is held."""
    return number >= FIRST_ABOUT_IDLE


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

    From ``FIRST_ABOUT_IDLE`` on it is about an idle run or a held array: see :func:`target_number`.
    """

    number: int
    tries: int = 0
    outcome: Outcome | None = None
    at: datetime | None = None
    trouble: str | None = None
