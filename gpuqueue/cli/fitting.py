"""How much room there is for what is printed."""

from __future__ import annotations

import os


def terminal_width() -> int | None:
    """Return the columns of the terminal that standard output is, None where it is none; ``COLUMNS`` goes before."""
    if not os.isatty(1):
        return None
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80
