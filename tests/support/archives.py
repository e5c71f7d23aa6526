"""Archives of a run's files for tests: such as ``gpuqueue-worker pack`` writes, and such as nobody should."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from typing import Any

Entry = tuple[tarfile.TarInfo, bytes]


def file(path: str, content: bytes = b"one", **fields: Any) -> Entry:
    """Return a regular file; *fields* are those of a TarInfo."""
    return _entry(path, content, {"type": tarfile.REGTYPE, "mode": 0o644, **fields})


def link(path: str, target: str, **fields: Any) -> Entry:
    """Return a symbolic link."""
    return _entry(path, b"", {"type": tarfile.SYMTYPE, "linkname": target, **fields})


def _entry(path: str, content: bytes, fields: dict[str, Any]) -> Entry:
    info = tarfile.TarInfo(path)
    info.size = len(content)
    for name, value in fields.items():
        setattr(info, name, value)
    return info, content


def archive(entries: Iterable[Entry], **how: Any) -> bytes:
    """Return the archive of *entries*, with its end mark."""
    made = io.BytesIO()
    options: dict[str, Any] = {"format": tarfile.PAX_FORMAT, "encoding": "utf-8", "errors": "surrogateescape", **how}
    with tarfile.open(mode="w|", fileobj=made, **options) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def raw(info: tarfile.TarInfo, content: bytes = b"", **how: Any) -> bytes:
    """Return the header of *info* with its padded *content*, which need not fit together, without an end mark."""
    options: dict[str, Any] = {"format": tarfile.GNU_FORMAT, "encoding": "utf-8", "errors": "surrogateescape", **how}
    return info.tobuf(**options) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


#: The end mark of an archive.
END = bytes(2 * tarfile.BLOCKSIZE)
