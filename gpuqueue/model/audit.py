"""Entries of the audit log: each requested change, with its caller and its outcome. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.caller import Caller


class AuditOutcome(str, Enum):
    """The outcome of a requested change."""

    DONE = "done"
    #: The caller has no right to it, or the queue refused it.
    REFUSED = "refused"
    #: A part of the site did not answer, or failed. The change may have been made.
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One requested change.

    - ``action`` is the name of an act, such as ``cancel`` or ``token-create``.
    - ``jobs`` are the ids of the jobs, as users type them.
    - ``detail`` holds further details of the request. It must hold no environment, no arguments and no token.
    - ``outcome`` is None if the service ended before the outcome was known.
    """

    id: str
    at: datetime
    account: str
    uid: int | None
    via: str
    token_id: str | None
    address: str
    action: str
    jobs: tuple[str, ...] = ()
    detail: Mapping[str, str] = field(default_factory=dict)
    outcome: AuditOutcome | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditQuery:
    """The filters of a search in the audit log. None means any. The newest entries come first."""

    since: datetime | None = None
    account: str | None = None
    action: str | None = None
    limit: int | None = 100


def entry_of(
    caller: Caller, action: str, *, entry_id: str, at: datetime, jobs: tuple[str, ...], detail: Mapping[str, str]
) -> AuditEntry:
    """Return the entry of a change that *caller* asks for, without an outcome."""
    return AuditEntry(
        id=entry_id,
        at=at,
        account=caller.account,
        uid=caller.uid,
        via=str(caller.via),
        token_id=caller.token_id,
        address=caller.address,
        action=action,
        jobs=jobs,
        detail=detail,
    )
