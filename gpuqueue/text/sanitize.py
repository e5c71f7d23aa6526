"""Sanitizes untrusted text (names, arguments, command lines) for display. Pure."""

from __future__ import annotations

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern

#: Unicode categories of characters that control a terminal or have no glyph: controls (line ends, ESC), direction
#: marks, zero-width characters, surrogates, private and unassigned characters, line and paragraph separators.
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: East Asian widths of characters that take two columns of a terminal.
_WIDE = frozenset({"W", "F"})
#: Longest message, in characters. The quoted text may be megabytes long.
MOST = 2000


def plain(text: str) -> str:
    """Return *text* with every character replaced that could control a terminal."""
    if text.isascii() and text.isprintable():  # the common case
        return text
    import unicodedata  # noqa: PLC0415 - imports slow down the start of a command

    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in _OBEYED else char for char in text)


def in_one_line(message: str) -> str:
    """Return *message*, sanitized, on one line. A very long one loses its middle, since its end holds the remedy."""
    line = plain(" ".join(message.splitlines()))
    return line if len(line) <= MOST else f"{line[: MOST // 2]} … {line[-MOST // 2 :]}"


def cells(text: str) -> int:
    """Return how many columns of a terminal *text* takes: wide characters take two, combining marks take none."""
    if text.isascii():  # the common case
        return len(text)
    import unicodedata  # noqa: PLC0415 - as above

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in _WIDE else 1 for char in text
    )


def _cut(text: str, width: int) -> str:
    """Return the beginning of *text* that takes no more than *width* columns."""
    cut = text[: max(0, width)]
    while cells(cut) > width > 0:
        cut = cut[:-1]
    return cut


def short(text: str, width: int = 24) -> str:
    """Return *text*, sanitized and cut to *width* columns of a terminal."""
    safe = plain(text)
    return safe if cells(safe) <= width else _cut(safe, width - 1) + "…"


def in_words(text: str, width: int) -> str:
    """Return *text*, sanitized and cut to *width* columns between two words, or within the first if it is too long."""
    safe = plain(text)
    if cells(safe) <= width:
        return safe
    whole = _cut(safe, width - 1).rpartition(" ")[0].rstrip(" ,;:")
    return f"{whole} …" if whole else short(safe, width)


def wrapped(text: str, width: int) -> list[str]:
    """Return *text* in lines of at most *width* columns, broken between words, or within words longer than a line.

    There is at least one line. No line is empty unless *text* is.
    """
    lines, line = [], ""
    for word in text.split(" "):
        together = f"{line} {word}" if line else word
        if cells(together) <= width:
            line = together
            continue
        if line:
            lines.append(line)
        while cells(word) > width:
            cut = _cut(word, width) or word[:1]
            lines.append(cut)
            word = word[len(cut) :]  # noqa: PLW2901 - the rest of the word
        line = word
    return [*lines, line] if line or not lines else lines


def brief(value: object, width: int = 60) -> str:
    """Return the ``repr`` of an invalid *value* for a message, cut to *width* characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the value may be of any type, and its repr may fail
        text = f"something of type {type(value).__name__}"
    return text if len(text) <= width else f"{text[: width - 1]}…"


#: The one rule for names of users, pools and tags. They become part of keys in the store, and of lists with commas.
_NAME = pattern(r"[A-Za-z0-9_.@+-]{1,64}")


def is_name(text: str) -> bool:
    """Return whether *text* can be the name of a user, a pool or a tag."""
    return _NAME.fullmatch(text) is not None


def name_of(what: str, text: str) -> str:
    """Return *text*, the name of a *what*.

    Raises:
        BadRequest: *text* cannot be a name.

    """
    if not is_name(text):
        raise BadRequest(f"{brief(text)} is no {what}: letters, digits and _ . @ + - only, at most 64 of them")
    return text
