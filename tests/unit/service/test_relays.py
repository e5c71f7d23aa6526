"""The requests to relays in memory: who gets them, how often, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gpuqueue.errors import HostUnreachable, Refused, ServiceUnreachable
from gpuqueue.model.relay import RelayKind
from gpuqueue.service import relay_requests, relays
from gpuqueue.service.relay_requests import STOPPING, FilesRequest, HostRun, LogRequest, TerminalRequest
from gpuqueue.service.relays import Relays
from gpuqueue.service.responses import NotHere

RUN = HostRun(host="gpu2", job_id=5, token="1.abc")
OTHER = HostRun(host="gpu2", job_id=6, token="1.def")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for long."""
    monkeypatch.setattr(relays, "LOG_S", 0.2)
    monkeypatch.setattr(relay_requests, "FIRST_S", 0.2)
    monkeypatch.setattr(relay_requests, "SILENCE_S", 0.2)
    monkeypatch.setattr(relay_requests, "SEARCH_S", 0.2)


def within(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run *main* in a loop, with a bound."""
    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_reader_waits_until_the_relay_has_sent_the_log() -> None:
    """The relay gets the request of a reader once, and its answer wakes the reader."""

    async def main() -> None:
        site = Relays()
        reader = asyncio.ensure_future(site.log(RUN, goes_on=True))
        (found,) = await site.poll("gpu2", 10)
        assert (RelayKind.LOG, 5, "1.abc", ()) == (found.kind, found.job, found.token, found.patterns)
        assert () == await site.poll("gpu2", 0.05)
        request = site.find("gpu2", found.id)
        assert isinstance(request, LogRequest)
        site.done(request, None)
        assert None is await reader
        assert None is site.find("gpu2", found.id)
        assert {} == site._hosts

    within(main)


def test_a_poll_is_woken_by_a_request_and_gets_only_those_to_its_host() -> None:
    """A long poll waits for a request, and no host sees that of another."""

    async def main() -> None:
        site = Relays()
        polls = {name: asyncio.ensure_future(site.poll(name, 10)) for name in ("gpu2", "gpu3")}
        await asyncio.sleep(0)
        reader = asyncio.ensure_future(site.log(RUN, goes_on=True))
        (found,) = await polls["gpu2"]
        assert not polls["gpu3"].done()
        assert None is site.find("gpu3", found.id)
        site.close()
        assert () == await polls["gpu3"]
        assert STOPPING == await reader

    within(main)


def test_readers_of_one_log_share_a_request_until_a_relay_has_taken_it() -> None:
    """The relay may have read the log already when it has taken the request, so a later reader makes another."""

    async def main() -> None:
        site = Relays()
        readers = [asyncio.ensure_future(site.log(RUN, goes_on=True)) for _ in range(3)]
        await asyncio.sleep(0)
        (first,) = await site.poll("gpu2", 10)
        late = asyncio.ensure_future(site.log(RUN, goes_on=False))
        (second,) = await site.poll("gpu2", 10)
        assert first.id != second.id
        answer = site.find("gpu2", first.id)
        assert answer is not None
        site.done(answer, "the log is gone")
        assert ["the log is gone"] * 3 == await asyncio.gather(*readers)
        assert not late.done()
        site.close()
        await late

    within(main)


def test_a_log_that_was_delivered_just_now_needs_no_request() -> None:
    """Only while its run goes on: the last lines of a run that has ended may be missing."""

    async def main() -> None:
        site = Relays()
        reader = asyncio.ensure_future(site.log(RUN, goes_on=True))
        (found,) = await site.poll("gpu2", 10)
        request = site.find("gpu2", found.id)
        assert request is not None
        site.done(request, None)
        await reader
        assert None is await site.log(RUN, goes_on=True)
        again = asyncio.ensure_future(site.log(RUN, goes_on=False))
        assert 1 == len(await site.poll("gpu2", 10))
        site.close()
        await again

    within(main)


@pytest.mark.usefixtures("impatient")
def test_a_host_that_does_not_answer_is_waited_for_once() -> None:
    """The next readers learn at once that it does not answer, until its relay is there again."""

    async def main() -> None:
        site = Relays()
        loop = asyncio.get_running_loop()
        assert "host gpu2 does not answer" == await site.log(RUN, goes_on=True)
        began = loop.time()
        assert "host gpu2 does not answer" == await site.log(OTHER, goes_on=True)
        with pytest.raises(NotHere, match="host gpu2 does not answer"):
            site.files(RUN, ())
        assert loop.time() - began < 0.1
        assert () == await site.poll("gpu2", 0)
        reader = asyncio.ensure_future(site.log(OTHER, goes_on=True))
        assert 1 == len(await site.poll("gpu2", 10))
        await reader
        assert {} == site._hosts

    within(main)


def test_a_relay_that_has_gone_takes_no_request_along() -> None:
    """A cancelled poll leaves its request to the next one."""

    async def main() -> None:
        site = Relays()
        gone = asyncio.ensure_future(site.poll("gpu2", 10))
        there = asyncio.ensure_future(site.poll("gpu2", 10))
        await asyncio.sleep(0)
        there, gone = gone, there  # the newest poll is woken
        reader = asyncio.ensure_future(site.log(RUN, goes_on=True))
        await asyncio.sleep(0)
        gone.cancel()
        assert 1 == len(await there)
        site.close()
        await reader

    within(main)


def test_the_number_of_polls_and_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest poll of a host ends for a new one, and too many requests are refused."""
    monkeypatch.setattr(relays, "MOST_POLLS", 2)
    monkeypatch.setattr(relays, "MOST_REQUESTS", 3)

    async def main() -> None:
        site = Relays()
        polls = [asyncio.ensure_future(site.poll("gpu2", 10)) for _ in range(3)]
        assert () == await polls[0]
        assert not polls[1].done()
        assert not polls[2].done()
        transfers_ = [site.files(RUN, ("*.pt",)) for _ in range(3)]
        with pytest.raises(NotHere, match="too many requests wait for host gpu2"):
            site.files(RUN, ())
        assert "too many requests wait for host gpu2: ask again later" == await site.log(RUN, goes_on=True)
        found = await polls[2]
        assert [("*.pt",)] * 3 == [each.patterns for each in found]
        await transfers_[0].close()
        await site.files(RUN, ()).close()
        site.close()

    within(main)


def test_files_go_from_the_relay_to_the_client() -> None:
    """The parts arrive in order, the relay waits for the client, and the end ends the stream."""

    async def main() -> None:
        site = Relays()
        transfer = site.files(RUN, ("out/**",))
        (found,) = await site.poll("gpu2", 10)
        request = site.find("gpu2", found.id)
        assert isinstance(request, FilesRequest)

        async def send() -> None:
            request.transfer.begin()
            for number in range(20):
                await request.transfer.send(b"%d," % number)
            site.done(request, None)

        sent = asyncio.ensure_future(send())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sent.done()  # the client has read nothing
        assert b"".join(b"%d," % number for number in range(20)) == b"".join([x async for x in transfer.parts()])
        await sent
        with pytest.raises(NotHere):
            request.transfer.begin()
        await transfer.close()
        assert None is site.find("gpu2", found.id)

    within(main)


def test_a_failure_of_the_relay_is_that_of_the_client() -> None:
    """The client gets what was sent, and then the reason."""

    async def main() -> None:
        site = Relays()
        transfer = site.files(RUN, ())
        (found,) = await site.poll("gpu2", 10)
        request = site.find("gpu2", found.id)
        assert isinstance(request, FilesRequest)
        request.transfer.begin()
        await request.transfer.send(b"half")
        site.done(request, "the disk is gone")
        parts = transfer.parts()
        assert b"half" == await parts.__anext__()
        with pytest.raises(NotHere, match="the disk is gone"):
            await parts.__anext__()
        with pytest.raises(NotHere, match="nobody waits"):
            await request.transfer.send(b"more")

    within(main)


def test_a_relay_that_waits_for_a_client_ends_with_it() -> None:
    """A client that closes its connection ends the request of the relay."""

    async def main() -> None:
        site = Relays()
        transfer = site.files(RUN, ())
        (found,) = await site.poll("gpu2", 10)
        request = site.find("gpu2", found.id)
        assert isinstance(request, FilesRequest)
        request.transfer.begin()

        async def send() -> None:
            while True:
                await request.transfer.send(b"x")

        sending = asyncio.ensure_future(send())
        for _ in range(100):
            await asyncio.sleep(0)
        await transfer.close()
        with pytest.raises(NotHere, match="nobody waits"):
            await sending
        assert {} == site._hosts

    within(main)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("begins", "says"), [(False, "does not answer"), (True, "has stopped sending")])
