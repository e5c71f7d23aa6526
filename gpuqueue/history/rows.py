"""The interface of the two readers of the history database. ``records.py`` builds values from their rows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

#: Most parameters of one IN (…); PostgreSQL takes 65535, SQLite 32766.
_MOST_IN = 1000


def parts(ids: Iterable[int]) -> Iterator[list[int]]:
    """Yield the distinct *ids* in order, in lists that fit into one IN (…)."""
    wanted = sorted(set(ids))
    for start in range(0, len(wanted), _MOST_IN):
        yield wanted[start : start + _MOST_IN]


class Row(Protocol):
    """A row of a table, with the types of ``tables.py``."""

    def __getitem__(self, column: str, /) -> Any:
        """Return the value of *column*."""


class Rows(Protocol):
    """Reads rows: through SQLAlchemy (``queries.py``), or from a SQLite file without it (``sqlite_reader.py``)."""

    def of(self, table: str, key: str, ids: Collection[int], order: str) -> Sequence[Row]:
        """Return the whole rows of *table* whose *key* is one of *ids*, ordered by *key* and then by *order*."""

    def count_states(self, array_ids: Collection[int]) -> Iterable[tuple[int, str, int]]:
        """Return (array id, state, number of members in that state), counting members with a row of their own."""
