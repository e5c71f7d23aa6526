"""Takes a snapshot of a directory on the submitter's machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.snapshot.directory import select_in_directory
from gpuqueue.snapshot.errors import SnapshotRefused
from gpuqueue.snapshot.git_tree import select_in_git
from gpuqueue.snapshot.hash_cache import HashCache, forget
from gpuqueue.snapshot.limits import DEFAULT, IGNORE_FILE, Limits
from gpuqueue.snapshot.manifest import Manifest, address_of
from gpuqueue.snapshot.names import quoted
from gpuqueue.snapshot.pack import pack, read_again
from gpuqueue.snapshot.secret_files import check_keys, check_secrets
from gpuqueue.snapshot.selection import Excluded, Selection
from gpuqueue.snapshot.tree import Tree
from gpuqueue.system.git_checkout import work_tree_of

#: The option of the command line that allows files that look like secrets.
ALLOW_OPTION = "--snapshot-allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that was taken, whose files are still on this machine.

    ``cwd`` is the job's working directory relative to ``root``, with slashes, "." for the root itself. ``text`` is the
    manifest's text and ``address`` its SHA-256. ``excluded`` and ``notes`` are for the user to read. ``cache`` is the
    directory of the hash cache.
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
    cache: Path | None = None

    def blobs(self) -> dict[str, int]:
        """Return the size in bytes of each blob by its SHA-256."""
        return self.manifest.blobs()

    def blob(self, sha256: str) -> Iterator[bytes]:
        """Yield the blob with *sha256* from the disk, for sending.

        Raises:
            SnapshotRefused: the file has changed since, or cannot be read.

        """
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
    directory, root = _existing(directory), None if root is None else _existing(root)
    work_tree = work_tree_of(root or directory)
    root = root or work_tree or directory
    _check_root(root)
    if not directory.is_relative_to(root):
        raise BadRequest(
            f"the working directory {quoted(str(directory))} is not in {quoted(str(root))}, which is to travel: name a "
            "directory that holds it"
        )
    with closing(Tree(root)) as tree:
        selection, in_git = _selected(tree, work_tree, limits)
        check_secrets((path for path, _ in selection.found), allowed, allow_option)
        hashes = HashCache(cache, root)
        packed = pack(tree, selection.found, limits, hashes)
        hashes.save()
    check_keys(packed.keys, allowed, allow_option)
    cwd = directory.relative_to(root).as_posix()
    text = packed.manifest.text()
    return Snapshot(
        root=root,
        cwd=cwd,
        manifest=packed.manifest,
        text=text,
        address=address_of(text),
        sources=packed.sources,
        in_git=in_git,
        excluded=selection.excluded,
        notes=(*selection.notes, *packed.notes, *_note_on_empty_cwd(cwd, packed.manifest)),
        cache=cache,
    )


def _selected(tree: Tree, work_tree: Path | None, limits: Limits) -> tuple[Selection, bool]:
    """Return the files of *tree* that travel, and whether git has selected them."""
    if work_tree is not None:
        selection = select_in_git(tree, work_tree, limits)
        if selection.found or tree.root == work_tree:
            return selection, True
    return select_in_directory(tree, limits), False


def _existing(directory: Path) -> Path:
    try:
        found = directory.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise BadRequest(f"cannot enter {quoted(str(directory))}: {error}") from None
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
