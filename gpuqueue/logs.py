"""Reading a log that is still being written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuqueue.errors import Refused

#: Most of a log that is read at once.
CHUNK_BYTES = 256 * 1024


class LogTail:
    """Gives each byte of a job's log once, also when a new run goes on in another file."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._offset = 0

    def turn_to(self, path: Path | None) -> None:
        """Read on in *path*: from its beginning, if it is another file than before."""
        if path != self.path:
            self.path, self._offset = path, 0

    def rest(self) -> Iterator[bytes]:
        """Yield what was written since the last time.

        Raises:
            Refused: the log belongs to somebody else.

        """
        if self.path is None:
            return
        try:
            with self.path.open("rb") as log:
                log.seek(self._offset)
                while chunk := log.read(CHUNK_BYTES):
                    self._offset += len(chunk)
                    yield chunk
        except FileNotFoundError:
            return  # the run has written nothing yet
        except PermissionError:
            raise Refused(f"you may not read {self.path}: it belongs to the account that runs the jobs") from None
