"""Loads the Lua scripts: one file an act, the shared prelude in front."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.commands.core import Script

from gpuqueue.queue.keys import PREFIX

#: One script an act; ``lib.lua`` is the prelude and no act.
ACTS = (
    "open",
    "submit",
    "claim",
    "started",
    "beat",
    "note",
    "giveback",
    "finish",
    "lose",
    "reap",
    "cancel",
    "hold",
    "release",
    "settle",
    "drain",
    "resume",
)

#: The acts that make a store ready; it refuses every other one before.
OPENING = frozenset({"open"})
_FIRST = "do local why = refusal() if why then return why end end\n"


@cache
def source(act: str) -> str:
    """Return the text of one script without the prelude."""
    return (files("gpuqueue.queue") / "lua" / f"{act}.lua").read_text(encoding="ascii")


def load_all() -> None:
    """Read every script now, for a process that lives for weeks.

    By the time it needs a rare one the files may be a newer version's, or it may have no descriptor left.
    """
    for act in ("lib", *ACTS):
        source(act)


class Scripts:
    """The scripts of one connection, each registered when it is first used and sent by its digest."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._registered: dict[str, Script] = {}

    def run(self, act: str, *args: str | float) -> Any:
        """Run the script *act* in one atomic step and return its reply."""
        script = self._registered.get(act)
        if script is None:
            first = "" if act in OPENING else _FIRST
            script = self._client.register_script(source("lib") + first + source(act))
            self._registered[act] = script
        return script(keys=[PREFIX], args=args)
