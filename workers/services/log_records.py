"""Log records that are safe to look at: names, arguments and paths in them were chosen by whoever submitted a job."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from gpuqueue.text.sanitize import in_one_line, plain


class SafeRecord(logging.LogRecord):
    """A record whose message is one line that no terminal obeys, and whose traceback is as harmless.

    For :func:`logging.setLogRecordFactory`, so that it holds for every handler: our own, and those of Celery.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info and self.exc_info[0] is not None:
            lines = "".join(traceback.format_exception(*self.exc_info)).splitlines()
            self.exc_text = "\n".join(plain(line) for line in lines)

    def getMessage(self) -> str:  # noqa: N802 - the name is logging's
        """Return the message, made plain and on one line."""
        return in_one_line(super().getMessage())
