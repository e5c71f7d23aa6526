"""Log records without control characters: submitters choose the names, arguments and paths that appear in them."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from gpuqueue.text.sanitize import in_one_line, plain


class SafeRecord(logging.LogRecord):
    """A log record whose message is one line without control characters, and whose traceback has none either.

    It is installed with :func:`logging.setLogRecordFactory`, so that it applies to every handler, including Celery's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info and self.exc_info[0] is not None:
            lines = "".join(traceback.format_exception(*self.exc_info)).splitlines()
            self.exc_text = "\n".join(plain(line) for line in lines)

    def getMessage(self) -> str:  # noqa: N802 - the name is logging's
        """Return the message in one line, without control characters."""
        return in_one_line(super().getMessage())
