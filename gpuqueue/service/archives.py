"""Archives of the files of runs, as streams: from a process on this host, or from the relay of another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from gpuqueue.errors import GpuQueueError
from gpuqueue.results.pack_request import NO_COPY, PackRequest, pack_command
from gpuqueue.service.problems import NotHere
from gpuqueue.service.transfers import SEARCH_S, SILENCE_S
from gpuqueue.text.sanitize import in_one_line

#: The program that packs files. Empty: ``gpuqueue-worker`` beside this interpreter.
PROGRAM = ""
#: Most bytes that are read at once, and most of the program's error output that is kept.
PART_BYTES, MOST_ERROR_BYTES = 256 * 1024, 4096


class CutShort(GpuQueueError):
    """An archive ends before its end. The client sees a connection that is closed too early."""


class Source(Protocol):
    """An archive that arrives in parts."""

    def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts. Raises NotHere if there is nothing to send, or no more."""

    async def close(self) -> None:
        """End it in any case."""


class Packed:
    """An archive that a process of ``gpuqueue-worker pack`` writes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._errors = asyncio.ensure_future(_beginning(process.stderr))

    @classmethod
    async def start(cls, request: PackRequest) -> Packed:
        """Begin to pack what *request* names."""
        with request.as_input() as asked:
            process = await asyncio.create_subprocess_exec(
                *([PROGRAM, "pack"] if PROGRAM else pack_command()),
                stdin=asked,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=PART_BYTES,
            )
        return cls(process)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the archive.

        Raises:
            NotHere: there is no copy of the code.
            CutShort: the program has failed.

        """
        output = self._process.stdout
        assert output is not None  # noqa: S101 - a pipe, see start
        most_s = SEARCH_S
        while True:
            try:
                part = await asyncio.wait_for(output.read(PART_BYTES), most_s)
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                raise CutShort(f"packing the files made no progress for {most_s:g} s") from None
            if not part:
                break
            yield part
            most_s = SILENCE_S
        code, errors = await self._process.wait(), await self._errors
        if code:
            reason = in_one_line(errors.decode(errors="replace")).strip() or f"the program ended with {code}"
            raise NotHere(reason) if code == NO_COPY else CutShort(f"the files cannot be packed: {reason}")

    async def close(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._errors.cancel()


class Archive:
    """An archive whose first part is there."""

    def __init__(self, source: Source, rest: AsyncIterator[bytes], first: bytes, at_end: Callable[[], None]) -> None:
        self._source, self._rest, self._first, self._at_end = source, rest, first, at_end

    async def content(self) -> AsyncIterator[bytes]:
        """Yield the whole archive. Raises NotHere or CutShort before its end."""
        yield self._first
        async for part in self._rest:
            yield part

    async def close(self) -> None:
        """End it in any case."""
        self._at_end()
        await self._source.close()


async def begun(source: Source, at_end: Callable[[], None]) -> Archive:
    """Return the archive of *source*, which has begun to arrive. *at_end* is called when it is closed.

    Raises:
        NotHere: there is nothing to send.
        CutShort: the program has failed.

    """
    parts = source.parts()
    try:
        return Archive(source, parts, await parts.__anext__(), at_end)
    except StopAsyncIteration:
        await source.close()
        raise NotHere("no archive came") from None
    except BaseException:
        await source.close()
        raise


async def _beginning(stream: asyncio.StreamReader | None) -> bytes:
    """Read *stream* to its end, and return the beginning."""
    found = b""
    while stream is not None and (part := await stream.read(MOST_ERROR_BYTES)):
        found += part[: MOST_ERROR_BYTES - len(found)]
    return found
