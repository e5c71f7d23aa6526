"""Acts that stay in the store: as functions, which Redis has from 7 on, and Valkey. docs/adr/0013.

A script makes its own functions anew each time that it runs: of a claim that was a sixth of its time, and much of the
garbage that the store collects. A function of a library is made once.

A library is named by the digest of its text: workers of two versions each call their own. It is part of the store's
data and comes back with them, and each version adds one; whoever adds one removes the others where they are many.
"""

from __future__ import annotations

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


def name_of(act: str, text: str) -> str:
    """Return what the function of this *act* is called, and its library."""
    return _OURS.format(act=act) + hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Function:
    """The *act* that the chunk *text* makes, called in the store behind *client*.

    It is called like a script: *instead* is one, of the same act, for a store that has no functions.
    """

    def __init__(self, client: redis.Redis, act: str, text: str, *, instead: Any) -> None:
        self._client = client
        self._instead = instead
        self._is_refused = False
        self._ours = _OURS.format(act=act)
        self.name = name_of(act, text)
        self._library = _LIBRARY.format(name=self.name, text=text)

    def __call__(self, keys: Sequence[str] = (), args: Sequence[str | float] = (), client: Any = None) -> Any:
        """Return what the act returns; through *client*, a pipeline, what that returns.

        Raises:
            redis.RedisError: as a script.

        """
        if client is None and not self._is_refused:
            try:
                return self._called(keys, args)
            except redis.ResponseError as error:
                if not _refuses(error):
                    raise
                self._is_refused = True  # as long as this worker lives: it would be refused each time
        return self._instead(keys=keys, args=args, client=client)

    def _called(self, keys: Sequence[str], args: Sequence[str | float]) -> Any:
        words = ("FCALL", self.name, len(keys), *keys, *args)
        try:
            return self._client.execute_command(*words)
        except redis.ResponseError as error:  # then nothing was run
            if "Function not found" not in str(error):
                raise
        self._load()
        return self._client.execute_command(*words)

    def _load(self) -> None:
        self._client.execute_command("FUNCTION LOAD", "REPLACE", self._library)
        others = [name for name in self._libraries() if name != self.name]
        for name in others if len(others) > MOST_OTHERS else ():
            try:
                self._client.execute_command("FUNCTION DELETE", name)
            except redis.ResponseError:  # somebody else was quicker, or it may not be removed: it does no harm
                continue

    def _libraries(self) -> list[str]:
        found: Any = self._client.execute_command("FUNCTION LIST", "LIBRARYNAME", f"{self._ours}*")
        return [str(fields[fields.index("library_name") + 1]) for fields in map(_in_a_row, found)]


def _in_a_row(library: Any) -> list[Any]:
    """Return what a store says of a library as a list of names, each before its value: newer protocols have a table."""
    return [word for pair in library.items() for word in pair] if isinstance(library, dict) else list(library)


def _refuses(error: redis.ResponseError) -> bool:
    """Return whether the store has no functions (Redis 6), or its rules do not let us have any."""
    return isinstance(error, redis.exceptions.NoPermissionError) or "unknown command" in str(error).lower()
