"""Validates notification targets against what the senders have announced that they support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest, Refused, install_extra
from gpuqueue.model import validation
from gpuqueue.model.notification import Notification, When
from gpuqueue.model.validation import NONE

if TYPE_CHECKING:
    from gpuqueue.model.job_request import JobEdit


def notifications_of(
    connection: Connection, on_end: str | Sequence[str], on_fail: str | Sequence[str]
) -> tuple[Notification, ...]:
    """Return the notifications for the end of a job.

    Raises:
        BadRequest: a word is not a target, or the target is unknown.
        Refused: the site accepts no URLs.

    """
    found = parsed(on_end, on_fail)
    judge(connection, found)
    return found


def parsed(on_end: str | Sequence[str], on_fail: str | Sequence[str]) -> tuple[Notification, ...]:
    """Return the notifications for the end of a job. They are not compared with what the senders support.

    Raises:
        BadRequest: a word is not a target.

    """
    words = [("on_end", on_end, When.END), ("on_fail", on_fail, When.FAIL)]
    found = [
        Notification(word, when)
        for name, given, when in words
        for word in ((given,) if isinstance(given, str) else validation.words(name, given))
    ]
    return tuple(dict.fromkeys(found))


def replaced(
    before: Sequence[Notification], on_end: str | Sequence[str] | None, on_fail: str | Sequence[str] | None
) -> tuple[Notification, ...]:
    """Return *before* with the targets of *on_end* and *on_fail* in place of those of that kind; None keeps these.

    Raises:
        BadRequest: a word is not a target, or is a URL as it is shown, without its secrets.

    """
    given = {When.END: on_end, When.FAIL: on_fail}
    ends, fails = (
        () if each in (NONE, (NONE,), [NONE]) else each or () for each in (given[When.END], given[When.FAIL])
    )
    kept = [each for each in before if given[each.when] is None]
    new = parsed(ends, fails)
    hidden = next((each for each in new if each.to == each.shown and each.scheme is not None), None)
    if hidden is not None:
        raise BadRequest(f"{hidden.to} is a URL without its secret part: write all of it")
    return tuple(dict.fromkeys([*kept, *new]))


def judge(connection: Connection, notifications: Sequence[Notification]) -> None:
    """Check that the site can send *notifications*.

    Raises:
        BadRequest: a target is unknown.
        Refused: the site accepts no URLs.

    """
    for notification in notifications:
        _judge(connection, notification)


def made_anew(notifications: Sequence[Notification]) -> tuple[Notification, ...]:
    """Return *notifications* of an account that does not send them itself, with URLs that are made of their fields.

    Raises:
        BadRequest: a URL has a part that is not permitted.

    """
    from gpuqueue.notify.targets import made_of  # noqa: PLC0415 - lazy import: rarely needed

    return tuple(each if each.target is not None else replace(each, to=made_of(each.to)) for each in notifications)


def anew(wanted: JobEdit) -> JobEdit:
    """Return *wanted* of an account that does not send its notifications itself; see :func:`made_anew`."""

    def texts(given: str | Sequence[str] | None) -> Sequence[str] | None:
        return None if given is None else tuple(each.to for each in made_anew(parsed(given, ())))

    return replace(wanted, on_end=texts(wanted.on_end), on_fail=texts(wanted.on_fail))


def _judge(connection: Connection, notification: Notification) -> None:
    from gpuqueue.notify import sending, targets  # noqa: PLC0415 - lazy import: rarely needed, and imports much

    senders = connection.queue.senders.all()
    if notification.target is None:
        urls = [each for each in senders if each.urls]
        if not connection.settings.notify_urls or (senders and not urls):
            raise Refused("this site takes no URLs of jobs (notify_urls): name one of its targets")
        if targets.networks_of(notification, connection.settings) is not None:
            targets.url_of(notification, connection.settings)
            if not sending.has_notifier():
                raise Refused(sending.NO_NOTIFIER)
        schemes = {scheme for each in urls for scheme in each.schemes}
        if not senders and sending.is_there():  # no recorder has announced its schemes
            schemes = set(sending.schemes())
        if schemes and notification.scheme not in schemes:
            raise BadRequest(f"nothing can be sent to {notification.shown}: {sending.NO_SCHEME}")
        return
    known = {target for each in senders for target in each.targets} | set(connection.settings.notify)
    if notification.target not in known:
        raise BadRequest(targets.no_such_target(notification, sorted(known)))


def nobody_sends(connection: Connection) -> str | None:
    """Return why no notification can be sent now, or None if no reason is known."""
    senders = connection.queue.senders.all()
    if senders and not any(each.schemes for each in senders):
        host, remedy = senders[0].host, install_extra("notify")
        return f"Apprise is not installed on {host}: nobody is notified. There, {remedy}"
    return None
