"""Answers that are files of unknown length."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Send

from gpuqueue.errors import GpuQueueError

log = logging.getLogger(__name__)


class StreamedFile(StreamingResponse):
    """An answer with a file, which *what* names in the log of the service."""

    def __init__(
        self, what: str, content: AsyncIterator[str] | AsyncIterator[bytes], headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        self._what = what

    async def stream_response(self, send: Send) -> None:
        """Send the file. After an error the answer stays incomplete, so the server closes the connection."""
        try:
            await super().stream_response(send)
        except GpuQueueError as error:
            log.warning("%s cut short: %s", self._what, error)
