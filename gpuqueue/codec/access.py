"""Entries of the audit log as lines of the audit journal."""

from __future__ import annotations

from datetime import datetime

from gpuqueue.codec.text import Plain, dump, iso, meaning
from gpuqueue.model.audit import AuditEntry, AuditOutcome
from gpuqueue.text.json_fields import Fields, loaded


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
