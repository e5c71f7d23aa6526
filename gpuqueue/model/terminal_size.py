"""The size of a terminal. Pure, except for :meth:`Window.ours`."""

from __future__ import annotations

import os

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief

#: Largest number of columns or rows that the kernel accepts.
MOST = 0xFFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The size of a terminal, in characters. ``typed`` is whether the terminal takes input."""

    columns: int = 80
    rows: int = 24
    typed: bool = False

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: a size is no whole number from 1 to MOST, or ``typed`` is no bool.

        """
        for size in (self.columns, self.rows):
            if type(size) is not int or not 0 < size <= MOST:  # bool is a subclass of int
                raise BadRequest(f"a terminal's size must be whole numbers from 1 to {MOST}, not {brief(size)}")
        if type(self.typed) is not bool:
            raise BadRequest(f"typed must be true or false, not {brief(self.typed)}")

    @classmethod
    def ours(cls, *, typed: bool = False) -> Window:
        """Return the size of this process's terminal, or 80 by 24 if it has none."""
        for stream in (1, 2, 0):
            try:
                columns, rows = os.get_terminal_size(stream)
            except OSError:
                continue
            if columns > 0 and rows > 0:
                return cls(columns=min(columns, MOST), rows=min(rows, MOST), typed=typed)
        return cls(typed=typed)
