"""Access tokens and entries of the audit log as plain values, for ``--json`` and for the audit journal."""

from __future__ import annotations

from datetime import datetime

from gpuqueue.codec.text import Plain, dump, iso, meaning
from gpuqueue.model.access import Me
from gpuqueue.model.access_token import AccessToken
from gpuqueue.model.audit import AuditEntry, AuditOutcome
from gpuqueue.text.json_fields import Fields, loaded


def me_to_plain(me: Me) -> Plain:
    """Return who the caller is as plain values."""
    return {
        "account": me.account,
        "uid": me.uid,
        "via": me.via,
        "scopes": list(me.scopes),
        "admin": me.admin,
        "token_id": me.token_id,
    }


def access_token_to_plain(token: AccessToken) -> Plain:
    """Return *token* as plain values. There is no secret in it."""
    return {
        "id": token.id,
        "kind": token.kind.value,
        "account": token.account,
        "uid": token.uid,
        "scopes": sorted(map(str, token.scopes)),
        "name": token.name,
        "made_by": token.made_by,
        "made_at": iso(token.made_at),
        "expires_at": iso(token.expires_at),
        "last_used_at": iso(token.last_used_at),
        "revoked_at": iso(token.revoked_at),
    }


def audit_entry_to_plain(entry: AuditEntry) -> Plain:
    """Return *entry* as plain values."""
    return {
        "id": entry.id,
        "at": iso(entry.at),
        "account": entry.account,
        "uid": entry.uid,
        "via": entry.via,
        "token_id": entry.token_id,
        "address": entry.address,
        "action": entry.action,
        "jobs": list(entry.jobs),
        "detail": dict(entry.detail),
        "outcome": None if entry.outcome is None else entry.outcome.value,
        "reason": entry.reason,
    }


def encode_audit_entry(entry: AuditEntry) -> str:
    """Return *entry* as one line of the journal."""
    return dump(audit_entry_to_plain(entry))


def decode_audit_entry(line: str | bytes) -> AuditEntry:
    """Return the entry of a line of the journal.

    Raises:
        Unreadable: *text* is not an audit entry.

    """
    fields = loaded(line, "an audit entry")
    outcome = fields.text_or_none("outcome")
    with meaning("an audit entry"):
        return AuditEntry(
            id=fields.text("id"),
            at=datetime.fromisoformat(fields.text("at")),
            account=fields.text("account"),
            uid=fields.whole_or_none("uid"),
            via=fields.text("via"),
            token_id=fields.text_or_none("token_id"),
            address=fields.text("address"),
            action=fields.text("action"),
            jobs=tuple(fields.texts("jobs")),
            detail=Fields(fields.plain("detail", {}), "the detail of an audit entry").all_texts(),
            outcome=None if outcome is None else AuditOutcome(outcome),
            reason=fields.text_or_none("reason"),
        )
