"""How large a terminal is. Pure, but for the one look at ours."""

from __future__ import annotations

import os

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief

#: What the kernel can be told of a terminal's size.
MOST = 0xFFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The size of a terminal, in characters; ``typed``: somebody may type on it."""

    columns: int = 80
    rows: int = 24
    typed: bool = False

    def __post_init__(self) -> None:
        """Refuse what no terminal could be.

        Raises:
            BadRequest: it is no number from 1 to MOST.

        """
        for size in (self.columns, self.rows):
            if type(size) is not int or not 0 < size <= MOST:  # True is an int as well
                raise BadRequest(f"a terminal's size must be whole numbers from 1 to {MOST}, not {brief(size)}")
        if type(self.typed) is not bool:
            raise BadRequest(f"whether somebody types on a terminal is true or false, not {brief(self.typed)}")

    @classmethod
    def ours(cls, *, typed: bool = False) -> Window:
        """Return the size of the terminal that this process has; 80 by 24 if it has none."""
        for stream in (1, 2, 0):
            try:
                columns, rows = os.get_terminal_size(stream)
            except OSError:
                continue
            if columns > 0 and rows > 0:
                return cls(columns=min(columns, MOST), rows=min(rows, MOST), typed=typed)
        return cls(typed=typed)
