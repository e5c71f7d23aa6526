"""Tests of the store's protocol in the built-in client. They need no store."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.queue.resp.client import Pipeline, RespClient
from gpuqueue.queue.resp.connection import MAX_LINE_BYTES, MAX_STRING_BYTES, NoStore, Reader, ReplyError, packed

ROOT = Path(__file__).parents[3]


class NoMore(Exception):
    """Raised when no bytes are left."""


def reader_of(pieces: Iterable[bytes]) -> Reader:
    """Return a reader that receives *pieces* one by one."""
    left: Iterator[bytes] = iter([piece for piece in pieces if piece])

    def more() -> bytes:
        with contextlib.suppress(StopIteration):
            return next(left)
        raise NoMore

    return Reader(more)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"+OK\r\n", "OK"),
        (b":-7\r\n", -7),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"$0\r\n\r\n", ""),
        (b"$2\r\n\r\n\r\n", "\r\n"),
        (b"$3\r\na\xffb\r\n", "a\udcffb"),
        (b"*0\r\n", []),
        (b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n$-1\r\n+s\r\n", [1, ["x", None], "s"]),
        # Answers of a store that speaks version 3 of the protocol.
        (b"_\r\n", None),
        (b"#t\r\n", True),
        (b"#f\r\n", False),
        (b",1.5\r\n", 1.5),
        (b",-inf\r\n", float("-inf")),
        (b"(123456789012345678901234567890\r\n", 123456789012345678901234567890),
        (b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", {"a": 1, "b": [2]}),
        (b"~2\r\n:1\r\n:2\r\n", [1, 2]),
        (b"=7\r\ntxt:abc\r\n", "abc"),
        (b"|1\r\n+ttl\r\n:9\r\n$1\r\nx\r\n", "x"),
        (b">3\r\n+message\r\n+c\r\n+d\r\n", ["message", "c", "d"]),
    ],
)
def test_each_kind_of_answer(sent: bytes, answer: Any) -> None:
    """Every kind of answer is read, in one piece and byte by byte, and the next answer after it is intact."""
    for pieces in ([sent + b"+next\r\n"], [bytes([each]) for each in sent + b"+next\r\n"]):
        reader = reader_of(pieces)

        assert answer == reader.answer()
        assert "next" == reader.answer()


@pytest.mark.parametrize("sent", [b"-OOM no room\r\n", b"!11\r\nOOM no room\r\n"])
def test_an_error_is_returned_where_it_stands(sent: bytes) -> None:
    """An error within a list is returned in its place, and the other answers count."""
    _, error, last = reader_of([b"*3\r\n:1\r\n" + sent + b":3\r\n"]).answer()

    assert isinstance(error, ReplyError)
    assert ("OOM no room", 3) == (str(error), last)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"$abc\r\n",
        b":\r\n",
        b",x\r\n",
        b"#\r\n",
        b"\r\n",
        b"$3\r\nabcde\r\n",
        b"$%d\r\n" % (MAX_STRING_BYTES + 1),
        b"*1\r\n" * 40,
        b"%1\r\n*0\r\n+x\r\n",
        b"x" * (MAX_LINE_BYTES + 2),
    ],
)
def test_an_invalid_answer_is_an_error_at_once(sent: bytes) -> None:
    """Bytes that are no answer raise an error at once, because the server may send nothing more."""
    with pytest.raises(NoStore):
        reader_of([sent]).answer()


@given(st.binary(max_size=60))
def test_any_bytes_give_an_answer_the_end_of_input_or_nostore(sent: bytes) -> None:
    # No other exception is raised.
    reader = reader_of([sent])
    with contextlib.suppress(NoMore, NoStore):
        while True:
            reader.answer()


@given(
    words=st.lists(st.text() | st.integers() | st.floats(allow_nan=False), min_size=1),
    cuts=st.lists(st.integers(0, 300)),
)
def test_a_command_is_a_list_of_texts_however_the_network_splits_it(words: list[Any], cuts: list[int]) -> None:
    # An interrupted read starts again.
    words = [each.encode("utf-8", "replace").decode() if isinstance(each, str) else each for each in words]
    sent = packed(words)
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    reader = reader_of([sent[a:b] for a, b in itertools.pairwise(edges)])

    assert [each if isinstance(each, str) else repr(each) for each in words] == reader.answer()


def test_a_subscribers_read_may_time_out_in_the_middle_of_a_message() -> None:
    # The message is not lost.
    pieces = [b"*2\r\n$3\r\nab", b"", b"c\r\n:1\r\n"]

    def more() -> bytes:
        piece = pieces.pop(0)
        if not piece:
            raise TimeoutError
        return piece

    reader = Reader(more)
    with pytest.raises(TimeoutError):
        reader.answer()

    assert ["abc", 1] == reader.answer()


def test_the_client_has_every_command_that_the_queue_uses() -> None:
    # A missing command would be a traceback for a user, although all tests of workers with the redis library pass.
    with_redis_py = {"census.py", "redis_py.py", "diagnostics.py", "safety.py"}
    rooms = (ROOT / "gpuqueue" / "queue").glob("*.py")
    texts = [room.read_text() for room in rooms if room.name not in with_redis_py]
    asked = {(whose, name) for text in texts for whose, name in re.findall(r"\b(client|pipe)\.([a-z_]+)\(", text)}

    assert ("client", "hgetall") in asked
    assert ("pipe", "execute") in asked
    assert [] == sorted(
        (whose, name) for whose, name in asked if not hasattr(RespClient if whose == "client" else Pipeline, name)
    )
