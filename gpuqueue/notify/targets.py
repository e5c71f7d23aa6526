"""Resolves the target of a notification to a URL, by the settings of the sender. Pure.

Apprise has more than a hundred schemes, with parameters that open files of the account that sends, and it reads a URL
more generously than other parsers. So the text of a user never reaches it. The text is read once, here, into a scheme
of a short list and fields of known types, and the URL for Apprise is made of these fields. Each field permits only
characters that mean nothing to a parser, except a password, which is percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.notification import MAIL, Notification, NotificationKind
from gpuqueue.settings.settings import Settings
from gpuqueue.text.sanitize import brief

#: Schemes of mail accounts, which can send to any mail address.
_MAIL_SCHEMES = frozenset({"mailto", "mailtos"})
#: Most parts of a path, such as recipients.
MAX_PATH = 16

_NAME = r"[A-Za-z0-9_-]{1,128}"
_PART = r"(?!\.+\Z)[A-Za-z0-9._~=@:+-]{1,512}"
_USER = r"[A-Za-z0-9._~@+-]{1,128}"
_SECRET = r"[!-~]{1,256}"  # noqa: S105 - a pattern: every visible character of ASCII
_DNS = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_HOST = rf"(?:{_DNS}|\[[0-9A-Fa-f:]{{2,39}}\])"
_ADDRESS = r"[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9.-]{1,190}"
_CHANNEL = r"[#+@]?[A-Za-z0-9._-]{1,80}"
_ROOM = rf"[#!@]?[A-Za-z0-9._=-]{{1,128}}(?::{_DNS})?"
_CHAT = r"-?[0-9]{1,32}(?::[0-9]{1,20})?|@?[A-Za-z_][A-Za-z0-9_-]{0,63}"
_PORT = r"[0-9]{1,5}"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """The fields of a scheme's URLs, each with its pattern; None is a field that the scheme does not have."""

    #: How people write it.
    written: str
    host: str = _HOST
    user: str | None = None
    password: str | None = None
    #: Whether the host can have a port. Otherwise ``host`` is a token.
    port: bool = False
    #: Each part of the path.
    path: str
    #: The least number of parts of the path.
    least: int = 0
    query: Mapping[str, str] = field(default_factory=dict)


_MAIL = _Form(
    written="[USER[:PASSWORD]@]HOST[:PORT][/ADDRESS…]",
    user=_USER,
    password=_SECRET,
    port=True,
    path=_ADDRESS,
    query={"from": _ADDRESS, "mode": "insecure|ssl|starttls", "smtp": _HOST, "to": _ADDRESS},
)
_WEBHOOK = _Form(written="[USER[:PASSWORD]@]HOST[:PORT][/PATH…]", user=_USER, password=_SECRET, port=True, path=_PART)
_NTFY = _Form(
    written="[USER[:PASSWORD]@]HOST[:PORT]/TOPIC, or only TOPIC",
    host=rf"{_HOST}|[A-Za-z0-9_-]{{1,64}}",
    user=_USER,
    password=_SECRET,
    port=True,
    path=r"[A-Za-z0-9_-]{1,64}",
)
_GOTIFY = _Form(written="HOST[:PORT][/PATH…]/TOKEN", port=True, path=_PART, least=1)
_MATRIX = _Form(
    written="[USER:]TOKEN@HOST[:PORT]/ROOM…",
    host=rf"{_HOST}|{_NAME}",
    user=_USER,
    password=_SECRET,
    port=True,
    path=_ROOM,
)
_MATTERMOST = _Form(
    written="[BOTNAME@]HOST[:PORT][/PATH…]/TOKEN",
    user=_USER,
    port=True,
    path=_PART,
    least=1,
    query={"channel": _CHANNEL},
)
_FORMS = MappingProxyType(
    {
        "discord": _Form(written="[BOTNAME@]WEBHOOK/TOKEN", host=r"[0-9]{1,32}", user=_USER, path=_NAME, least=1),
        "gchat": _Form(written="WORKSPACE/KEY/TOKEN[/THREAD]", host=_NAME, path=_PART, least=2),
        "gotify": _GOTIFY,
        "gotifys": _GOTIFY,
        "json": _WEBHOOK,
        "jsons": _WEBHOOK,
        "mailto": _MAIL,
        "mailtos": _MAIL,
        "matrix": _MATRIX,
        "matrixs": _MATRIX,
        "mmost": _MATTERMOST,
        "mmosts": _MATTERMOST,
        "ntfy": _NTFY,
        "ntfys": _NTFY,
        "pover": _Form(written="USER@TOKEN[/DEVICE…]", host=_NAME, user=_NAME, path=_CHANNEL),
        "slack": _Form(
            written="[BOTNAME@]A/B/C[/CHANNEL…], or BOT-TOKEN/CHANNEL…", host=_NAME, user=_USER, path=_CHANNEL
        ),
        "tgram": _Form(
            written="BOT-TOKEN/CHAT…",
            host=r"(?:bot)?[0-9]{1,20}:[A-Za-z0-9_-]{1,128}",
            path=_CHAT,
            query={"topic": "[0-9]{1,20}"},
        ),
        "workflows": _Form(
            written="HOST[:PORT]/WORKFLOW/SIGNATURE", port=True, path=_NAME, least=2, query={"pa": "yes|no"}
        ),
    }
)
#: The schemes of URLs that users may give.
SCHEMES = tuple(_FORMS)


