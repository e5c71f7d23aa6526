"""What the service lets a worker host send to the store."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.errors import BadRequest
from gpuqueue.model.access import Forbidden
from gpuqueue.queue.resp.connection import packed
from gpuqueue.service.store_tunnel import CommandCheck

WORDS = st.lists(st.text(max_size=40), min_size=1, max_size=6).filter(
    lambda words: words[0].strip().upper() not in {"AUTH", "RESET", "HELLO"}
)
FORBIDDEN = st.sampled_from(
    [
        ("AUTH", "x"),
        ("auth", "default", "x"),
        ("Reset",),
        ("hello", "3", "AUTH", "default", "x"),
        ("HELLO", "2", "SETNAME"),
    ]
)


def parts_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return *data* cut at *cuts*."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


@given(st.lists(WORDS, max_size=8), st.lists(st.integers(min_value=0), max_size=12))
def test_all_commands_of_the_queue_pass_however_they_are_cut(commands: list[list[str]], cuts: list[int]) -> None:
    """Words may hold any text, also what looks like a command."""
    check = CommandCheck()
    for part in parts_of(b"".join(map(packed, commands)), cuts):
        check.feed(part)


@given(st.lists(WORDS, max_size=4), FORBIDDEN, st.lists(st.integers(min_value=0), max_size=12))
def test_no_command_that_changes_the_user_passes_whole(
    commands: list[list[str]], words: tuple[str, ...], cuts: list[int]
) -> None:
    """It is refused before its last bytes are passed on, so that the store cannot have run it."""
    data = b"".join(map(packed, [*commands, words]))
    check, passed = CommandCheck(), 0
    with pytest.raises(Forbidden):
        for part in parts_of(data, cuts):
            check.feed(part)
            passed += len(part)

    assert passed < len(data)


@pytest.mark.parametrize("start", [("HELLO",), ("HELLO", "3")])
def test_the_version_of_the_protocol_may_be_chosen(start: tuple[str, ...]) -> None:
    """Newer clients begin with it."""
    CommandCheck().feed(packed(start))


@pytest.mark.parametrize(
    "data",
    [
        b"PING\r\n",
        b"AUTH default x\r\n",
        b"*1\n",
        b"*1\rX",
        b"*-1\r\n",
        b"*x\r\n",
        b"*1\r\n:4\r\n",
        b"*1\r\n$-1\r\n",
        b"*" * 20,
    ],
)
def test_what_is_no_command_in_words_is_refused(data: bytes) -> None:
    """The store also reads commands as lines of text, which are not followed here."""
    with pytest.raises(BadRequest):
        CommandCheck().feed(data)
