"""Keeps blobs and manifests at the service, in files below one directory.

::

    blobs/a/b/SHA256       a blob, of mode 0600 below directories of mode 0700
    users/UID/ab/SHA256    an empty file: this account has sent this blob
    held/UID/ADDRESS       an empty file: this account has this snapshot; its time is that of the last use
    held/UID/ADDRESS.DIFF  the same, with the text DIFF about its difference from a commit
    parts/UID/SHA256       a blob that this account has sent a part of
    lock                   held shared to renew blobs, exclusively to remove one

A blob is written to a temporary file in its directory, checked, synced and renamed. The names are synced once for a
whole snapshot; a and b are the first two digits of the hash, so that this is at most 256 directories.

An account may use a blob only after it has sent the blob itself; knowing the hash gives no access. So ``missing`` gives
the same answer whether nobody or only others have sent a blob. A manifest is a blob, too: its hash is its address.

A blob's modification time is when it was last needed; ``collect`` removes only what is older than a grace.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.files.errors import BlobRefused, InvalidManifest, SnapshotNotHeld
from gpuqueue.files.folders import CHUNK_BYTES
from gpuqueue.files.limits import DEFAULT, DIFF_BYTES, Limits
from gpuqueue.files.manifest import MAX_TEXT_BYTES, SHA256, Manifest, address_of, read_manifest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.settings.settings import Settings
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import format_bytes

#: How the names of files that are not yet blobs begin.
PARTIAL = ".partial-"
#: How long an unfinished blob is kept to which nothing is added, in seconds.
PARTS_KEPT_S = 3600.0


def directory_of(settings: Settings) -> Path:
    """Return the directory of this host's snapshots."""
    return settings.state_dir / "snapshots"


def blob_store_of(settings: Settings) -> BlobStore:
    """Return the blob store of this host's snapshots.

    Raises:
        GpuQueueError: its directory belongs to another account, or cannot be made.

    """
    return BlobStore(directory_of(settings))


def limits_of(settings: Settings) -> Limits:
    """Return the limits that the settings give."""
    return Limits(
        total_bytes=settings.snapshot_limit_bytes,
        file_bytes=settings.snapshot_file_limit_bytes,
        files=settings.snapshot_files,
    )


