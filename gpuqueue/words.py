"""Text that somebody else chose (names, arguments, command lines), made fit to be shown. Pure."""

from __future__ import annotations

import unicodedata


def plain(text: str) -> str:
    """Return *text* with every character that a terminal might obey replaced: nothing injects into a terminal."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(char)[0] == "C" else char for char in text)


def short(text: str, width: int = 24) -> str:
    """Return *text*, made plain, cut to *width* characters."""
    safe = plain(text)
    return safe if len(safe) <= width else safe[: width - 1] + "…"
