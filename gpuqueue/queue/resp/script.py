"""A Lua script of the store: sent as text the first time, and by its digest afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuqueue.queue.resp.commands import Commands
from gpuqueue.queue.resp.errors import ReplyError
from gpuqueue.queue.resp.protocol import Word


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

    def _along(self, pipeline: Commands, words: Sequence[Word]) -> Any:
        """Add the script to *pipeline*, with its text the first time.

        Within a pipeline there is no way to check whether the store knows the script.
        """
        if self._pipeline is pipeline:
            return pipeline.execute_command("EVALSHA", self._sha1(), *words)
        self._pipeline = pipeline
        return pipeline.execute_command("EVAL", self._text, *words)

    def _sha1(self) -> str:
        if self._digest is None:
            import hashlib  # noqa: PLC0415 - one run needs no digest, and OpenSSL is slow to import

            self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        return self._digest
