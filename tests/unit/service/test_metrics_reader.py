"""A reader of the metrics: one read for all who ask, and nobody waits longer than its bound."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.service.metrics import exposition
from gpuqueue.service.metrics.exposition import Reader, Reading


def test_all_who_ask_share_one_read() -> None:
    """Many scrapes at once, and those within FRESH_S, make one read."""
    reads: list[int] = []

    async def ask(pool: ThreadPoolExecutor) -> list[Reading[int]]:
        made = Reader(lambda: reads.append(1) or len(reads), pool)
        at_once = await asyncio.gather(*(made.reading() for _ in range(20)))
        return [*at_once, await made.reading()]

    with ThreadPoolExecutor(4) as pool:
        found = asyncio.run(ask(pool))

    assert ([1], {1}) == (reads, {each.value for each in found})


def test_a_read_without_an_end_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as no answer until it has ended, and no second one is made. Its late result is used."""
    monkeypatch.setattr(exposition, "WAIT_S", 0.05)
    go_on, begun = threading.Event(), []

    def slow() -> str:
        begun.append(1)
        go_on.wait(30)
        return "late"

    async def ask(pool: ThreadPoolExecutor) -> list[str | None]:
        made = Reader(slow, pool)
        found = [(await made.reading()).value for _ in range(3)]
        go_on.set()
        monkeypatch.setattr(exposition, "WAIT_S", 30)
        return [*found, (await made.reading()).value]

    with ThreadPoolExecutor(4) as pool:
        assert [None, None, None, "late"] == asyncio.run(ask(pool))
    assert [1] == begun


def test_what_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed read is no answer; a later one may be."""
    monkeypatch.setattr(exposition, "FRESH_S", 0.0)
    answers = iter([HistoryUnreachable("it is away"), 7])

    def read() -> int:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    async def ask(pool: ThreadPoolExecutor) -> list[int | None]:
        made = Reader(read, pool)
        return [(await made.reading()).value for _ in range(2)]

    with ThreadPoolExecutor(1) as pool:
        assert [None, 7] == asyncio.run(ask(pool))