def test_a_relay_that_sends_nothing_is_not_waited_for(begins: bool, says: str) -> None:  # noqa: FBT001 - parametrized
    """Neither its first answer nor the next part is waited for for ever."""

    async def main() -> None:
        site = Relays()
        transfer = site.files(RUN, ())
        (found,) = await site.poll("gpu2", 10)
        request = site.find("gpu2", found.id)
        assert isinstance(request, FilesRequest)
        if begins:
            request.transfer.begin()
        with pytest.raises(NotHere, match=f"host gpu2 {says}"):
            [x async for x in transfer.parts()]

    within(main)


def test_the_end_of_the_service_ends_everything() -> None:
    """Readers, clients and relays learn it, and nothing new is waited for."""

    async def main() -> None:
        site = Relays()
        reader = asyncio.ensure_future(site.log(RUN, goes_on=False))
        transfer = site.files(RUN, ())
        await asyncio.sleep(0)
        site.close()
        assert STOPPING == await reader
        with pytest.raises(NotHere, match="the service is stopping"):
            [x async for x in transfer.parts()]
        assert () == await site.poll("gpu2", 10)
        assert STOPPING == await site.log(OTHER, goes_on=False)

    within(main)


def test_all_who_type_on_a_terminal_share_its_request() -> None:
    """The relay gets it once, and its end lets the next key make another."""

    async def main() -> None:
        site = Relays()
        users = [asyncio.ensure_future(site.type(RUN, b"%d" % number)) for number in range(2)]
        (found,) = await site.poll("gpu2", 10)
        assert (RelayKind.TERMINAL, 5, "1.abc") == (found.kind, found.job, found.token)
        request = site.find("gpu2", found.id)
        assert isinstance(request, TerminalRequest)
        assert request is site.terminal(RUN)
        assert None is site.terminal(OTHER)
        assert b"01" == await request.keys.after(0, 0)
        late = asyncio.ensure_future(request.keys.after(2, 10))
        assert [True, True] == await asyncio.gather(*users)
        site.done(request, None)
        with pytest.raises(NotHere):
            await late
        assert None is site.terminal(RUN)
        assert {} == site._hosts
        refused = asyncio.ensure_future(site.type(RUN, b"x"))
        (found,) = await site.poll("gpu2", 10)
        again = site.find("gpu2", found.id)
        assert again is not None
        site.done(again, "it belongs to another account")
        with pytest.raises(Refused, match="cannot be used: it belongs to another account"):
            await refused

    within(main)


def test_a_host_that_passes_on_no_keys_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next key is lost at once, until the relay is there again."""
    monkeypatch.setattr(relay_requests, "KEYS_S", 0.2)

    async def main() -> None:
        site = Relays()
        loop = asyncio.get_running_loop()
        with pytest.raises(HostUnreachable, match="host gpu2 does not answer"):
            await site.type(RUN, b"x")
        began = loop.time()
        with pytest.raises(HostUnreachable, match="host gpu2 does not answer"):
            await site.type(RUN, b"y")
        assert loop.time() - began < 0.1
        assert () == await site.poll("gpu2", 0)
        typed = asyncio.ensure_future(site.type(RUN, b"z"))
        (found,) = await site.poll("gpu2", 10)
        request = site.find("gpu2", found.id)
        assert isinstance(request, TerminalRequest)
        assert b"z" == await request.keys.after(0, 0)  # and none of those that were lost
        site.close()
        with pytest.raises(ServiceUnreachable):
            await typed
        with pytest.raises(ServiceUnreachable):
            await site.type(RUN, b"z")

    within(main)
