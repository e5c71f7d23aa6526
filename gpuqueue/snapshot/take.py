"""Takes a snapshot of a directory on the submitter's machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.snapshot.contents import Contents
from gpuqueue.snapshot.directory import select_in_directory
from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.git_ids import git_hash_of
from gpuqueue.snapshot.git_tree import select_in_git
from gpuqueue.snapshot.hash_cache import HashCache, forget
from gpuqueue.snapshot.limits import DEFAULT, IGNORE_FILE, Limits
from gpuqueue.snapshot.manifest import Manifest, address_of
from gpuqueue.snapshot.names import quoted
from gpuqueue.snapshot.pack import pack, read_again
from gpuqueue.snapshot.secret_files import check_keys, check_secrets
from gpuqueue.snapshot.selection import Excluded, Selection
from gpuqueue.snapshot.tree import Tree
from gpuqueue.system.git_checkout import commit_of, work_tree_of

#: The option of the command line that allows files that look like secrets.
ALLOW_OPTION = "--snapshot-allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that was taken, whose files are still on this machine.

    ``cwd`` is the job's working directory relative to ``root``, with slashes, "." for the root itself. ``text`` is the
    manifest's text and ``address`` its SHA-256. ``excluded`` and ``notes`` are for the user to read. ``diff``
    is how the snapshot differs from the commit that git has checked out, None without one. ``cache`` is the directory
    of the hash cache.
    """

    root: Path
    cwd: str
    manifest: Manifest
    text: bytes
    address: str
    sources: dict[str, str]
    in_git: bool
    excluded: tuple[Excluded, ...]
    notes: tuple[str, ...]
    diff: bytes | None = None
    cache: Path | None = None

    @property
    def diff_sha256(self) -> str | None:
        """The SHA-256 of ``diff``, None without one."""
        return None if self.diff is None else hashlib.sha256(self.diff).hexdigest()

    def blobs(self) -> dict[str, int]:
        """Return the size in bytes of each blob by its SHA-256."""
        return self.manifest.blobs()

    def sends(self) -> dict[str, int]:
        """Return what :meth:`blobs` does, and the size of ``diff``."""
        own = {} if self.diff is None or self.diff_sha256 is None else {self.diff_sha256: len(self.diff)}
        return {**self.blobs(), **own}

    def blob(self, sha256: str) -> Iterator[bytes]:
        """Yield the blob with *sha256*, one of ``sends``, from the disk, for sending.

        Raises:
            SnapshotRefused: the file has changed since, or cannot be read.

        """
        if sha256 not in self.sources:
            yield self.diff or b""
            return
        try:
            yield from read_again(self.root, self.sources[sha256], sha256)
        except SnapshotRefused:
            forget(self.cache, self.root)  # it may have named this content
            raise


def take_snapshot(
    directory: Path,
    *,
    root: Path | None = None,
    limits: Limits = DEFAULT,
    allowed: Sequence[str] = (),
    allow_option: str = ALLOW_OPTION,
    cache: Path | None = None,
) -> Snapshot:
    """Take a snapshot for a job that works in *directory*.

    Takes the directory *root*; without it, the git work tree that holds *directory*, or else *directory* itself. If git
    ignores every file of *root*, the rules for directories without git apply. Files that look like secrets are refused
    unless a pattern in *allowed* names them; *allow_option* is how a user adds one. *cache* is the directory of the
    hash cache; without it, every file is read.

    Raises:
        BadRequest: a directory does not exist.
        SnapshotTooLarge: the files are above *limits*.
        SnapshotRefused: a file cannot or should not be in a snapshot.

    """
    directory, root, work_tree = _placed(directory, root)
    with closing(Tree(root)) as tree:
        selection, work_tree = _selected(tree, work_tree, limits)
        check_secrets((path for path, _ in selection.found), allowed, allow_option)
        commit = None if work_tree is None else commit_of(work_tree)
        hashes = HashCache(cache, root)
        contents = Contents(tree, limits, hashes, commit and git_hash_of(commit))
        packed = pack(contents, selection.found, limits)
        text = packed.manifest.text()
        address = address_of(text)
        try:
            check_keys(contents.keys(), allowed, allow_option)
            what = _Compared(manifest=packed.manifest, address=address, work_tree=work_tree, commit=commit)
            diff, note = what.diff(contents, allowed, hashes)
        finally:
            hashes.save()
    cwd = directory.relative_to(root).as_posix()
    return Snapshot(
        root=root,
        cwd=cwd,
        manifest=packed.manifest,
        text=text,
        address=address,
        sources=packed.sources,
        in_git=work_tree is not None,
        excluded=selection.excluded,
        notes=(*selection.notes, *packed.notes, *_note_on_empty_cwd(cwd, packed.manifest), *note),
        diff=diff,
        cache=cache,
    )


