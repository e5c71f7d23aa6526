"""The tables of access: tokens, and the audit log. ``migrations/`` creates them like those of ``tables.py``."""

from __future__ import annotations

import sqlalchemy as sa

from gpuqueue.history.column_types import SafeText, UtcDateTime
from gpuqueue.history.tables import metadata

#: Access tokens. The secret itself is not stored: ``digest`` is its SHA-256.
access_tokens = sa.Table(
    "access_tokens",
    metadata,
    #: The public part of the token, by which it is found.
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    #: ``person``, or ``host`` for a worker host.
    sa.Column("kind", sa.Text, nullable=False),
    #: The account, or the name of the worker host, which has no uid.
    sa.Column("account", SafeText, nullable=False),
    sa.Column("uid", sa.BigInteger, nullable=True),
    #: The scopes, with spaces between them.
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("name", SafeText, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    sa.Column("made_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=True),
    sa.Column("last_used_at", UtcDateTime, nullable=True),
    sa.Column("revoked_at", UtcDateTime, nullable=True),
    sa.CheckConstraint("kind IN ('person', 'host')", name="kind_known"),
    sa.CheckConstraint("(kind = 'person') = (uid IS NOT NULL)", name="person_has_uid"),
)

#: The audit log: one row for each requested change.
audit_entries = sa.Table(
    "audit_entries",
    metadata,
    #: Made from the time, so that ids are in the order of the changes.
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("account", SafeText, nullable=False),
    sa.Column("uid", sa.BigInteger, nullable=True),
    #: How the account was authenticated: ``socket``, ``token``, ``direct`` or ``anonymous``.
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("token_id", sa.Text, nullable=True),
    #: The network address, or ``pid 123``.
    sa.Column("address", SafeText, nullable=False),
    sa.Column("action", SafeText, nullable=False),
    #: The ids of the jobs, with spaces between them.
    sa.Column("jobs", SafeText, nullable=False),
    #: Further details of the request, as JSON, without secrets.
    sa.Column("detail", SafeText, nullable=True),
    #: ``done``, ``refused``, ``failed``; NULL if the service ended before the outcome was known.
    sa.Column("outcome", sa.Text, nullable=True),
    #: Why it was refused or failed.
    sa.Column("reason", SafeText, nullable=True),
    sa.CheckConstraint("outcome IN ('done', 'refused', 'failed')", name="outcome_known"),
)
