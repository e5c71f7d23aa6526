"""The Redis protocol RESP, versions 2 and 3: encodes commands and parses answers. Pure except for the source of bytes.

Text is UTF-8. Other bytes become escaped surrogates, and are sent back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuqueue.queue.resp.errors import NoStore, ReplyError

Word = str | int | float

#: Limits of a valid answer: the lengths of a line and a string in bytes, and the depth of nested lists.
MAX_LINE_BYTES = 64 * 1024
MAX_STRING_BYTES = 512 * 1024 * 1024
MAX_DEPTH = 32

_END = b"\r\n"
_CONSTANTS = {b"_": None, b"#t": True, b"#f": False}


def packed(words: Sequence[Word]) -> bytes:
    """Return one command in wire format."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        text = (word if isinstance(word, str) else repr(word)).encode("utf-8", "surrogateescape")
        parts += (b"$%d\r\n" % len(text), text, _END)
    return b"".join(parts)


class Reader:
    """Reads answers from the bytes that *more* returns; *more* must return at least one byte, or raise.

    If *more* raises in the middle of an answer, no data is lost: the next call starts with that answer again.
    """

    def __init__(self, more: Callable[[], bytes]) -> None:
        self._more = more
        self._buffer = bytearray()
        self._at = 0

    def answer(self) -> Any:
        """Return the next answer; an error of the store is returned as an exception object, nested or not.

        Raises:
            NoStore: the bytes are not RESP.

        """
        self._at = 0
        found = self._next(0)
        del self._buffer[: self._at]
        return found

    def _next(self, depth: int) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind in _LINES:
            return _LINES[kind](rest)
        if kind in {b"$", b"=", b"!"}:
            return self._string(kind, _number(rest))
        if kind in {b"*", b"~", b">", b"%", b"|"}:
            return self._many(kind, _number(rest), depth + 1)
        return _constant(line)

    def _many(self, kind: bytes, count: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise NoStore("an answer nests too deeply")
        if kind not in {b"%", b"|"}:
            return None if count < 0 else [self._next(depth) for _ in range(count)]
        pairs = {_hashable(self._next(depth)): self._next(depth) for _ in range(count)}
        return pairs if kind == b"%" else self._next(depth)  # attributes precede the answer

    def _string(self, kind: bytes, length: int) -> str | ReplyError | None:
        if length < 0:
            return None
        if length > MAX_STRING_BYTES:
            raise NoStore(f"a string of {length} bytes")
        until = self._at + length
        while len(self._buffer) < until + len(_END):
            self._buffer += self._more()
        if self._buffer[until : until + len(_END)] != _END:
            raise NoStore("a string does not end where it should")
        text = _text(self._buffer[self._at : until])
        self._at = until + len(_END)
        if kind == b"!":
            return ReplyError(text)
        return text[4:] if kind == b"=" else text  # without the prefix "txt:"

    def _line(self) -> bytes:
        from_here = self._at
        while (end := self._buffer.find(_END, from_here)) < 0:
            if len(self._buffer) - self._at > MAX_LINE_BYTES:
                raise NoStore("a line has no end")
            from_here = max(self._at, len(self._buffer) - 1)
            self._buffer += self._more()
        line = bytes(self._buffer[self._at : end])
        self._at = end + len(_END)
        return line


def _text(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _number(raw: bytes) -> int:
    try:
        return int(raw)
    except ValueError:
        raise NoStore(f"{raw[:40]!r} is no number") from None


#: Parsers of one-line answers, by the first byte.
_LINES: dict[bytes, Callable[[bytes], Any]] = {
    b"+": _text,
    b"-": lambda rest: ReplyError(_text(rest)),
    b":": _number,
    b"(": _number,
}


def _constant(line: bytes) -> float | bool | None:
    if line in _CONSTANTS:
        return _CONSTANTS[line]
    if line[:1] == b",":
        try:
            return float(line[1:])
        except ValueError:
            pass
    raise NoStore(f"{line[:40]!r} is no answer")


def _hashable(key: Any) -> Any:
    if isinstance(key, (list, dict)):
        raise NoStore("a list is no name")
    return key
