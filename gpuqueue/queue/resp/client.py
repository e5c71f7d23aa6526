"""The client: commands to one store, over as many connections as are needed at the same time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuqueue.queue.resp.connection import Address, Line, NoStore, ReplyError, RespError, Word

Shape = Callable[[Any], Any]
#: The number of parts of a message: kind, channel and text.
_PARTS = 3


class Commands:
    """One method for each command; an error of the store is raised."""

    def _do(self, words: Sequence[Word], shape: Shape) -> Any:
        """Run the command *words*; *shape* converts the answer to the result of the method."""
        raise NotImplementedError

    def execute_command(self, *words: Word) -> Any:
        """Return the store's unconverted answer to any command."""
        return self._do(words, _same)

    def exists(self, *keys: str) -> Any:
        """Return how many of *keys* exist."""
        return self._do(("EXISTS", *keys), _same)

    def get(self, key: str) -> Any:
        """Return the value of a string key, or None."""
        return self._do(("GET", key), _same)

    def mget(self, keys: Sequence[str]) -> Any:
        """Return the values of several string keys, with None for a missing one."""
        return self._do(("MGET", *keys), _same)

    def time(self) -> Any:
        """Return the store's clock as seconds and microseconds."""
        return self._do(("TIME",), _clock)

    def hget(self, key: str, field: str) -> Any:
        """Return one field, or None."""
        return self._do(("HGET", key, field), _same)

    def hmget(self, key: str, *fields: str) -> Any:
        """Return each of *fields*, with None for a missing one."""
        return self._do(("HMGET", key, *fields), _same)

    def hgetall(self, key: str) -> Any:
        """Return a whole hash; empty if it does not exist."""
        return self._do(("HGETALL", key), _pairs)

    def hvals(self, key: str) -> Any:
        """Return the values of a hash."""
        return self._do(("HVALS", key), _same)

    def hkeys(self, key: str) -> Any:
        """Return the fields of a hash."""
        return self._do(("HKEYS", key), _same)

    def hlen(self, key: str) -> Any:
        """Return how many fields a hash has."""
        return self._do(("HLEN", key), _same)

    def hset(self, key: str, field: str, value: Word) -> Any:
        """Set one field; return the number of new fields."""
        return self._do(("HSET", key, field, value), _same)

    def hdel(self, key: str, *fields: str) -> Any:
        """Delete fields; return the number of deleted fields."""
        return self._do(("HDEL", key, *fields), _same)

    def smembers(self, key: str) -> Any:
        """Return the members of a set."""
        return self._do(("SMEMBERS", key), set)

    def zcard(self, key: str) -> Any:
        """Return how many members a sorted set has."""
        return self._do(("ZCARD", key), _same)

    def zrange(
        self,
        key: str,
        start: Word,
        end: Word,
        *,
        byscore: bool = False,
        offset: int | None = None,
        num: int = 0,
        withscores: bool = False,
    ) -> Any:
        """Return members by rank, or by score; with their scores, each is a pair."""
        how = ("BYSCORE",) if byscore else ()
        part = ("LIMIT", offset, num) if offset is not None else ()
        if withscores:
            return self._do(("ZRANGE", key, start, end, *how, *part, "WITHSCORES"), _scored)
        return self._do(("ZRANGE", key, start, end, *how, *part), _same)

    def xlen(self, key: str) -> Any:
        """Return how many entries a stream has."""
        return self._do(("XLEN", key), _same)

    def xrange(self, key: str, min: str = "-", max: str = "+", count: int | None = None) -> Any:  # noqa: A002 - as the client library has it
        """Return entries, each with its id and its fields."""
        most = ("COUNT", count) if count is not None else ()
        return self._do(("XRANGE", key, min, max, *most), _entries)

    def xread(self, streams: Mapping[str, str], count: int | None = None, block: int | None = None) -> Any:
        """Return the entries after an id of each stream; wait *block* milliseconds for the first."""
        most = ("COUNT", count) if count is not None else ()
        wait = ("BLOCK", block) if block is not None else ()
        return self._do(("XREAD", *most, *wait, "STREAMS", *streams, *streams.values()), _streams)


def _same(answer: Any) -> Any:
    return answer


def _clock(answer: Sequence[str]) -> tuple[int, int]:
    return int(answer[0]), int(answer[1])


