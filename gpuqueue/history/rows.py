"""What the book's two doors have in common: both read rows, and one assembly makes values of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


class Row(Protocol):
    """A row of a table, in the types of ``tables.py``."""

    def __getitem__(self, column: str, /) -> Any:
        """Return what stands in *column*."""


class Rows(Protocol):
    """Reads rows: through SQLAlchemy (``queries.py``), or from an SQLite file without it (``door.py``)."""

    def of(self, table: str, key: str, ids: Collection[int], order: str) -> Sequence[Row]:
        """Return the whole rows of *table* whose *key* is one of *ids*, in the order of that and then of *order*."""

    def standing(self, array_ids: Collection[int]) -> Iterable[tuple[int, str, int]]:
        """Return, of each of these arrays, how many members that are jobs of their own are in which state."""
