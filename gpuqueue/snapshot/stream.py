"""Sends a whole snapshot in one stream, and reads it. Standard library only.

The stream is one line with the length of the manifest in bytes, the manifest, and then each blob once, in the order of
``Manifest.blobs``. The manifest has the lengths of the blobs, so the stream has no separators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from gpuqueue.lazy.imports import pattern
from gpuqueue.snapshot.errors import UnpackFailed
from gpuqueue.snapshot.manifest import MAX_TEXT_BYTES, Manifest
from gpuqueue.text.sanitize import brief

#: How the first line of a stream begins.
HEADER = b"gpuqueue-snapshot-stream 1 "
_CHUNK_BYTES = 2**20
_LENGTH = pattern(r"[1-9][0-9]{0,8}")


class Source(Protocol):
    """An open file, or something else that bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most *size* bytes, none at the end."""


def stream_size_bytes(manifest: Manifest) -> int:
    """Return the length of the stream of the snapshot with this *manifest*, in bytes."""
    text = manifest.text()
    return len(HEADER) + len(f"{len(text)}\n") + len(text) + sum(manifest.blobs().values())


def write_stream(manifest: Manifest, blob: Callable[[str], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the stream of the snapshot with this *manifest*; *blob* returns the blob with a SHA-256."""
    text = manifest.text()
    yield HEADER + f"{len(text)}\n".encode() + text
    for sha256 in manifest.blobs():
        yield from blob(sha256)


class StreamReader:
    """Reads a stream: first ``text``, the manifest, and then each blob by ``blob`` in the order of the stream."""

    def __init__(self, source: Source) -> None:
        """Read the manifest.

        Raises:
            UnpackFailed: the stream is cut short, or does not begin as a stream of a snapshot.

        """
        self._source = source
        line = b""
        while not line.endswith(b"\n") and len(line) < len(HEADER) + 16:
            line += self._exactly(1)
        length = line.removeprefix(HEADER).removesuffix(b"\n").decode("ascii", "replace")
        if not line.startswith(HEADER) or not _LENGTH.fullmatch(length) or int(length) > MAX_TEXT_BYTES:
            raise UnpackFailed(f"the stream begins with {brief(line)}, so it is no snapshot")
        self.text = self._exactly(int(length))

    def blob(self, size_bytes: int) -> Iterator[bytes]:
        """Yield the next blob, of *size_bytes*.

        Raises:
            UnpackFailed: the stream is cut short.

        """
        while size_bytes:
            part = self._source.read(min(size_bytes, _CHUNK_BYTES))
            if not part:
                raise UnpackFailed("the snapshot was cut short on its way")
            size_bytes -= len(part)
            yield part

    def _exactly(self, size_bytes: int) -> bytes:
        return b"".join(self.blob(size_bytes))
