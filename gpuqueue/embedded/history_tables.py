"""The tables of the history, as ``up`` and ``db`` need them. Each function takes the URL of the database.

Alembic is slow to import, so it is imported when it is first used.
"""

from __future__ import annotations

from gpuqueue.errors import HistoryNewer, HistoryUnreachable


def prepare(database_url: str) -> str:
    """Migrate the history database to this version's tables, and return their revision.

    Raises:
        HistoryUnreachable: the database does not answer.

    """
    from gpuqueue.history import migrate  # noqa: PLC0415 - lazy import: alembic is slow to import, and only ``up`` needs it
    from gpuqueue.history.revision import REVISION  # noqa: PLC0415 - with its package

    migrate.upgrade(database_url)
    return REVISION


def refuse_newer(database_url: str) -> None:
    """Check that the history database is not of a newer version. A database that does not answer passes.

    Raises:
        HistoryNewer: the database is of a newer version.

    """
    from gpuqueue.history import migrate  # noqa: PLC0415 - lazy import for startup time

    try:
        migrate.refuse_newer(database_url)
    except HistoryNewer:
        raise
    except HistoryUnreachable:  # prepare decides whether the start needs it
        return


def exist(database_url: str) -> bool:
    """Return whether the history database has tables, of any version.

    Raises:
        HistoryUnreachable: the database does not answer.

    """
    from gpuqueue.history import migrate  # noqa: PLC0415 - lazy import for startup time

    return migrate.current(database_url) is not None
