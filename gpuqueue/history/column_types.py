"""Types of columns that hold the same values in SQLite and in PostgreSQL."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

#: Characters that PostgreSQL refuses in a text. A file name that is not UTF-8 contains lone surrogates.
_REFUSED = re.compile("[\0\ud800-\udfff]")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC, also in SQLite, which stores no zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return *value* in UTC.

        Raises:
            ValueError: *value* has no zone, so its moment is unknown.

        """
        del dialect
        if value is None or value.tzinfo is timezone.utc:
            return value
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return *value* as an aware time in UTC."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


def safe(text: str) -> str:
    """Return *text* in a form that every database accepts: U+FFFD replaces lone surrogates and NUL."""
    if text.isascii() and "\0" not in text:  # the usual case, and ten times as fast
        return text
    return _REFUSED.sub("\N{REPLACEMENT CHARACTER}", text)


class SafeText(TypeDecorator[str]):
    """Text that every database accepts. U+FFFD replaces the characters that PostgreSQL refuses."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Return *value* with U+FFFD in place of lone surrogates and NUL."""
        del dialect
        return None if value is None else safe(value)