def _placed(directory: Path, root: Path | None) -> tuple[Path, Path, Path | None]:
    """Return *directory*, the root of the snapshot, and the git work tree that holds it; all without links."""
    directory, root = _existing(directory), None if root is None else _existing(root)
    work_tree = work_tree_of(root or directory)
    root = root or work_tree or directory
    _check_root(root)
    if not directory.is_relative_to(root):
        raise BadRequest(
            f"the working directory {quoted(str(directory))} is not in {quoted(str(root))}, which is to travel: name a "
            "directory that holds it"
        )
    return directory, root, work_tree


def _selected(tree: Tree, work_tree: Path | None, limits: Limits) -> tuple[Selection, Path | None]:
    """Return the files of *tree* that travel, and *work_tree* if git has selected them."""
    if work_tree is not None:
        selection = select_in_git(tree, work_tree, limits)
        if selection.found or tree.root == work_tree:
            return selection, work_tree
    return select_in_directory(tree, limits), None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A snapshot, and the commit that git has checked out in the work tree, if there are any."""

    manifest: Manifest
    address: str
    work_tree: Path | None
    commit: str | None

    def diff(
        self, contents: Contents, allowed: Sequence[str], hashes: HashCache
    ) -> tuple[bytes | None, tuple[str, ...]]:
        """Return how the snapshot differs from its commit, if it has one, and a note if that cannot be found out."""
        if self.work_tree is None or self.commit is None:
            return None, ()
        key = hashlib.sha256("\0".join((self.commit, self.address, *allowed)).encode("utf-8", "surrogateescape"))
        known = hashes.diff(key.hexdigest())
        if known is not None:
            return known, ()
        from gpuqueue.snapshot.commit_diff import CommitDiff  # noqa: PLC0415 - lazy import for startup time

        try:
            compared = CommitDiff(contents.tree, self.work_tree, self.commit, allowed)
            text = compared.text(self.manifest, contents.git_ids())
        except SnapshotRefused as error:
            return None, (f"how the code differs from its commit is not recorded: {error}",)
        if not compared.depends_on_disk:
            hashes.add_diff(key.hexdigest(), text)
        return text, ()


def _existing(directory: Path) -> Path:
    try:
        found = directory.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadRequest(f"cannot enter {quoted(str(directory))}: {why}") from None
    if not found.is_dir():
        raise BadRequest(f"{quoted(str(directory))} is no directory")
    return found


def _check_root(root: Path) -> None:
    """Refuse the home directory and its parents: they are no project, and hold private files."""
    try:
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return
    if home.is_relative_to(root):
        raise SnapshotRefused(
            f"{quoted(str(root))} is or contains your home directory, which is not taken as a snapshot: submit from "
            "the directory of your project"
        )


def _note_on_empty_cwd(cwd: str, manifest: Manifest) -> tuple[str, ...]:
    if cwd == "." or any(each.path.startswith(f"{cwd}/") for each in manifest.entries):
        return ()
    return (f"the snapshot has no file of the working directory {quoted(cwd)}: git or {IGNORE_FILE} leaves them out",)