def _pairs(answer: Any) -> dict[str, str]:
    if isinstance(answer, dict):
        return answer
    if not isinstance(answer, list):  # slicing a string would not fail
        raise NoStore("a hash is answered with no list")
    return dict(zip(answer[::2], answer[1::2], strict=True))


def _scored(answer: Sequence[Any]) -> list[tuple[str, float]]:
    if answer and isinstance(answer[0], list):
        return [(member, float(score)) for member, score in answer]
    return [(member, float(score)) for member, score in zip(answer[::2], answer[1::2], strict=True)]


def _entries(answer: Sequence[Any]) -> list[tuple[str, dict[str, str]]]:
    return [(entry_id, _pairs(fields)) for entry_id, fields in answer]


def _streams(answer: Any) -> list[list[Any]]:
    return [[name, _entries(entries)] for name, entries in answer or ()]


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
        self._closes = 0
        self._pid = os.getpid()

    def ask(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send all *commands* at once and return the answers; an error takes the place of its answer."""
        line = self._line()
        closes = self._closes
        try:
            answers = line.ask(commands)
        except BaseException:  # a late answer must not be taken for that of the next command
            line.close()
            raise
        if closes == self._closes:
            self._idle.append(line)
        else:  # closed by another thread meanwhile
            line.close()
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
        """Close the connections, those in use after their answer; a later command opens a new one."""
        self._closes += 1
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


class Script:
    """Runs the script *text* on the store of *resp_client*.

    The first call sends the text, so that one run needs one request. If the store did not know a digest, a second
    request would be necessary.
    """

    def __init__(self, resp_client: Commands, text: str) -> None:
        self._resp = resp_client
        self._text = text
        self._digest: str | None = None
        self._is_known = False
        self._pipeline: Commands | None = None

    def __call__(self, keys: Sequence[str] = (), args: Sequence[Word] = (), client: Commands | None = None) -> Any:
        """Return what the script returns; with a pipeline as *client*, what the pipeline returns."""
        words = (len(keys), *keys, *args)
        if client is not None:
            return self._along(client, words)
        if self._is_known:
            try:
                return self._resp.execute_command("EVALSHA", self._sha1(), *words)
            except ReplyError as error:  # a restarted store knows no script, and has not run this one
                if not str(error).startswith("NOSCRIPT"):
                    raise
        answer = self._resp.execute_command("EVAL", self._text, *words)
        self._is_known = True
        return answer

    def expect_known(self, pipeline: Commands) -> None:
        """Send no text with *pipeline* if an earlier call did. A store that has restarted since answers NOSCRIPT."""
        if self._is_known:
            self._pipeline = pipeline

    def _along(self, pipeline: Commands, words: Sequence[Word]) -> Any:
        """Add the script to *pipeline*, with its text the first time.

        Within a pipeline there is no way to check whether the store knows the script.
        """
        if self._pipeline is pipeline:
            return pipeline.execute_command("EVALSHA", self._sha1(), *words)
        self._pipeline, self._is_known = pipeline, True
        return pipeline.execute_command("EVAL", self._text, *words)

    def _sha1(self) -> str:
        if self._digest is None:
            import hashlib  # noqa: PLC0415 - one run needs no digest, and OpenSSL is slow to import

            self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        return self._digest


class PubSub:
    """A subscriber: receives the messages published on its channels after it has subscribed."""

    def __init__(self, connected: Callable[[], Line]) -> None:
        self._connected = connected
        self._line: Line | None = None

    def subscribe(self, *channels: str) -> None:
        """Subscribe to further *channels*."""
        if self._line is None:
            self._line = self._connected()
        self._line.send([("SUBSCRIBE", *channels)])

    def get_message(self, timeout: float = 0.0) -> dict[str, str] | None:
        """Return the next message, with its ``channel`` and its ``data``; None after *timeout* seconds.

        Raises:
            RespError: the connection is lost, or the store refuses the subscription.

        """
        if self._line is None:
            return None
        until = time.monotonic() + timeout
        while True:
            message = self._line.heard(until - time.monotonic())
            if isinstance(message, Exception):
                raise message
            if message is None or (isinstance(message, list) and len(message) == _PARTS and message[0] == "message"):
                return None if message is None else {"type": "message", "channel": message[1], "data": message[2]}

    def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None
