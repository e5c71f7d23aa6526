"""What the queue asks of a store. The client library has the same methods, and gives the same answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuqueue.queue.resp.errors import NoStore
from gpuqueue.queue.resp.protocol import Word

Shape = Callable[[Any], Any]


class Commands:
    """One method for each command; an error of the store is raised."""

    def _do(self, words: Sequence[Word], shape: Shape) -> Any:
        """Do what *words* say; *shape* makes of the answer what the method returns."""
        raise NotImplementedError

    def execute_command(self, *words: Word) -> Any:
        """Return the store's answer to any command as it is."""
        return self._do(words, _same)

    def exists(self, *keys: str) -> Any:
        """Return how many of *keys* there are."""
        return self._do(("EXISTS", *keys), _same)

    def get(self, key: str) -> Any:
        """Return a string, or None."""
        return self._do(("GET", key), _same)

    def mget(self, keys: Sequence[str]) -> Any:
        """Return several strings, or None in the place of one that is not there."""
        return self._do(("MGET", *keys), _same)

    def time(self) -> Any:
        """Return the store's clock: seconds, and microseconds."""
        return self._do(("TIME",), _clock)

    def hget(self, key: str, field: str) -> Any:
        """Return one field, or None."""
        return self._do(("HGET", key, field), _same)

    def hmget(self, key: str, *fields: str) -> Any:
        """Return each of *fields*, or None in its place."""
        return self._do(("HMGET", key, *fields), _same)

    def hgetall(self, key: str) -> Any:
        """Return a whole hash; it is empty where there is none."""
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
        """Set one field; return how many are new."""
        return self._do(("HSET", key, field, value), _same)

    def hdel(self, key: str, *fields: str) -> Any:
        """Delete fields; return how many there were."""
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
        """Return the entries behind an id of each stream, waiting *block* milliseconds for the first."""
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
    if not isinstance(answer, list):  # a text can be cut into pairs as well
        raise NoStore("a hash is answered with no list")
    return dict(zip(answer[::2], answer[1::2], strict=True))


def _entries(answer: Sequence[Any]) -> list[tuple[str, dict[str, str]]]:
    return [(entry_id, _pairs(fields)) for entry_id, fields in answer]


def _streams(answer: Any) -> list[list[Any]]:
    return [[name, _entries(entries)] for name, entries in answer or ()]
