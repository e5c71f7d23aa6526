"""Keys for terminals of other hosts: each is passed on once and in order, and who typed learns whether it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gpuqueue.errors import BadRequest, HostUnreachable, Refused
from gpuqueue.model.terminal_size import Window
from gpuqueue.service import relay_requests
from gpuqueue.service.relay_requests import TerminalKeys
from gpuqueue.service.responses import NotHere
from gpuqueue.system.terminal_socket import MOST_BYTES, size_frame, typed_frames


def within(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run *main* in a loop, with a bound."""
    asyncio.run(asyncio.wait_for(main(), 20))


def keys_of(ends: list[str] | None = None) -> TerminalKeys:
    """Return keys that note their end in *ends*."""
    return TerminalKeys("gpu2", lambda: None if ends is None else ends.append("end"))


def typing(keys: TerminalKeys, frames: bytes) -> asyncio.Task[bool]:
    """Begin to type *frames*."""
    return asyncio.ensure_future(keys.type(frames))  # type: ignore[return-value] # a coroutine becomes a task


def test_frames_are_those_of_the_shim() -> None:
    """A letter, two bytes with the length, and the rest; long input becomes several frames."""
    assert b"I\x00\x02ab" == typed_frames(b"ab")
    assert b"" == typed_frames(b"")
    long = typed_frames(b"x" * (MOST_BYTES + 1))
    assert (b"I\xff\xff", b"I\x00\x01x") == (long[:3], long[-4:])
    assert b"W\x00\x04\x00Z\x00\x14" == size_frame(Window(columns=90, rows=20))


def test_keys_are_passed_on_once_and_in_order() -> None:
    """The relay says how much it has passed on, and only then does the user get an answer."""

    async def main() -> None:
        keys = keys_of()
        poll = asyncio.ensure_future(keys.after(0, 10))
        first = typing(keys, b"one")
        assert b"one" == await poll
        second = typing(keys, b"two")
        await asyncio.sleep(0)
        assert not first.done()
        assert b"two" == await keys.after(3, 10)
        assert await first
        assert not second.done()
        assert b"" == await keys.after(6, 0.01)
        assert await second

    within(main)


def test_an_answer_that_was_lost_is_sent_again() -> None:
    """A relay that asks with the same offset gets the same bytes. An earlier poll, of a dead connection, gets none."""

    async def main() -> None:
        keys = keys_of()
        typed = typing(keys, b"one")
        await asyncio.sleep(0)
        assert b"one" == await keys.after(0, 10)
        assert b"one" == await keys.after(0, 10)
        assert b"" == await keys.after(3, 0)
        assert await typed
        dead = asyncio.ensure_future(keys.after(3, 10))
        await asyncio.sleep(0)
        alive = asyncio.ensure_future(keys.after(3, 10))
        await asyncio.sleep(0)
        typing(keys, b"two")
        assert (b"", b"two") == (await dead, await alive)
        keys.end()

    within(main)


@pytest.mark.parametrize("offset", [2, 4, 9])
def test_an_offset_that_cannot_be_is_refused(offset: int) -> None:
    """Before what was passed on, and behind what was typed."""

    async def main() -> None:
        keys = keys_of()
        typed = typing(keys, b"one")
        await asyncio.sleep(0)
        await keys.after(3, 0)
        assert await typed
        with pytest.raises(BadRequest):
            await keys.after(offset, 0)

    within(main)


def test_the_end_of_the_run_is_that_of_the_terminal() -> None:
    """Who types gets that there is none, and the relay is told to leave it. It ends once."""

    async def main() -> None:
        ends: list[str] = []
        keys = keys_of(ends)
        poll = asyncio.ensure_future(keys.after(0, 10))
        await asyncio.sleep(0)
        typed = typing(keys, b"one")
        await asyncio.sleep(0)
        keys.end()
        keys.end(Refused("again"))
        assert not await typed
        with pytest.raises(NotHere):
            await poll
        with pytest.raises(NotHere):
            await keys.after(0, 0)
        assert ["end"] == ends

    within(main)


def test_a_relay_that_does_not_pass_on_keys_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who wait learn that the host does not answer, at the time of the first."""
    monkeypatch.setattr(relay_requests, "KEYS_S", 0.1)

    async def main() -> None:
        ends: list[str] = []
        keys = keys_of(ends)
        both = [typing(keys, b"one"), typing(keys, b"two")]
        for each in await asyncio.gather(*both, return_exceptions=True):
            assert isinstance(each, HostUnreachable)
            assert "host gpu2 does not answer" == str(each)
        assert ["end"] == ends

    within(main)


def test_a_relay_that_leaves_ends_it_at_once() -> None:
    """Nobody waits for a relay that was killed."""

    async def main() -> None:
        keys = keys_of()
        typed = typing(keys, b"one")
        await asyncio.sleep(0)
        keys.left()
        with pytest.raises(HostUnreachable, match="host gpu2 does not answer any more"):
            await typed

    within(main)


def test_a_terminal_on_which_nobody_types_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no connection of the host for ever. Each key begins the time anew."""
    monkeypatch.setattr(relay_requests, "IDLE_S", 0.2)

    async def main() -> None:
        ends: list[str] = []
        keys = keys_of(ends)
        at_first_s = keys._idle.when()
        typed = typing(keys, b"x")
        await asyncio.sleep(0)
        await keys.after(1, 0)
        assert await typed
        assert keys._idle.when() > at_first_s
        assert [] == ends
        with pytest.raises(NotHere):
            await keys.after(1, 10)
        assert ["end"] == ends

    within(main)


def test_what_the_job_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More is refused, what waits stays, and the relay gets it in parts."""
    monkeypatch.setattr(relay_requests, "MOST_WAITING_BYTES", 10)
    monkeypatch.setattr(relay_requests, "MOST_PART_BYTES", 6)

    async def main() -> None:
        keys = keys_of()
        typed = typing(keys, b"0123456789")
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="type less at a time"):
            await keys.type(b"x")
        assert b"012345" == await keys.after(0, 0)
        assert b"6789" == await keys.after(6, 0)
        assert b"" == await keys.after(10, 0)
        assert await typed

    within(main)
