"""The errors of snapshots and of archives. Each message is one line."""

from __future__ import annotations

from gpuqueue.errors import BadRequest, GpuQueueError, Refused


class InvalidManifest(BadRequest):
    """The manifest is malformed, describes what must not be unpacked, or is above a limit."""


class SnapshotRefused(Refused):
    """The directory cannot be taken as it is: the message names the files and says what to do."""


class SnapshotTooLarge(SnapshotRefused):
    """The files are above a limit.

    ``largest`` has the path and size in bytes of at most ten files, the largest first. ``ignore_line`` is a line for
    ``.gpuqueueignore`` that leaves out what is most likely not wanted.
    """

    def __init__(self, what: str, largest: tuple[tuple[str, int], ...], ignore_line: str) -> None:
        super().__init__(what)
        self.largest = largest
        self.ignore_line = ignore_line


class BlobRefused(BadRequest):
    """The blob that was sent is not the announced one, or is above the limit; nothing was stored."""


class SnapshotNotHeld(Refused):
    """The account has not sent this blob to this service, or it was collected since: send it again."""


class UnpackFailed(GpuQueueError):
    """The snapshot could not be unpacked; what had been made was removed."""


class ArchiveRefused(GpuQueueError):
    """The archive of a run's files has what no service of ours sends; what was written before stays."""


class ArchiveCutShort(GpuQueueError):
    """The archive of a run's files ended before its end."""


class FileDiffers(Refused):
    """A file to fetch is there with another content, and must not be replaced."""


class NotWritable(GpuQueueError):
    """The directory for fetched files, or a file in it, cannot be written."""


class NoSuchName(GpuQueueError):
    """A fetched file cannot have this name here; the message follows the name. Other files can be written."""
