"""The revision of the tables that this version uses. Pure: a comparison imports no library."""

from __future__ import annotations

#: The revision that ``tables.py`` describes. It is a constant here because reading it from Alembic would cost every
#: ``gpuqueue show`` the import of Alembic.
REVISION = "0010"
