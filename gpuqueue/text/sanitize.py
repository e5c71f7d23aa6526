"""Text that somebody else chose (names, arguments, command lines), made fit to be shown. Pure."""

from __future__ import annotations

#: Unicode's categories of what is not shown but obeyed: controls (line ends, ESC), marks of direction, zero-width
#: characters, halves of characters, and the separators of lines and paragraphs.
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: What Unicode calls characters that take two columns of a terminal.
_WIDE = frozenset({"W", "F"})
#: Longest message, in characters: what is quoted in one may be megabytes long.
MOST = 2000


def plain(text: str) -> str:
    """Return *text* with every character that a terminal might obey replaced: nothing injects into a terminal."""
    if text.isascii() and text.isprintable():  # nearly always
        return text
    import unicodedata  # noqa: PLC0415 - imports are the latency that a user feels

    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in _OBEYED else char for char in text)


def in_one_line(message: str) -> str:
    """Return a message, made plain, on one line. A very long one loses its middle: the remedy stands at the end."""
    line = plain(" ".join(message.splitlines()))
    return line if len(line) <= MOST else f"{line[: MOST // 2]} … {line[-MOST // 2 :]}"


def cells(text: str) -> int:
    """Return how many columns of a terminal *text* takes: two a character of Chinese, none a mark on another one."""
    if text.isascii():  # nearly always
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
    """Return *text*, made plain, cut to *width* columns of a terminal."""
    safe = plain(text)
    return safe if cells(safe) <= width else _cut(safe, width - 1) + "…"


def in_words(text: str, width: int) -> str:
    """Return *text*, made plain, cut to *width* columns between two words, if the first one has room."""
    safe = plain(text)
    if cells(safe) <= width:
        return safe
    whole = _cut(safe, width - 1).rpartition(" ")[0].rstrip(" ,;:")
    return f"{whole} …" if whole else short(safe, width)


def wrapped(text: str, width: int) -> list[str]:
    """Return *text* in lines of at most *width* columns, broken between words; within one that is longer than a line.

    There is one line at least, and no line without a character of a text that has any.
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
            word = word[len(cut) :]  # noqa: PLW2901 - what is left of it
        line = word
    return [*lines, line] if line or not lines else lines


def brief(value: object, width: int = 60) -> str:
    """Return a strange *value* as it may stand in a message: as Python writes it, and never long."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - it may be anything, also something that cannot be written
        text = f"something of type {type(value).__name__}"
    return text if len(text) <= width else f"{text[: width - 1]}…"