def made_of(text: str) -> str:
    """Return a URL for Apprise that is made of the fields of *text*, the URL of a user.

    Raises:
        BadRequest: the scheme is not in the list, or a part is not one of its fields. The message repeats no part,
            because any part may be a secret.

    """
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme not in _FORMS:
        known = ", ".join(SCHEMES)
        raise BadRequest(
            f"URLs of jobs that begin with {brief(scheme)} are not permitted here: name a target of the site, "
            f"or give a URL that begins with one of {known}"
        )
    place, mark, query = rest.partition("?")
    authority, _, path = place.partition("/")
    made = f"{scheme}://{_authority(scheme, authority)}{_path(scheme, path)}"
    return f"{made}?{_query(scheme, query)}" if mark else made


def _authority(scheme: str, text: str) -> str:
    """Return user, password, host and port."""
    form = _FORMS[scheme]
    before, at, place = text.rpartition("@")
    user, colon, password = before.partition(":")
    made = _value(scheme, "user", form.user, user) if at else ""
    made += f":{_value(scheme, 'password', form.password, password)}" if colon else ""
    host, mark, port = place.rpartition(":") if form.port and not place.endswith("]") else (place, "", "")
    host, port = (host, port) if mark else (place, "")
    if mark and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 2**16):
        raise _refusal(scheme, "port")
    if not re.fullmatch(form.host, host):  # never decoded: no character of a host needs an escape
        raise _refusal(scheme, "host" if form.port else "first part")
    return f"{made}{at}{host}{mark}{port}"


def _path(scheme: str, text: str) -> str:
    form = _FORMS[scheme]
    parts = text.removesuffix("/").split("/") if text else []
    if not form.least <= len(parts) <= MAX_PATH:
        raise _refusal(scheme, "path")
    made = "".join(f"/{_value(scheme, 'path', form.path, part)}" for part in parts)
    return f"{made}/" if text.endswith("/") else made


def _query(scheme: str, text: str) -> str:
    permitted, made = _FORMS[scheme].query, dict[str, str]()
    for word in text.split("&"):
        name, _, value = word.partition("=")
        if name in made:
            raise _refusal(scheme, "query")
        made[name] = _value(scheme, "query", permitted.get(name), value)
    return "&".join(f"{name}={value}" for name, value in made.items())


def _value(scheme: str, what: str, pattern: str | None, text: str) -> str:
    """Return *text* decoded once, checked by *pattern*, and encoded again."""
    decoded = re.sub(r"%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), text)
    is_whole = re.search(r"%(?![0-9A-Fa-f]{2})", text) is None
    if pattern is None or not is_whole or not re.fullmatch(pattern, decoded):
        raise _refusal(scheme, what)
    return quote(decoded, safe="")


def _refusal(scheme: str, what: str) -> BadRequest:
    """Return the error about a part of a URL. It names the fields that the scheme permits."""
    form = _FORMS[scheme]
    parameters = f"after ? only {', '.join(form.query)}" if form.query else "nothing after it"
    return BadRequest(
        f"the {what} of this URL is not permitted in a job: write {scheme}://{form.written}, and {parameters}; "
        "other URLs must be targets of the site (setting notify)"
    )
