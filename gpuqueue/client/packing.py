"""The archive of a run on this host, from the program ``gpuqueue-worker pack``, which reads the run's directory."""

from __future__ import annotations

import contextlib
import subprocess
from tempfile import TemporaryFile
from typing import IO

from gpuqueue.errors import GpuQueueError
from gpuqueue.results.pack_request import NO_COPY, PackRequest, pack_command, reason_in
from gpuqueue.snapshot.errors import ArchiveCutShort

_FIRST_BYTES, _MOST_ERRORS_BYTES = 512, 2**16


class NoCopy(GpuQueueError):
    """The run has no copy of its code, or none any more."""


class PackedRun:
    """The output of the program for *request*, as a file that is read once.

    Raises:
        NoCopy: there is no copy of the code.
        GpuQueueError: the program is not installed, or cannot read the directory.

    """

    def __init__(self, request: PackRequest) -> None:
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed by close
        try:
            with request.as_input() as asked:
                self._process = subprocess.Popen(
                    pack_command(), stdin=asked, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
                )
        except OSError as error:
            raise GpuQueueError(f"gpuqueue-worker cannot be run: {error.strerror}") from None
        try:
            self._first = self._output(_FIRST_BYTES)
        except BaseException:
            self.close()
            raise
        if not self._first:
            code = self._process.wait()
            trouble = self._trouble()
            self.close()
            raise NoCopy(trouble) if code == NO_COPY else GpuQueueError(f"the files cannot be read: {trouble}")

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end.

        Raises:
            ArchiveCutShort: the program has failed.

        """
        if self._first:
            found, self._first = self._first[:size], self._first[size:]
            return found
        found = self._output(size)
        if not found and self._process.wait() != 0:
            raise ArchiveCutShort(f"the archive was cut short: {self._trouble()}")
        return found

    def close(self) -> None:
        """End the program if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _output(self, size: int) -> bytes:
        return self._process.stdout.read(size) or b"" if self._process.stdout is not None else b""

    def _trouble(self) -> str:
        return reason_in(self._written(), self._process.returncode)

    def _written(self) -> bytes:
        """Return the beginning of the program's errors."""
        self._errors.seek(0)
        return self._errors.read(_MOST_ERRORS_BYTES)
