"""Acts as stored functions, for Redis 7 or newer and Valkey. See docs/internals/adr/0013.

A script creates its local functions at each run. That took a sixth of the time of a claim, and made much of the garbage
that the server collects. A library creates its functions once.

The name of a library contains the digest of its text, so workers of two versions each call their own library. Libraries
are part of the store's data and are restored with it. Each version adds one library; the worker that adds it removes
the libraries of other versions if there are many.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

import redis

#: The library around the act. The first call creates the act, because a library cannot call the store during loading.
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
#: Name of each of our libraries, up to its digest.
_OURS = "gpuqueue_{act}_"
#: Maximum number of libraries of other versions; if there are more, all of them are removed.
MOST_OTHERS = 4
#: First words of the errors of a store that cannot serve at the moment.
_TROUBLES = ("BUSY", "LOADING", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")


def name_of(act: str, text: str) -> str:
    """Return the name of the function of this *act*, which is also the name of its library."""
    return _OURS.format(act=act) + hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class _NotThere(Exception):
    """The store has no such function; the script runs instead."""


class Function:
    """The act *act*, which the Lua chunk *text* returns, as a function in the store of *client*.

    It is called like a script. *instead* is the script of the same act, for a store without functions.
    """

    def __init__(self, client: redis.Redis, act: str, text: str, *, instead: Any) -> None:
        self._client = client
        self._instead = instead
        self._is_refused = False  # once true, it stays true: the store would refuse each call
        self._has_removed = False
        self._ours = _OURS.format(act=act)
        self.name = name_of(act, text)
        self._library = _LIBRARY.format(name=self.name, text=text)

    def __call__(self, keys: Sequence[str] = (), args: Sequence[str | float] = (), client: Any = None) -> Any:
        """Return what the act returns; with a pipeline as *client*, what the pipeline returns.

        Raises:
            redis.RedisError: as for a script.

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
        except redis.ResponseError as error:  # the errors handled here mean that nothing has run
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
        with contextlib.suppress(redis.ResponseError):  # another worker has removed them, or the ACL forbids it
            self._remove_others()

    def _remove_others(self) -> None:
        if self._has_removed:  # only once: if more versions are in use, they would remove each other's for ever
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
    """Return the description of a library as a flat list of names and values; RESP 3 has a map instead."""
    return [word for pair in library.items() for word in pair] if isinstance(library, dict) else list(library)


def _refuses(error: redis.ResponseError) -> bool:
    """Return whether the store has no functions (Redis 6, or a proxy), or its ACL forbids them."""
    said = str(error).lower()
    return isinstance(error, redis.exceptions.NoPermissionError) or "unknown command" in said or "fcall" in said


def _is_of_the_store(error: redis.ResponseError) -> bool:
    """Return whether the store as a whole is in trouble, so that a script would fail too."""
    known = redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError  # redis-py removes these codes
    return isinstance(error, known) or str(error).startswith(_TROUBLES)
