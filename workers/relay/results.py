"""Packs the files that a job keeps, and sends them to the service."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from gpuqueue.errors import Unreadable
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import FAILED, RESULTS
from gpuqueue.system.disk_room import has_room
from gpuqueue.system.safe_open import open_regular, read_small
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import format_bytes
from workers.relay.link import Link, Refusal
from workers.relay.packing import MOST_REASON_BYTES, DiskFull, PackFailed, Packing
from workers.run.deliveries import Delivery
from workers.run.files import put

#: How long packing may take besides the time for its bytes, in seconds. The packer may run as the job's account, and
#: other processes of that account can stop it again and again.
PACK_S = 3600.0
#: How long the service may take to store an archive after its last byte, in seconds.
STORED_S = 900.0
_TOO_LARGE = 413
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Results:
    """The kept files of the runs of one host."""

    def __init__(self, settings: Settings, packing: Packing) -> None:
        self._settings = settings
        self._packing = packing

    def pack(self, run: Delivery, stopping: threading.Event) -> None:
        """Make the archive of *run* in its directory, or the file with the reason why there is none.

        Nothing is done if one of them is there.

        Raises:
            PackFailed: It did not work now, and may work later.
            Stopped: *stopping* is set.
            OSError: The program cannot be started, or the file cannot be written.

        """
        directory = run.run_directory(self._settings)
        if any(os.path.lexists(directory / name) for name in (RESULTS, FAILED)):
            return
        part = directory / f".{RESULTS}"
        part.unlink(missing_ok=True)  # of a relay that was killed
        try:
            with os.fdopen(os.open(part, _NEW, 0o600), "wb") as file:
                size_bytes = 0
                with self._packing.archive(directory, run.keep, stopping) as archive:
                    for piece in archive.pieces(PACK_S):
                        size_bytes += len(piece)
                        self._check_room(file.fileno(), size_bytes, len(piece))
                        file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            part.rename(directory / RESULTS)
        except PackFailed as error:
            if not error.is_final:
                raise
            self.give_up(run, str(error))
        finally:
            part.unlink(missing_ok=True)

    def give_up(self, run: Delivery, reason: str) -> None:
        """Write down why *run* has no kept files.

        Raises:
            OSError: The file cannot be written.

        """
        put(run.run_directory(self._settings) / FAILED, in_one_line(reason))

    def deliver(self, link: Link, run: Delivery) -> None:
        """Send the archive of *run* to the service, or the reason why there is none, and remove it here.

        Raises:
            ServiceAway: The service does not answer. The next call sends it again.
            Refusal: The service does not take it.
            BadRequest: The token or the certificate on this host cannot be used.
            OSError: The file cannot be read.

        """
        directory, place = run.run_directory(self._settings), f"/runs/{run.job_id}/{run.token}"
        reason: str | None = None
        if os.path.lexists(directory / RESULTS):
            reason = self._send(link, directory / RESULTS, f"{place}/results")
        else:
            reason = read_small(directory / FAILED).decode(errors="replace")
        if reason is not None:
            link.put(f"{place}/results-failed", reason.encode()[:MOST_REASON_BYTES])
        for name in (RESULTS, FAILED):
            (directory / name).unlink(missing_ok=True)

    def _send(self, link: Link, path: Path, place: str) -> str | None:
        """Send an archive. Return None, or why it cannot be kept at the service."""
        try:
            with os.fdopen(open_regular(path), "rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                link.put_file(place, file, size_bytes, answer_s=STORED_S)
        except Unreadable as error:  # the job has put something else there
            return f"the kept files cannot be read: {error}"
        except Refusal as refusal:
            if refusal.status != _TOO_LARGE:
                raise
            return str(refusal)
        return None

    def _check_room(self, file: int, size_bytes: int, more_bytes: int) -> None:
        """Check that *more_bytes* may be written to *file*, which then has *size_bytes*."""
        limit_bytes, host = self._settings.results_limit_bytes, self._settings.host
        if limit_bytes is not None and size_bytes > limit_bytes:
            limit = format_bytes(limit_bytes)
            raise PackFailed(f"they have more than {limit} (results_limit of host {host})", is_final=True)
        if not has_room(file, more_bytes):
            raise DiskFull(f"the disk of {host} was nearly full")