class BlobStore:
    """The blobs below the directory *root*, which is made if it is missing. Safe for several threads and processes.

    Accounts are numbers (uid). Every method raises BadRequest for a *sha256* that is not 64 hexadecimal digits.
    """

    def __init__(self, root: Path) -> None:
        """Make the directories.

        Raises:
            GpuQueueError: *root* belongs to another account, or cannot be made.

        """
        self.root = root
        self.blobs, self.users, self._lock = root / "blobs", root / "users", root / "lock"
        self.held, self.parts = HeldMarks(root / "held"), root / "parts"
        try:
            for folder in (root, self.blobs, self.users, root / "held"):
                folder.mkdir(mode=0o700, parents=folder is root, exist_ok=True)
            about = root.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                raise GpuQueueError(f"{root} must be a directory of the account that runs the service")
            root.chmod(0o700)
        except OSError as error:
            raise GpuQueueError(f"snapshots cannot be kept in {root}: {error.strerror}") from None

    def missing(self, uid: int, shas: Iterable[str]) -> list[str]:
        """Return those of *shas* that the account *uid* must send. The others stay for the grace of ``collect``."""
        with self.locked():
            return [sha256 for sha256 in shas if not self._renew(uid, sha256)]

    def put(self, uid: int, sha256: str, size_bytes: int, chunks: Iterable[bytes], *, most_bytes: int) -> None:
        """Store the blob that consists of *chunks*, and that the account *uid* has sent it.

        The blob survives a power cut once ``add_manifest`` has returned for a snapshot with it.

        Raises:
            BlobRefused: the blob is not *size_bytes* long, is above *most_bytes*, or does not have the hash *sha256*.

        """
        if not 0 <= size_bytes <= most_bytes:
            size, limit = format_bytes(size_bytes), format_bytes(most_bytes)
            raise BlobRefused(f"a blob of {size} is above the limit of {limit} for a file")
        path = self._path(sha256)
        _make_folder(path.parent)
        fd, partial = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)  # of mode 0600
        try:
            with open(fd, "wb") as file:
                _copy_blob(chunks, file, sha256, size_bytes)
                file.flush()
                os.fsync(fd)
            mark = self._mark(uid, sha256)
            _make_folder(mark.parent)
            with self.locked():
                Path(partial).rename(path)
                os.utime(path)  # it was written before a wait for the disk, and may replace one that was renewed since
                mark.touch(mode=0o600)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(partial).unlink()
            raise

    def put_part(
        self, uid: int, sha256: str, size_bytes: int, offset_bytes: int, content: bytes, *, most_bytes: int
    ) -> None:
        """Add *content* at *offset_bytes* to a blob of *size_bytes* that the account *uid* sends in parts, in order.

        A part may come again, after a lost answer, and two requests may send the same blob at once. An unfinished blob
        is a file of its account; a complete one is stored.

        Raises:
            BadRequest: the part lies outside of the blob, or a part before it is missing.
            BlobRefused: the blob is complete, but does not have the hash *sha256*.

        """
        short = checked_sha256(sha256)[:12]
        if not 0 <= offset_bytes <= offset_bytes + len(content) <= size_bytes <= most_bytes:
            raise BadRequest(f"the part of {short} lies outside of a blob of at most {most_bytes} bytes")
        if len(content) == size_bytes:
            self.put(uid, sha256, size_bytes, [content], most_bytes=most_bytes)
            return
        with self._unfinished(uid, sha256) as (fd, path):
            if not self.missing(uid, [sha256]):  # it was complete, and its file of parts is gone
                path.unlink(missing_ok=True)
                return
            here_bytes = os.fstat(fd).st_size
            if here_bytes < offset_bytes:
                raise BadRequest(f"a part of {short} is missing before byte {offset_bytes}: send it again")
            if here_bytes < offset_bytes + len(content):
                os.pwrite(fd, content, offset_bytes)
            if os.fstat(fd).st_size >= size_bytes:
                try:
                    self.put(uid, sha256, size_bytes, _chunks(fd), most_bytes=most_bytes)
                finally:
                    path.unlink(missing_ok=True)

    def forget_parts(self) -> None:
        """Delete the unfinished blobs to which nothing was added for ``PARTS_KEPT_S``."""
        before_s = time.time() - PARTS_KEPT_S
        for path in self.parts.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before_s:
                    path.unlink()

    def add_manifest(self, uid: int, text: bytes, limits: Limits = DEFAULT, *, diff: str | None = None) -> Manifest:
        """Store the manifest *text* of a snapshot whose blobs the account *uid* has sent, and return the manifest.

        *diff* is a further blob, the text about the difference from a commit.

        Raises:
            InvalidManifest: the text is no valid manifest within *limits*.
            SnapshotNotHeld: the account has not sent a blob, or the blob was collected: ask for ``missing`` again.

        """
        manifest = read_manifest(text, limits)
        lacking = self.offer(uid, manifest, text, diff)
        if lacking:
            raise _not_held(lacking)
        return manifest

    def offer(self, uid: int, manifest: Manifest, text: bytes, diff: str | None = None) -> list[str]:
        """Do what :meth:`add_manifest` does, unless the account *uid* must send blobs first: return these then.

        *text* is that of *manifest*.

        Raises:
            InvalidManifest: a blob is not as long as the manifest says.

        """
        lacking = self._lacking(uid, manifest, diff)
        if lacking:
            return lacking
        address = address_of(text)
        synced_at_s = self.held.used_at_s(uid, address, diff)
        if synced_at_s is None or self.missing(uid, [address]):
            synced_at_s = None
            self.put(uid, address, len(text), [text], most_bytes=MAX_TEXT_BYTES)
        for folder in {self._path(each).parent for each in (address, *manifest.blobs(), *_diff_names(diff))}:
            if synced_at_s is None or folder.stat().st_mtime >= synced_at_s:  # it has new names
                _sync_folder(folder)
        self.held.add(uid, address, diff)
        return []

    def use(self, uid: int, address: str, limits: Limits = DEFAULT, *, diff: str | None = None) -> Manifest:
        """Return the manifest at *address*, which the account *uid* has sent with all of its blobs.

        Call it before a job refers to the snapshot: all of it then stays for the grace of ``collect``.

        Raises:
            SnapshotNotHeld: the account has not sent all of it, or it was collected.
            InvalidManifest: the blob at *address* is no valid manifest within *limits*.

        """
        if self.missing(uid, [address]):
            raise SnapshotNotHeld(f"you have no snapshot {address[:12]} here, or it was collected: submit it again")
        manifest = read_manifest(self.manifest_text(address), limits)
        lacking = self._lacking(uid, manifest, diff)
        if lacking:
            raise _not_held(lacking)
        self.held.add(uid, address, diff)
        return manifest

    def share(
        self, uid: int, other_uid: int, address: str, limits: Limits = DEFAULT, *, diff: str | None = None
    ) -> None:
        """Let the account *other_uid* use the snapshot at *address* of the account *uid*, as if it had sent it.

        Raises:
            SnapshotNotHeld: the account *uid* has not sent all of it, or it was collected.

        """
        manifest = self.use(uid, address, limits, diff=diff)
        if uid != other_uid:
            for sha256 in (*manifest.blobs(), address, *_diff_names(diff)):
                mark = self._mark(other_uid, sha256)
                _make_folder(mark.parent)
                mark.touch(mode=0o600)
            self.held.add(other_uid, address, diff)

    def size_bytes_of(self, uid: int) -> int:
        """Return the size of all blobs that the account *uid* has sent, whole or in part, in bytes."""
        found = sum(about.st_size for about in self.sent(uid).values())
        for path in (self.parts / str(int(uid))).glob("*"):
            with contextlib.suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    def content(self, sha256: str) -> Iterator[bytes]:
        """Yield the blob with *sha256*. The caller decides who may read it.

        Raises:
            SnapshotNotHeld: the blob is not in the store.

        """
        with self.open(sha256) as file:
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")

    def manifest_text(self, address: str) -> bytes:
        """Return the manifest at *address*, which any account may have sent. The caller decides who may read it.

        Raises:
            SnapshotNotHeld: the manifest is not in the store.
            InvalidManifest: the blob at *address* is too long for a manifest.

        """
        with self.open(address) as file:
            text = file.read(MAX_TEXT_BYTES + 1)
        if len(text) > MAX_TEXT_BYTES:
            raise InvalidManifest(f"the manifest has more than {MAX_TEXT_BYTES} bytes")
        return text

    def open(self, sha256: str) -> BinaryIO:
        """Open the blob with *sha256* for reading. The caller decides who may read it.

        Raises:
            SnapshotNotHeld: the blob is not in the store.

        """
        try:
            return self._path(sha256).open("rb")
        except FileNotFoundError:
            raise SnapshotNotHeld(f"the blob {sha256[:12]} is not here, or was collected: submit again") from None

    def remove(self, sha256: str, before_s: float, *, unless_sent: bool = False) -> int | None:
        """Remove the blob with *sha256*, and that accounts have sent it, if it was last needed before *before_s*.

        With *unless_sent*, it also stays if an account has sent it. Return its size in bytes, or None if it stays.
        """
        path = self._path(sha256)
        with self.locked(alone=True), contextlib.suppress(FileNotFoundError):  # another collection was faster
            about = path.stat()
            marks = [user / sha256[:2] / sha256 for user in self.users.iterdir()]
            if about.st_mtime < before_s and not (unless_sent and any(each.exists() for each in marks)):
                path.unlink()
                for mark in marks:
                    mark.unlink(missing_ok=True)
                self.held.remove_everywhere(sha256)
                return about.st_size
        return None

    def release(self, uid: int, shas: Iterable[str]) -> None:
        """Forget that the account *uid* has sent the blobs *shas*. The caller holds the lock alone."""
        for sha256 in shas:
            self._mark(uid, sha256).unlink(missing_ok=True)

    def sent(self, uid: int) -> dict[str, os.stat_result]:
        """Return the blobs that the account *uid* has sent. Each has the modification time of its last need."""
        found = {}
        for mark in (self.users / str(int(uid))).glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                found[mark.name] = os.stat(self._name(mark.name))
        return found

    @contextlib.contextmanager
    def locked(self, *, alone: bool = False) -> Iterator[None]:
        """Hold the lock, together with others or *alone*. The end of this process releases it, too."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _unfinished(self, uid: int, sha256: str) -> Iterator[tuple[int, Path]]:
        """Open the file of an unfinished blob under an exclusive lock."""
        folder = self.parts / str(int(uid))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / sha256
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd, path
        finally:
            os.close(fd)

    def _lacking(self, uid: int, manifest: Manifest, diff: str | None) -> list[str]:
        """Return the blobs that the account must send. If there are none, check the lengths of all."""
        sizes = manifest.blobs()
        lacking = self.missing(uid, (*sizes, *_diff_names(diff)))
        if lacking:
            return lacking
        if diff is not None and os.stat(self._name(diff)).st_size > DIFF_BYTES:
            raise InvalidManifest(f"the difference from the commit has more than {DIFF_BYTES} bytes")
        for sha256, size_bytes in sizes.items():
            if os.stat(self._name(sha256)).st_size != size_bytes:
                raise InvalidManifest(f"the blob {sha256[:12]} is not as long as the manifest says")
        return []

    def _renew(self, uid: int, sha256: str) -> bool:
        """Renew the time of the blob *sha256* if it is here and the account *uid* has sent it; return whether so."""
        try:
            os.stat(f"{self.users}/{int(uid)}/{checked_sha256(sha256)[:2]}/{sha256}")
            os.utime(self._name(sha256))
        except FileNotFoundError:
            return False
        return True

    def _name(self, sha256: str) -> str:
        """Return the path of a blob as a text. A submit asks for thousands, and a ``Path`` takes ten times as long."""
        name = checked_sha256(sha256)
        return f"{self.blobs}/{name[0]}/{name[1]}/{name}"

    def _path(self, sha256: str) -> Path:
        return Path(self._name(sha256))

    def _mark(self, uid: int, sha256: str) -> Path:
        return self.users / str(int(uid)) / checked_sha256(sha256)[:2] / sha256


def _not_held(lacking: list[str]) -> SnapshotNotHeld:
    return SnapshotNotHeld(f"{len(lacking)} blobs of the snapshot are missing, among them {lacking[0][:12]}")


def _diff_names(diff: str | None) -> tuple[str, ...]:
    return () if diff is None else (diff,)


def _copy_blob(chunks: Iterable[bytes], file: BinaryIO, sha256: str, size_bytes: int) -> None:
    """Write *chunks* to *file*, which together have *size_bytes* and the hash *sha256*.

    Raises:
        BlobRefused: they have not.

    """
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
        raise BlobRefused(f"the blob that was sent does not have the SHA-256 {sha256[:12]}…: submit again")


def _make_folder(folder: Path) -> None:
    """Make *folder* and its parent, only for this account, if they are missing."""
    for each in (folder.parent, folder):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:
            continue
        _sync_folder(each.parent)


def _sync_folder(folder: Path) -> None:
    """Wait until the names in *folder* are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def checked_sha256(sha256: str) -> str:
    """Return *sha256* if it is a hash. Then it cannot name another path.

    Raises:
        BadRequest: it is none.

    """
    if not SHA256.fullmatch(str(sha256)):
        raise BadRequest(f"{brief(sha256)} is no SHA-256")
    return sha256


