"""A script of the store: sent whole the first time, and by its digest from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuqueue.queue.resp.commands import Commands
from gpuqueue.queue.resp.errors import Said
from gpuqueue.queue.resp.protocol import Word


class Script:
    """Runs *text* on the store behind *door*.

    Whoever runs it once asks once: sent by a digest that the store may not know, it would have to be sent again.
    """

    def __init__(self, door: Commands, text: str) -> None:
        self._door = door
        self._text = text
        self._digest: str | None = None
        self._is_known = False
        self._pipeline: Commands | None = None

    def __call__(self, keys: Sequence[str] = (), args: Sequence[Word] = (), client: Commands | None = None) -> Any:
        """Return what the script returns; through *client*, a pipeline, what that returns."""
        words = (len(keys), *keys, *args)
        if client is not None:
            return self._along(client, words)
        if self._is_known:
            try:
                return self._door.execute_command("EVALSHA", self._sha1(), *words)
            except Said as error:  # a store that was started anew knows no script; then this one was not run
                if not str(error).startswith("NOSCRIPT"):
                    raise
        answer = self._door.execute_command("EVAL", self._text, *words)
        self._is_known = True
        return answer

    def _along(self, pipeline: Commands, words: Sequence[Word]) -> Any:
        """Put the script into *pipeline*, whole only once: nobody can ask in between whether the store knows it."""
        if self._pipeline is pipeline:
            return pipeline.execute_command("EVALSHA", self._sha1(), *words)
        self._pipeline = pipeline
        return pipeline.execute_command("EVAL", self._text, *words)

    def _sha1(self) -> str:
        if self._digest is None:
            import hashlib  # noqa: PLC0415 - who runs a script once needs no digest, and OpenSSL is a latency

            self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        return self._digest
