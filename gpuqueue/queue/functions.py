"""Acts as stored functions, for Redis 7 or newer and Valkey. See docs/internals/adr/0013.

A script creates its local functions at each run, a stored function creates them once. The name of a function holds the
digest of its text, so workers of two versions each call their own. Its library is part of the store's data. The first
load by a process removes the libraries of other versions; a worker of another version that still runs loads its own
library again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
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
#: In place of a reply: the store has no such function.
_MISSING = object()


def name_of(act: str, text: str) -> str:
    """Return the name of the function of this *act*, which is also the name of its library."""
    return f"gpuqueue_{act}_{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()}"


class Function:
    """The act *act*, which the Lua chunk *text* returns, as a function in the store of *client*.

    It is called like a script. *instead* is the script of the same act, for a store without functions.
    """

    def __init__(self, client: redis.Redis, act: str, text: str, *, instead: Any) -> None:
        self._client = client
        self._instead = instead
        self._is_refused = False  # once true, it stays true: the store would refuse each call
        self._has_loaded = False
        self._act = act
        self.name = name_of(act, text)
        self._library = _LIBRARY.format(name=self.name, text=text)

    def __call__(self, keys: Sequence[str] = (), args: Sequence[str | float] = (), client: Any = None) -> Any:
        """Return what the act returns; with a pipeline as *client*, what the pipeline returns.

        Raises:
            redis.RedisError: as for a script.

        """
        if client is None and not self._is_refused:
            reply = self._call(keys, args)
            if reply is _MISSING and self._load():
                reply = self._call(keys, args)
            if reply is not _MISSING:
                return reply
        return self._instead(keys=keys, args=args, client=client)

    def _call(self, keys: Sequence[str], args: Sequence[str | float]) -> Any:
        try:
            return self._client.execute_command("FCALL", self.name, len(keys), *keys, *args)
        except redis.ResponseError as error:  # the errors handled here mean that nothing has run
            self._is_refused = _refuses(error)
            if not self._is_refused and "Function not found" not in str(error):
                raise
            return _MISSING

    def _load(self) -> bool:
        """Load the library; return whether the store has accepted it."""
        if self._is_refused:
            return False
        try:
            self._client.execute_command("FUNCTION LOAD", "REPLACE", self._library)
        except redis.ResponseError as error:
            self._is_refused = _refuses(error)
            return False
        if not self._has_loaded:  # only once: two versions that work side by side must not remove each other's for ever
            self._has_loaded = True
            with contextlib.suppress(redis.ResponseError):  # another worker has removed them, or the ACL forbids it
                self._remove_others()
        return True

    def _remove_others(self) -> None:
        ours = f"gpuqueue_{self._act}_"
        found = self._client.execute_command("FUNCTION LIST", "LIBRARYNAME", f"{ours}*")
        for name in {*re.findall(rf"{ours}[0-9a-f]{{40}}", str(found))} - {self.name}:
            self._client.execute_command("FUNCTION DELETE", name)


def _refuses(error: redis.ResponseError) -> bool:
    """Return whether the store has no functions (Redis 6, or a proxy), or its ACL forbids them."""
    message = str(error).lower()
    return isinstance(error, redis.exceptions.NoPermissionError) or "unknown command" in message or "fcall" in message
