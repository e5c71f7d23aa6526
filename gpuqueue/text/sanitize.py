"""Sanitizes untrusted text (names, arguments, command lines, lines of logs) for display. Pure."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Unicode categories of characters that control a terminal or have no glyph: controls (line ends, ESC), direction
#: marks, zero-width characters, surrogates, private and unassigned characters, line and paragraph separators.
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: East Asian widths of characters that take two columns of a terminal.
_WIDE = frozenset({"W", "F"})
#: Categories of marks on the character before them, and the mark that shows it as an emoji, which is wide.
_MARKS, _AS_EMOJI = frozenset({"Mn", "Me"}), "\N{VARIATION SELECTOR-16}"
#: Longest message, in characters. The quoted text may be megabytes long.
MOST = 2000
_HIDDEN = "***"
#: Terminal escape sequences: colours, cursor movements.
ESCAPES = pattern(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: What lets a program overwrite: it moves the cursor back in its line or up, or erases a part of the line.
_MOVES = pattern(r"(\r(?!\n|\Z)|\x08|\x1b\[[012]?K|\x1b\[[0-9]{0,3}A)")
#: Query parameters from which database drivers take a password.
_SECRET_PARAMETER = pattern(r"([?&][^&=]*(?:pass|secret|token)[^&=]*=)[^&]*", re.IGNORECASE)


def plain(text: str) -> str:
    """Return *text* with every character replaced that could control a terminal. A tab becomes a space."""
    if text.isascii() and text.isprintable():  # the common case
        return text
    import unicodedata  # noqa: PLC0415 - imports slow down the start of a command

    text = text.replace("\t", " ")
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in _OBEYED else char for char in text)


def is_overwritten(text: str) -> bool:
    """Return whether a terminal would show other lines than those of *text*."""
    return _MOVES.search(text) is not None


def terminal_lines(text: str) -> list[str]:
    """Return the lines of *text* as a terminal shows them: of a progress bar that is redrawn, only its last state.

    Lines that nothing overwrites keep their colours. Each character counts as one column.
    """
    lines, row = [""], 0
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        if number:
            row += 1
        if row == len(lines):
            lines.append("")
        if lines[row] or is_overwritten(line):
            row = _draw(lines, row, line)
        else:  # nearly all
            lines[row] = line.rstrip("\r")
    return lines


def _draw(lines: list[str], row: int, line: str) -> int:
    """Write *line* into *lines* from the beginning of *row* on, and return the row in which it ends."""
    there, column = ESCAPES.sub("", lines[row]), 0
    for number, part in enumerate(_MOVES.split(line)):
        if not number % 2:
            written = ESCAPES.sub("", part).rstrip("\r")
            if written:
                there = there[:column].ljust(column) + written + there[column + len(written) :]
            column += len(written)
        elif part == "\r":
            column = 0
        elif part == "\b":
            column = max(0, column - 1)
        elif part.endswith("A"):
            lines[row], row = there, max(0, row - int(part[2:-1] or 1))
            there = ESCAPES.sub("", lines[row])
        else:
            before, after = {"1": (" " * column, there[column:]), "2": ("", "")}.get(part[2:-1], (there[:column], ""))
            there = before + after
    lines[row] = there
    return row


def in_one_line(message: str) -> str:
    """Return *message*, sanitized, on one line. A very long one loses its middle, since its end holds the remedy."""
    line = plain(" ".join(message.splitlines()))
    return line if len(line) <= MOST else f"{line[: MOST // 2]} … {line[-MOST // 2 :]}"


def cells(text: str) -> int:
    """Return how many columns of a terminal *text* takes: wide characters take two, marks on other characters none."""
    if text.isascii():  # the common case
        return len(text)
    return max(_columns(text), default=0)


def _columns(text: str) -> Iterator[int]:
    """Yield how many columns *text* takes up to and including each of its characters."""
    import unicodedata  # noqa: PLC0415 - as above

    total = last = 0
    for char in text:
        if char == _AS_EMOJI:
            total, last = total + (last == 1), 2 if last else 0
        elif unicodedata.category(char) not in _MARKS and not unicodedata.combining(char):
            last = 2 if unicodedata.east_asian_width(char) in _WIDE else 1
            total += last
        yield total


def _cut(text: str, width: int) -> str:
    """Return the beginning of *text* that takes no more than *width* columns."""
    if text.isascii():
        return text[: max(0, width)]
    return text[: sum(1 for _ in takewhile(lambda columns: columns <= width, _columns(text)))]


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


def without_password(url: str) -> str:
    """Return *url* with everything hidden that may be a password. In doubt, it hides too much."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = _SECRET_PARAMETER.sub(rf"\1{_HIDDEN}", rest)
    return scheme + mark + (rest if rest.startswith("/") else _without_account(rest))


def _without_account(rest: str) -> str:
    """Return ``account@place`` without the account's password, which may contain any character, even ``@`` or ``/``."""
    who, at, where = rest.rpartition("@")
    if at:
        name, colon, _ = who.partition(":")
        return f"{name}:{_HIDDEN}@{where}" if colon else rest
    host, colon, port = where.partition(":")
    if colon and not where.startswith("[") and not re.match(r"\d*([/?]|$)", port):
        return f"{host}:{_HIDDEN}"  # account:password without @place
    return rest
