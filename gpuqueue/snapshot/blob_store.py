"""Keeps blobs and manifests at the service, in files below one directory.

::

    blobs/ab/cd/SHA256     a content, of mode 0600 below directories of mode 0700
    removed/SHA256         a content that is just being collected
    users/UID/ab/SHA256    an empty file: this account has sent this content

A content is written to a temporary file in its directory, checked, and renamed. An account has a content only once it
has sent it itself, since knowing a hash is no right to read. So ``missing`` gives the same answer whether nobody or
only others have sent a content. A manifest is a blob, too; its address is its SHA-256.

There is no lock. A blob's modification time is when it was last needed, and ``collect`` removes only what is older than
a grace: it moves a blob away first and brings it back if that time has changed meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.snapshot.errors import BlobRefused, InvalidManifest, SnapshotNotHeld
from gpuqueue.snapshot.limits import DEFAULT, Limits
from gpuqueue.snapshot.manifest import MAX_TEXT_BYTES, SHA256, Manifest, address_of, read_manifest
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import format_bytes

#: How the names of files that are not yet blobs begin.
PARTIAL = ".partial-"


class BlobStore:
    """The blobs below the directory *root*, which is made if it is missing. Safe for several threads and processes.

    Accounts are numbers (uid). Every method raises BadRequest for a *sha256* that is none.
    """

    def __init__(self, root: Path) -> None:
        """Make the directories.

        Raises:
            GpuQueueError: *root* belongs to another account, or cannot be made.

        """
        self.root = root
        self.blobs, self.users, self.removed = root / "blobs", root / "users", root / "removed"
        try:
            for folder in (root, self.blobs, self.users, self.removed):
                folder.mkdir(mode=0o700, parents=folder is root, exist_ok=True)
            about = root.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                raise GpuQueueError(f"{root} must be a directory of the account that runs the service")
            root.chmod(0o700)
        except OSError as error:
            raise GpuQueueError(f"snapshots cannot be kept in {root}: {error.strerror}") from None

    def missing(self, uid: int, shas: Iterable[str]) -> list[str]:
        """Return those of *shas* that the account *uid* must send. The others stay for the grace of ``collect``."""
        return [sha256 for sha256 in shas if not self._renew(uid, sha256)]

    def put(self, uid: int, sha256: str, size_bytes: int, chunks: Iterable[bytes], *, most_bytes: int) -> None:
        """Store the content *chunks*, and that the account *uid* has sent it. It is on the disk when this returns.

        Raises:
            BlobRefused: the content is not *size_bytes* long, is above *most_bytes*, or *sha256* is not of it.

        """
        if not 0 <= size_bytes <= most_bytes:
            size, limit = format_bytes(size_bytes), format_bytes(most_bytes)
            raise BlobRefused(f"a content of {size} is above the limit of {limit} for a file")
        path = self._path(sha256)
        _make(path.parent)
        fd, partial = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)  # of mode 0600
        try:
            with open(fd, "wb") as file:
                _copy(chunks, file, sha256, size_bytes)
                file.flush()
                os.fsync(fd)
            Path(partial).rename(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(partial).unlink()
            raise
        _sync(path.parent)
        mark = self._mark(uid, sha256)
        _make(mark.parent)
        mark.touch(mode=0o600)

    def add_manifest(self, uid: int, text: bytes, limits: Limits = DEFAULT) -> Manifest:
        """Store the manifest *text* of a snapshot whose contents the account *uid* has sent, and return it.

        Raises:
            InvalidManifest: the text is no valid manifest within *limits*.
            SnapshotNotHeld: the account has not sent a content, or it was collected: ask for ``missing`` again.

        """
        manifest = read_manifest(text, limits)
        self._check_contents(uid, manifest)
        self.put(uid, address_of(text), len(text), [text], most_bytes=MAX_TEXT_BYTES)
        return manifest

    def use(self, uid: int, address: str, limits: Limits = DEFAULT) -> Manifest:
        """Return the manifest at *address*, which the account *uid* has sent with all contents.

        Call it before a job refers to the snapshot: all of it then stays for the grace of ``collect``.

        Raises:
            SnapshotNotHeld: the account has not sent all of it, or it was collected.
            InvalidManifest: the content at *address* is no valid manifest within *limits*.

        """
        if not self._renew(uid, address):
            raise SnapshotNotHeld(f"you have no snapshot {address[:12]} here, or it was collected: submit it again")
        manifest = read_manifest(self.manifest_text(address), limits)
        self._check_contents(uid, manifest)
        return manifest

    def manifest_text(self, address: str) -> bytes:
        """Return the manifest at *address*, which any account may have sent: the caller decides who may read it.

        Raises:
            SnapshotNotHeld: it is not here.
            InvalidManifest: the content at *address* is too long for a manifest.

        """
        with self.open(address) as file:
            text = file.read(MAX_TEXT_BYTES + 1)
        if len(text) > MAX_TEXT_BYTES:
            raise InvalidManifest(f"the manifest has more than {MAX_TEXT_BYTES} bytes")
        return text

    def open(self, sha256: str) -> BinaryIO:
        """Return the open content with *sha256*, whose reader the caller has to authorise.

        Raises:
            SnapshotNotHeld: it is not here.

        """
        try:
            return self._path(sha256).open("rb")
        except FileNotFoundError:
            raise SnapshotNotHeld(f"the content {sha256[:12]} is not here, or it was collected: submit again") from None

    def path_of(self, sha256: str) -> Path:
        """Return the path of the content with *sha256*, whether it is here or not."""
        return self._path(sha256)

    def marks_of(self, sha256: str) -> Iterator[Path]:
        """Yield the marks of the accounts that have sent the content with *sha256*."""
        for user in self.users.iterdir():
            mark = user / sha256[:2] / sha256
            if mark.exists():
                yield mark

    def _check_contents(self, uid: int, manifest: Manifest) -> None:
        lacking = self.missing(uid, manifest.blobs())
        if lacking:
            raise SnapshotNotHeld(f"{len(lacking)} contents of the snapshot are missing, among them {lacking[0][:12]}")
        for sha256, size_bytes in manifest.blobs().items():
            if self._path(sha256).stat().st_size != size_bytes:
                raise InvalidManifest(f"the content {sha256[:12]} is not as long as the manifest says")

    def _renew(self, uid: int, sha256: str) -> bool:
        """Return whether the account *uid* has sent *sha256* and it is here, and have it stay for the grace."""
        path, mark = self._path(sha256), self._mark(uid, sha256)
        if not mark.exists():
            return False
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _path(self, sha256: str) -> Path:
        if not SHA256.fullmatch(str(sha256)):
            raise BadRequest(f"{brief(sha256)} is no SHA-256")
        return self.blobs / sha256[:2] / sha256[2:4] / sha256

    def _mark(self, uid: int, sha256: str) -> Path:
        return self.users / str(int(uid)) / sha256[:2] / sha256


def _copy(chunks: Iterable[bytes], file: BinaryIO, sha256: str, size_bytes: int) -> None:
    digest, left_bytes = hashlib.sha256(), size_bytes
    for chunk in chunks:
        left_bytes -= len(chunk)
        if left_bytes < 0:
            raise BlobRefused(f"more than the announced {size_bytes} bytes were sent")
        digest.update(chunk)
        file.write(chunk)
    if left_bytes:
        raise BlobRefused(f"{size_bytes - left_bytes} bytes were sent, but {size_bytes} were announced")
    if digest.hexdigest() != sha256:
        raise BlobRefused(f"the content sent is not the one with the SHA-256 {sha256[:12]}…: submit again")


def _make(folder: Path) -> None:
    """Make *folder* and its parent, only for this account, if they are missing."""
    for each in (folder.parent, folder):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            continue
        _sync(each.parent)


def _sync(folder: Path) -> None:
    """Wait until the names in *folder* are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
