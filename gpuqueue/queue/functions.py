"""Acts that stay in the store: as functions, which Redis has from 7 on, and Valkey. docs/adr/0013.

A script makes its own functions anew each time that it runs: of a claim that was a sixth of its time, and much of the
garbage that the store collects. A function of a library is made once.

A library is named by the digest of its text: workers of two versions each call their own. It is part of the store's
data and comes back with them, and each version adds one; whoever adds one removes the others where they are many.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

import redis

#: What stands around the act. It is made at the first call: a library that is loaded cannot call the store yet.
_LIBRARY = """#!lua name={name}
local KEYS, ARGV, act, prefix
local function make()
{text}
end
redis.register_function('{name}', function(keys, args)
  KEYS, ARGV = keys, args
  if keys[1] ~= prefix then act, prefix = make(), keys[1] end
  return act()
end)
"""
#: What each of our libraries is called, up to its digest.
_OURS = "gpuqueue_{act}_"
#: So many libraries of other versions may be there; more are no longer anybody's.
MOST_OTHERS = 4
#: What a store says, in its first word, that can do nothing at the moment.
_TROUBLES = ("BUSY", "LOADING", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")


def name_of(act: str, text: str) -> str:
    """Return what the function of this *act* is called, and its library."""
    return _OURS.format(act=act) + hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class _NotThere(Exception):
    """The store has no such function: so the script is run."""


class Function:
    """The *act* that the chunk *text* makes, called in the store behind *client*.

    It is called like a script: *instead* is one, of the same act, for a store that has no functions.
    """

    def __init__(self, client: redis.Redis, act: str, text: str, *, instead: Any) -> None:
        self._client = client
        self._instead = instead
        self._is_refused = False  # once it was, for as long as this worker lives: it would be each time
        self._has_removed = False
        self._ours = _OURS.format(act=act)
        self.name = name_of(act, text)
        self._library = _LIBRARY.format(name=self.name, text=text)

    def __call__(self, keys: Sequence[str] = (), args: Sequence[str | float] = (), client: Any = None) -> Any:
        """Return what the act returns; through *client*, a pipeline, what that returns.

        Raises:
            redis.RedisError: as a script.

        """
        if client is None and not self._is_refused:
            with contextlib.suppress(_NotThere):
                return self._called(keys, args)
        return self._instead(keys=keys, args=args, client=client)

    def _called(self, keys: Sequence[str], args: Sequence[str | float]) -> Any:
        try:
            return self._asked(keys, args)
        except _NotThere:
            if self._is_refused:
                raise
        self._load()
        return self._asked(keys, args)

    def _asked(self, keys: Sequence[str], args: Sequence[str | float]) -> Any:
        try:
            return self._client.execute_command("FCALL", self.name, len(keys), *keys, *args)
        except redis.ResponseError as error:  # if it is one of ours below, nothing was run
            self._is_refused = _refuses(error)
            if not self._is_refused and "Function not found" not in str(error):
                raise
            raise _NotThere from error

    def _load(self) -> None:
        try:
            self._client.execute_command("FUNCTION LOAD", "REPLACE", self._library)
        except redis.ResponseError as error:
            if _is_of_the_store(error):
                raise
            self._is_refused = True
            raise _NotThere from error
        with contextlib.suppress(redis.ResponseError):  # somebody else was quicker, or it may not: it does no harm
            self._remove_others()

    def _remove_others(self) -> None:
        if self._has_removed:  # once: more versions than that may serve, and would remove each other's for ever
            return
        others = [name for name in self._libraries() if name != self.name]
        if len(others) > MOST_OTHERS:
            self._has_removed = True
            for name in others:
                self._client.execute_command("FUNCTION DELETE", name)

    def _libraries(self) -> list[str]:
        found: Any = self._client.execute_command("FUNCTION LIST", "LIBRARYNAME", f"{self._ours}*")
        return [str(fields[fields.index("library_name") + 1]) for fields in map(_in_a_row, found)]


def _in_a_row(library: Any) -> list[Any]:
    """Return what a store says of a library as a list of names, each before its value: newer protocols have a table."""
    return [word for pair in library.items() for word in pair] if isinstance(library, dict) else list(library)


def _refuses(error: redis.ResponseError) -> bool:
    """Return whether the store has no functions (Redis 6, or a proxy before it), or its rules allow us none."""
    said = str(error).lower()
    return isinstance(error, redis.exceptions.NoPermissionError) or "unknown command" in said or "fcall" in said


def _is_of_the_store(error: redis.ResponseError) -> bool:
    """Return whether the store as a whole is in trouble: then a script would not be run either."""
    known = redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError  # of which the client takes the word away
    return isinstance(error, known) or str(error).startswith(_TROUBLES)
