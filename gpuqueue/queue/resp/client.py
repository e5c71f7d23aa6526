"""The client: commands to one store, over as many connections as are needed at the same time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gpuqueue.queue.resp.address import Address
from gpuqueue.queue.resp.commands import Commands, Shape
from gpuqueue.queue.resp.connection import Line
from gpuqueue.queue.resp.errors import NoStore, RespError
from gpuqueue.queue.resp.protocol import Word
from gpuqueue.queue.resp.pubsub import PubSub
from gpuqueue.queue.resp.script import Script


class RespClient(Commands):
    """A client of the store at *address*. Threads may share it, and a child process may use it after a fork.

    It never sends a command twice. If there is no answer, only the caller knows whether a retry is safe.
    *connect_s* and *silent_s* are as in :class:`Line`.
    """

    def __init__(self, address: Address, *, connect_s: float, silent_s: float) -> None:
        self._address = address
        self._connect_s = connect_s
        self._silent_s = silent_s
        self._idle: list[Line] = []
        self._pid = os.getpid()

    def ask(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send all *commands* at once and return the answers; an error takes the place of its answer."""
        line = self._line()
        try:
            answers = line.ask(commands)
        except BaseException:  # a late answer must not be taken for that of the next command
            line.close()
            raise
        self._idle.append(line)
        return answers

    def _do(self, words: Sequence[Word], shape: Shape) -> Any:
        (answer,) = self.ask([words])
        if isinstance(answer, RespError):
            raise answer
        return shape(answer)

    def register_script(self, text: str) -> Script:
        """Return the script *text* as a callable."""
        return Script(self, text)

    def pipeline(self, *, transaction: bool) -> Pipeline:
        """Return a pipeline, which sends its commands at once; with *transaction* they run in one atomic step."""
        return Pipeline(self, transaction=transaction)

    def pubsub(self, *, ignore_subscribe_messages: bool) -> PubSub:  # noqa: ARG002 - they always are
        """Return a subscriber to the store's channels."""
        return PubSub(self._new)

    def close(self) -> None:
        """Close the connections; a later command opens a new one."""
        while self._idle:
            self._idle.pop().close()

    def _line(self) -> Line:
        if self._pid != os.getpid():  # after a fork: the parent still uses these connections
            self.close()
            self._pid = os.getpid()
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if line.is_quiet():
                return line
            line.close()
        return self._new(self._silent_s)

    def _new(self, silent_s: float | None = None) -> Line:
        return Line(self._address, connect_s=self._connect_s, silent_s=silent_s or self._silent_s)


class Pipeline(Commands):
    """Commands that are sent together."""

    def __init__(self, resp_client: RespClient, *, transaction: bool) -> None:
        self._resp = resp_client
        self._transaction = transaction
        self._asked: list[tuple[Sequence[Word], Shape]] = []

    def _do(self, words: Sequence[Word], shape: Shape) -> Pipeline:
        self._asked.append((words, shape))
        return self

    def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        """Send the collected commands and return the answers; with *raise_on_error* raise the first error."""
        asked, self._asked = self._asked, []
        if not asked:
            return []
        words = [each for each, _ in asked]
        answers = self._at_once(words) if self._transaction else self._resp.ask(words)
        found = []
        for answer, (_, shape) in zip(answers, asked, strict=True):
            if not isinstance(answer, RespError):
                found.append(shape(answer))
            elif raise_on_error:
                raise answer
            else:
                found.append(answer)
        return found

    def _at_once(self, words: Sequence[Sequence[Word]]) -> list[Any]:
        *taken, done = self._resp.ask([("MULTI",), *words, ("EXEC",)])
        for answer in taken:  # a command that was not queued is the cause of the failure
            if isinstance(answer, RespError):
                raise answer
        if isinstance(done, RespError):
            raise done
        if not isinstance(done, list):
            raise NoStore("a transaction is answered with no list")
        return done
