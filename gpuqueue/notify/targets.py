"""Resolves the target of a notification to a URL, by the settings of the sender. Pure."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.notification import MAIL, Notification, NotificationKind
from gpuqueue.settings.settings import Settings

#: Schemes of mail accounts, which can send to any mail address.
_MAIL_SCHEMES = frozenset({"mailto", "mailtos"})
#: Parameters of URLs that name files, which the account of the sender would open.
_FILES = frozenset({"template", "keyfile", "subfile", "pgpkey", "pgppub", "pgpprv"})


def url_of(notification: Notification, settings: Settings) -> str:
    """Return the URL for *notification* by *settings*.

    Raises:
        BadRequest: the settings have no such target, or the target ``mail`` is no mail account.
        Refused: the settings do not allow URLs in jobs.

    """
    known = settings.notify
    name = notification.target
    if name is None:
        if not settings.notify_urls:
            raise Refused("this site takes no URLs of jobs (notify_urls): name one of its targets")
        _refuse_files(notification.to)
        return notification.to
    if name not in known:
        raise BadRequest(no_such_target(notification, sorted(known)))
    is_address = notification.kind is NotificationKind.ADDRESS
    return _mail_to(notification.to, known[name]) if is_address else known[name]


def _refuse_files(url: str) -> None:
    """Check that *url*, which a job has named, opens no file of the account that sends.

    Raises:
        Refused: it names a file.

    """
    query = urlsplit(url).query
    found = sorted({name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)} & _FILES)
    if found:
        names = ", ".join(found)
        raise Refused(f"a URL of a job cannot name a file ({names}): a target of the site can (setting notify)")


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
