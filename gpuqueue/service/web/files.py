"""The files of the page: found once, served with the hash of all of them in their address. And the headers for them.

The address of a file changes when any of the files changes, so browsers keep files for a year. A changed file is seen
at the next load of the page, without a restart.

``built`` has the same page in a few files, made by ``page_parts.py`` when a wheel is built. It is served if it was made
of the modules that are here.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass

#: Types of the files that are served. Others are not.
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
#: Files without which there is no page. They are not part of the source.
NEEDED = ("vendor/preact.js", "vendor/hooks.js", "vendor/htm.js")
#: The directory of the bundle, and its file with the hash of the modules that it was made of.
BUILT, OF_TREE = "built/", "built/.tree"
#: In index.html: the hash of all files.
MARK = b"@tree@"
#: Files below this size gain little by compression.
_LEAST_BYTES = 600
#: Everything comes from this service. Nothing on the page runs that is not one of its files, and no other site shows
#: the page in a frame.
_ALLOWED = {
    "default-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}

#: Headers of every file of the page.
PAGE_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{what} {where}" for what, where in _ALLOWED.items()),
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


class NoPage(Exception):
    """The third-party files of the page are not there."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file: its bytes, the same bytes compressed if that makes them smaller, and its type."""

    content: bytes
    compressed: bytes | None
    media_type: str


class PageFiles:
    """The files below one directory. Threads may share an instance."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or Path(str(files("gpuqueue"))) / "web"
        self._lock = threading.Lock()
        self._seen: tuple[object, ...] = ()
        self._files: Mapping[str, PageFile] = {}
        self.tree = ""

    def current(self) -> Mapping[str, PageFile]:
        """Return all files by their path, as they are now.

        Raises:
            NoPage: the third-party files are missing.

        """
        with self._lock:
            paths = sorted(each for each in self._directory.rglob("*") if each.suffix in TYPES and each.is_file())
            seen = tuple((str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in paths)
            if seen != self._seen:
                self._read(paths)
                self._seen = seen
            missing = [each for each in NEEDED if each not in self._files]
            if missing:
                raise NoPage(", ".join(missing))
            return self._files

    def known(self) -> Mapping[str, PageFile]:
        """Return the files as the last call of :meth:`current` found them, without reading the directory again."""
        return self._files or self.current()

    def _read(self, paths: list[Path]) -> None:
        contents = {each.relative_to(self._directory).as_posix(): each.read_bytes() for each in paths}
        built = {name: contents.pop(name) for name in [*contents] if name.startswith(BUILT)}
        digest = hashlib.sha256()
        for name, content in contents.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        self.tree = digest.hexdigest()[:20]
        if built and self._bundled_tree() == self.tree:
            contents |= {**built, "index.html": built[f"{BUILT}index.html"]}
        contents = {
            name: content.replace(MARK, self.tree.encode()) if name.endswith(".html") else content
            for name, content in contents.items()
        }
        self._files = {name: _file(name, content) for name, content in contents.items()}

    def _bundled_tree(self) -> str:
        """Return the hash of the modules that the bundle was made of."""
        try:
            return (self._directory / OF_TREE).read_text(encoding="ascii")
        except (OSError, ValueError):
            return ""


def _file(name: str, content: bytes) -> PageFile:
    small = gzip.compress(content, 9, mtime=0) if len(content) >= _LEAST_BYTES else content
    return PageFile(content, small if len(small) < len(content) else None, TYPES[Path(name).suffix])
