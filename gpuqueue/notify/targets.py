"""Resolves the target of a notification to a URL, by the settings of the sender. Pure."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.notification import MAIL, Notification, NotificationKind
from gpuqueue.notify.user_urls import made_of
from gpuqueue.settings.settings import Settings

#: Schemes of mail accounts, which can send to any mail address.
_MAIL_SCHEMES = frozenset({"mailto", "mailtos"})


def url_of(notification: Notification, settings: Settings) -> str:
    """Return the URL for *notification* by *settings*. Where jobs have other accounts, a URL of a job is made anew.

    Raises:
        BadRequest: the settings have no such target, the target ``mail`` is no mail account, or the URL of a job has
            parts that are not permitted.
        Refused: the settings do not allow URLs in jobs.

    """
    known = settings.notify
    name = notification.target
    if name is None:
        if not settings.notify_urls:
            raise Refused("this site takes no URLs of jobs (notify_urls): name one of its targets")
        return notification.to if networks_of(notification, settings) is None else made_of(notification.to)
    if name not in known:
        raise BadRequest(no_such_target(notification, sorted(known)))
    is_address = notification.kind is NotificationKind.ADDRESS
    return _mail_to(notification.to, known[name]) if is_address else known[name]


def networks_of(notification: Notification, settings: Settings) -> tuple[str, ...] | None:
    """Return the networks that *notification* may reach besides public addresses, if the notifier must send it.

    None is a notification that this account sends itself, without such a limit.
    """
    if notification.target is not None or settings.launcher_in_use is None:
        return None
    return tuple(settings.notify_networks.split(",")) if settings.notify_networks else ()


def no_such_target(notification: Notification, known: list[str]) -> str:
    """Return the error message for an unknown target, which lists the known ones."""
    there = f"there are {', '.join(known)}" if known else "there are none"
    if notification.kind is NotificationKind.ADDRESS:
        return f"no mail can be sent to {notification.to}: the site has no target {MAIL!r} (setting notify); {there}"
    instead = "name one there, or give a mail address or a URL such as ntfy://ntfy.sh/TOPIC"
    return f"no target is called {notification.to!r} here (setting notify): {there}; {instead}"


def _mail_to(address: str, account: str) -> str:
    parts = urlsplit(account)
    if parts.scheme.lower() not in _MAIL_SCHEMES:
        raise BadRequest(f"the target {MAIL!r} is no mailto:// or mailtos:// URL: it cannot send to {address}")
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "to"]
    return urlunsplit(parts._replace(path="/", query=urlencode([*query, ("to", address)])))
