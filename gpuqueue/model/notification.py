"""Whom a job's owner lets tell of its end: the words of ``--on-end`` and ``--on-fail``. Pure. docs/adr/0009."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief, plain

#: Most notices of one job.
MOST_NOTICES = 16
#: Longest target or command, in characters.
MOST_TEXT = 2000
#: The target whose account sends to plain mail addresses.
MAIL = "mail"
#: What a command begins with.
COMMAND = "command:"

#: Not compiled before they are needed: most jobs tell nobody.
_NAME = r"[A-Za-z][A-Za-z0-9_-]{0,63}"
_URL = r"[A-Za-z][A-Za-z0-9+.-]{0,31}://\S+"
_ADDRESS = r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,190}"
_FORMS = "a target of the site by its name, a mail address, a URL such as ntfy://ntfy.sh/TOPIC, or command:WORDS"


class When(str, Enum):
    """After which ends of a job somebody is told."""

    #: After any.
    END = "end"
    #: After any but success: it failed, was lost or was cancelled.
    FAIL = "fail"

    def __str__(self) -> str:
        return self.value


class NoticeKind(str, Enum):
    """What a notice goes to."""

    #: A target that the site's settings give a name: its secrets are known there alone.
    TARGET = "target"
    #: A mail address; the site's target ``mail`` sends it.
    ADDRESS = "address"
    #: A URL, as Apprise has them.
    URL = "url"
    #: No message, but a command, run where the job ran.
    COMMAND = "command"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that happens when the job has ended for good. A URL in ``to`` may hold secrets: show ``shown``."""

    to: str
    when: When = When.END

    def __post_init__(self) -> None:
        """Refuse what nothing can be sent to.

        Raises:
            BadRequest: it is no target.

        """
        to: object = self.to
        when: object = self.when
        if not isinstance(to, str) or not isinstance(when, When):
            raise BadRequest(f"{brief(to)} can be told nothing: write {_FORMS}")
        if len(self.to) > MOST_TEXT or plain(self.to) != self.to or _kind(self.to) is None:
            # What is no URL at all may be half of one: a secret must not be said again.
            raise BadRequest(f"{brief(masked(self.to))} can be told nothing: write {_FORMS}")

    def __repr__(self) -> str:
        """Return it without secrets: people paste logs."""
        return f"Notice({self.shown!r}, {self.when})"

    @property
    def kind(self) -> NoticeKind:
        """Return what it goes to."""
        found = _kind(self.to)
        assert found is not None  # noqa: S101 - __post_init__ refused all else
        return found

    @property
    def scheme(self) -> str | None:
        """Return what its URL begins with, None where it has none."""
        return self.to.partition("://")[0].lower() if self.kind is NoticeKind.URL else None

    @property
    def command(self) -> str:
        """Return what a shell is to run; empty where nothing is."""
        return self.to.removeprefix(COMMAND).strip() if self.kind is NoticeKind.COMMAND else ""

    @property
    def shown(self) -> str:
        """Return it as anybody may see it: of a URL only what it begins with."""
        return masked(self.to)

    def follows(self, *, succeeded: bool) -> bool:
        """Return whether it is meant for a job that has ended so."""
        return self.when is When.END or not succeeded


def _kind(to: str) -> NoticeKind | None:
    if to.startswith(COMMAND):
        return NoticeKind.COMMAND if to.removeprefix(COMMAND).strip() else None
    for kind, form in ((NoticeKind.URL, _URL), (NoticeKind.ADDRESS, _ADDRESS), (NoticeKind.TARGET, _NAME)):
        if re.fullmatch(form, to):
            return kind
    return None


def masked(to: str) -> str:
    """Return *to* without what may be a secret: any part of a URL behind its beginning may be one."""
    scheme, mark, _ = to.partition("://")
    return f"{scheme}{mark}…" if mark and not to.startswith(COMMAND) else to


def targets(text: str) -> dict[str, str]:
    """Return the targets that a setting such as ``team=slack://… mail=mailto://…`` names, by their names.

    Raises:
        BadRequest: something is no target. No secret is said again.

    """
    found: dict[str, str] = {}
    for word in text.split():
        name, equals, url = word.partition("=")
        if not equals or not re.fullmatch(_NAME, name):
            raise BadRequest("a word of it names no target: write them like team=slack://… mail=mailto://…")
        if not re.fullmatch(_URL, url):
            raise BadRequest(f"target {name} is no URL: write it like {name}=slack://…")
        if name in found:
            raise BadRequest(f"target {name} is named twice")
        found[name] = url
    return found


class Outcome(str, Enum):
    """What became of a notice."""

    #: Whoever was to be told was told, at least once.
    SENT = "sent"
    #: It could not be sent, however often it was tried.
    GIVEN_UP = "given_up"
    #: It was meant for another end than the job came to.
    NOT_NEEDED = "not_needed"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """How far a notice has come: the one with this ``number`` among its job's. ``outcome`` None: it is still to go."""

    number: int
    tries: int = 0
    outcome: Outcome | None = None
    at: datetime | None = None
    trouble: str | None = None