@dataclass(frozen=True, slots=True)
class Held:
    """When an account last used a snapshot, in seconds since 1970, and the hashes of its differences from commits."""

    used_at_s: float
    diffs: list[str] = field(default_factory=list)


class HeldMarks:
    """Which snapshots each account has, and when it last used them: the files below *root*, which exists."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, uid: int, address: str, diff: str | None) -> None:
        """Record that the account *uid* uses the snapshot at *address* now."""
        folder = self._root / str(int(uid))
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in (address, *([f"{address}.{diff}"] if diff is not None else [])):
            (folder / name).touch(mode=0o600)

    def used_at_s(self, uid: int, address: str, diff: str | None) -> float | None:
        """Return when the account *uid* last used the snapshot with *diff*, in seconds since 1970; None if never."""
        name = address if diff is None else f"{address}.{diff}"
        try:
            return (self._root / str(int(uid)) / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def of(self, uid: int) -> dict[str, Held]:
        """Return the snapshots of the account *uid* by address."""
        found: dict[str, Held] = {}
        for mark in sorted((self._root / str(int(uid))).glob("*")):  # an address comes before its differences
            address, _, diff = mark.name.partition(".")
            with contextlib.suppress(FileNotFoundError):
                if not diff:
                    found[address] = Held(mark.stat().st_mtime)
                elif address in found:
                    found[address].diffs.append(diff)
        return found

    def remove(self, uid: int, address: str) -> None:
        """Remove the record of the snapshot at *address* from the account *uid*."""
        for mark in (self._root / str(int(uid))).glob(f"{address}*"):
            mark.unlink(missing_ok=True)

    def remove_everywhere(self, sha256: str) -> None:
        """Remove a snapshot, or a difference, that is no longer stored from all accounts."""
        for pattern in (f"*/{sha256}*", f"*/*.{sha256}"):
            for mark in self._root.glob(pattern):
                mark.unlink(missing_ok=True)


def _chunks(fd: int) -> Iterator[bytes]:
    offset = 0
    while chunk := os.pread(fd, CHUNK_BYTES, offset):
        offset += len(chunk)
        yield chunk
