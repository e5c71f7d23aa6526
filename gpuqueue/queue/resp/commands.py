"""The commands that the queue uses. redis-py has the same methods with the same results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuqueue.queue.resp.errors import NoStore
from gpuqueue.queue.resp.protocol import Word

Shape = Callable[[Any], Any]


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
        self, key: str, start: Word, end: Word, *, byscore: bool = False, offset: int | None = None, num: int = 0
    ) -> Any:
        """Return members by rank, or by score."""
        how = ("BYSCORE",) if byscore else ()
        part = ("LIMIT", offset, num) if offset is not None else ()
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


def _entries(answer: Sequence[Any]) -> list[tuple[str, dict[str, str]]]:
    return [(entry_id, _pairs(fields)) for entry_id, fields in answer]


def _streams(answer: Any) -> list[list[Any]]:
    return [[name, _entries(entries)] for name, entries in answer or ()]
