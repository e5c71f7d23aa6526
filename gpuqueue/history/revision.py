"""Which tables this version reads and writes. Pure: who only compares it waits for no library."""

from __future__ import annotations

#: The revision whose tables ``tables.py`` describes. Kept here because asking Alembic costs every ``gpuqueue show`` its
#: import.
REVISION = "0007"
