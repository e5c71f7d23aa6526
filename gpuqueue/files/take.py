"""Takes a snapshot of a directory on the submitter's machine. It selects the files, by git or without it."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import field
from pathlib import Path

from gpuqueue.errors import BadRequest
from gpuqueue.files import git
from gpuqueue.files import limits as size_limits
from gpuqueue.files.contents import Contents, HashCache, forget
from gpuqueue.files.errors import InvalidManifest, SnapshotRefused
from gpuqueue.files.ignore import Ignored, IgnoreRules
from gpuqueue.files.limits import DEFAULT, IGNORE_FILE, Limits, ignore_line
from gpuqueue.files.manifest import MAX_TEXT_BYTES, Entry, Kind, Manifest, address_of
from gpuqueue.files.names import inside, path_fault, quoted
from gpuqueue.files.secret_files import check_keys, check_secrets
from gpuqueue.files.tree import Tree, read_again
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.system.git_checkout import commit_of, work_tree_of

#: The option of the command line that allows files that look like secrets.
ALLOW_OPTION = "--snapshot-allow"
#: What tools make.
_OF_TOOLS = (
    *(".hg/", ".svn/", ".DS_Store"),
    *(".venv/", "venv/", "node_modules/", ".tox/", ".nox/"),
    *("__pycache__/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/", ".ipynb_checkpoints/"),
    *("wandb/", "mlruns/", "lightning_logs/"),
)
#: Left out unless an ignore file takes them back in (``!*.pt``): what tools make, and weights, which are large.
DEFAULT_EXCLUDES = (*_OF_TOOLS, "*.pt", "*.pth", "*.ckpt", "*.safetensors")
#: Paths below ignored ones that are looked at: enough for a line about them, in a moment.
MAX_IGNORED = 2000
#: Left out always, as by git itself.
_GIT = ".git"
_GIT_IGNORE_FILE = ".gitignore"
#: Mode of a submodule in the index.
_SUBMODULE = b"160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A default pattern that left paths out: how many, and the first of them. A directory counts as one path."""

    pattern: str
    paths: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredFiles:
    """Files that an ignore file left out, each with its size, the largest first. ``is_all``: there are no more."""

    files: tuple[tuple[str, int], ...] = ()
    is_all: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that was taken, whose files are still on this machine.

    ``cwd`` is the job's working directory relative to ``root``, with slashes, "." for the root itself. ``text`` is the
    manifest's text and ``address`` its SHA-256. ``excluded``, ``ignored`` and ``notes`` are for the user to read.
    ``added`` are the contents that are not on the disk, by their SHA-256. ``diff`` is how the snapshot differs from the
    commit that git has checked out, None without one. ``cache`` is the directory of the hash cache.
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
    ignored: IgnoredFiles = IgnoredFiles()
    diff: bytes | None = None
    cache: Path | None = None
    added: Mapping[str, bytes] = field(default_factory=dict)

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
            yield self.added.get(sha256, self.diff or b"")
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
    added: Mapping[str, bytes] | None = None,
) -> Snapshot:
    """Take a snapshot for a job that works in *directory*.

    Takes the directory *root*; without it, the git work tree that holds *directory*, or else *directory* itself. If git
    ignores every file of *root*, the rules for directories without git apply. Files that look like secrets are refused
    unless a pattern in *allowed* names them; *allow_option* is how a user adds one. *cache* is the directory of the
    hash cache; without it, every file is read. *added* are further files, not on the disk: their contents by their
    paths from *directory*. They replace files with these paths.

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
        contents = Contents(tree, limits, hashes, commit and git.git_hash_of(commit))
        packed = pack(contents, selection.found, limits)
        ignored = _ignored_files(tree, selection.ignored)
        text = packed.manifest.text()
        address = address_of(text)
        try:
            check_keys(contents.keys(), allowed, allow_option)
            what = _Compared(manifest=packed.manifest, address=address, work_tree=work_tree, commit=commit)
            diff, note = what.diff(contents, allowed, hashes)
        finally:
            hashes.save()
    cwd = directory.relative_to(root).as_posix()
    manifest = packed.manifest
    if added:
        manifest = _with_added(manifest, {posixpath.normpath(f"{cwd}/{path}"): each for path, each in added.items()})
        size_limits.check([(each.path, each.size_bytes or 0) for each in manifest.entries], limits)
        text = manifest.text()
        address = address_of(text)
    return Snapshot(
        root=root,
        cwd=cwd,
        manifest=manifest,
        text=text,
        address=address,
        sources=packed.sources,
        added={hashlib.sha256(each).hexdigest(): each for each in (added or {}).values()},
        in_git=work_tree is not None,
        excluded=selection.excluded,
        notes=(*selection.notes, *packed.notes, *_note_on_empty_cwd(cwd, manifest), *note),
        ignored=ignored,
        diff=diff,
        cache=cache,
    )


def _with_added(manifest: Manifest, added: Mapping[str, bytes]) -> Manifest:
    """Return *manifest* with the *added* files, contents by path."""
    entries = {each.path: each for each in manifest.entries}
    for path, content in added.items():
        entries[path] = Entry(path=path, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    return Manifest(tuple(entries[path] for path in sorted(entries)))


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
        from gpuqueue.files.commit_diff import CommitDiff  # noqa: PLC0415 - lazy import for startup time

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The selected paths with their status on disk, not sorted.

    ``excluded`` is what the default patterns left out, ``ignored`` what an ignore file left out, files and whole
    directories, and ``notes`` has one line for each thing that the user should know.
    """

    found: tuple[tuple[str, os.stat_result], ...]
    excluded: tuple[Excluded, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def select_in_directory(tree: Tree, limits: Limits) -> Selection:
    """Return the files in *tree*. Stops early once it has found far more than *limits* allows.

    Raises:
        SnapshotRefused: a directory or an ignore file cannot be read.

    """
    walk = _Walk(tree)
    folders = [""]
    while folders and len(walk.found) <= 2 * limits.files:
        folders.extend(walk.through(folders.pop()))
    excluded = (Excluded(pattern=pattern, paths=len(paths), example=paths[0]) for pattern, paths in walk.left.items())
    return Selection(found=tuple(walk.found), excluded=tuple(excluded), ignored=tuple(walk.ignored))


class _Walk:
    def __init__(self, tree: Tree) -> None:
        self.found: list[tuple[str, os.stat_result]] = []
        #: The paths that each default pattern left out, and ``.git``.
        self.left: dict[str, list[str]] = {}
        #: The paths that an ignore file left out.
        self.ignored: list[str] = []
        self._tree = tree
        self._own, self._git, self._defaults = IgnoreRules(), IgnoreRules(), IgnoreRules(DEFAULT_EXCLUDES)
        self._ignored = Ignored([self._own, self._git, self._defaults])

    def through(self, folder: str) -> list[str]:
        """Add the files in *folder*, and return the directories in it that are not left out."""
        names = self._tree.listed(folder)
        start = f"{folder}/" if folder else ""
        for name, rules in ((IGNORE_FILE, self._own), (_GIT_IGNORE_FILE, self._git)):
            if name in names:
                rules.add(folder, self._tree.ignore_lines(f"{start}{name}"))
        folders = []
        for name in names:
            path = f"{start}{name}"
            if name == _GIT:
                self.left.setdefault(_GIT, []).append(path)
                continue
            about = self._tree.stat(path)
            if about is None:  # deleted since
                continue
            is_folder = stat.S_ISDIR(about.st_mode)
            match = self._ignored.by(path, folder=is_folder)
            if match is not None:
                if match.rules is self._defaults:
                    self.left.setdefault(match.pattern, []).append(path)
                else:
                    self.ignored.append(path)
            elif is_folder:
                folders.append(path)
            else:
                self.found.append((path, about))
        return folders


def select_in_git(tree: Tree, work_tree: Path, limits: Limits) -> Selection:
    """Return the files in *tree*, which is the git *work_tree* or a directory of it, less those that it ignores.

    ``git ls-files`` gives the names, and the files are read from the disk. So the index and the object store stay as
    they are, and no filter, hook or monitor program of the repository runs, whose configuration may come from anywhere.

    Files of initialised submodules and of other repositories in the tree are included. Deleted files are left out.
    Stops early once it has found far more than *limits* allows.

    Raises:
        SnapshotRefused: a submodule is not initialised, git fails or is not installed, or an ignore file is no file.

    """
    selected = _GitSelection(tree, 2 * limits.files)
    selected.add("", work_tree)
    return Selection(found=tuple(selected.found), ignored=tuple(selected.ignored), notes=tuple(selected.notes))


class _GitSelection:
    def __init__(self, tree: Tree, most: int) -> None:
        self.found: list[tuple[str, os.stat_result]] = []
        self.ignored: list[str] = []
        self.notes: list[str] = []
        self._tree = tree
        self._most = most
        self._rules = IgnoreRules(tree.ignore_lines(IGNORE_FILE))
        self._ignored = Ignored([self._rules])

    def add(self, folder: str, work_tree: Path) -> None:
        """Add the files of the repository with the *work_tree* that are in *folder*, "" for the root."""
        names = self._listed(folder, work_tree, "--cached", "--others")
        self.ignored += self._listed(folder, work_tree, "--others", "--ignored", "--directory")
        for path in names:
            if path.endswith(f"/{IGNORE_FILE}"):
                self._rules.add(path.rpartition("/")[0], self._tree.ignore_lines(path))
        folders = []
        for path in names:
            if len(self.found) > self._most:
                return
            about = self._tree.stat(path)
            if about is None:  # deleted, but still in the index
                continue
            is_folder = stat.S_ISDIR(about.st_mode)
            if self._ignored.by(path, folder=is_folder) is not None:
                self.ignored.append(path)
                continue
            if is_folder:
                folders.append(path)
            else:
                self.found.append((path, about))
        self._add_nested(folders, folder, work_tree)

    def _add_nested(self, folders: list[str], folder: str, work_tree: Path) -> None:
        missing = []
        for path in folders:
            if self._tree.stat(f"{path}/.git") is not None:
                self.add(path, self._tree.root / path)
            else:
                missing.append(path)
        if missing:  # or a tracked file is now a directory, whose files git lists one by one
            submodules = self._submodules(folder, work_tree)
            empty = [path for path in missing if path in submodules]
            if empty:
                named = ", ".join(quoted(path) for path in empty)
                raise SnapshotRefused(
                    f"the submodule {named} is not checked out. Run: git -C {shlex.quote(str(work_tree))} submodule "
                    f"update --init --recursive. Or leave it out by a line in {IGNORE_FILE}"
                )

    def _listed(self, folder: str, work_tree: Path, *which: str) -> list[str]:
        words = ("ls-files", "-z", "--exclude-standard", *which)
        listed = {name.removesuffix("/") for name in self._git(folder, work_tree, *words).split("\0")}
        return sorted(f"{folder}/{name}" if folder else name for name in listed if name)

    def _submodules(self, folder: str, work_tree: Path) -> set[str]:
        entries = self._git(folder, work_tree, "ls-files", "-z", "--stage").split("\0")
        named = (entry.partition("\t") for entry in entries)
        return {
            f"{folder}/{name}" if folder else name for about, _, name in named if about.startswith(_SUBMODULE.decode())
        }

    def _git(self, folder: str, work_tree: Path, *words: str) -> str:
        output, warnings = git.in_work_tree(self._tree.root / folder, work_tree, words)
        self.notes.extend(note for note in warnings if note not in self.notes)
        return os.fsdecode(output)


def _ignored_files(tree: Tree, paths: Sequence[str]) -> IgnoredFiles:
    """Return the files at and below ignored *paths*, without what tools make."""
    tools = Ignored([IgnoreRules(_OF_TOOLS)])
    files, todo, seen = list[tuple[str, int]](), [*reversed(paths)], 0
    while todo and seen < MAX_IGNORED:
        path, seen = todo.pop(), seen + 1
        with suppress(SnapshotRefused):  # it cannot be read, or is too deep
            about = tree.stat(path)
            is_folder = about is not None and stat.S_ISDIR(about.st_mode)
            if about is None or tools.by(path, folder=is_folder) is not None:
                continue
            if is_folder:
                todo += [f"{path}/{name}" for name in tree.listed(path)]
            elif stat.S_ISREG(about.st_mode):
                files.append((path, about.st_size))
    return IgnoredFiles(files=tuple(sorted(files, key=lambda file: -file[1])), is_all=not todo)


@dataclass(frozen=True, slots=True)
class Packed:
    """A manifest, the path of a file for each blob, and a line for each path that was skipped."""

    manifest: Manifest
    sources: dict[str, str]
    notes: tuple[str, ...]


def pack(contents: Contents, found: Sequence[tuple[str, os.stat_result]], limits: Limits) -> Packed:
    """Return the snapshot of the paths *found* in the tree of *contents*. Limits are checked before any file is read.

    Raises:
        SnapshotTooLarge: a limit is exceeded.
        SnapshotRefused: a file cannot be read, changes while it is read, or cannot be in a snapshot.

    """
    known = [each for each in sorted(found, key=_path) if _has_kind(each[1])]
    size_limits.check([(path, about.st_size if stat.S_ISREG(about.st_mode) else 0) for path, about in known], limits)
    for path, _ in known:
        fault = path_fault(path)
        if fault is not None:
            raise SnapshotRefused(f"the path {quoted(path)} {fault}: rename it, or leave it out in {IGNORE_FILE}")
    entries = tuple(_entry(contents, path, about) for path, about in known)
    try:
        manifest = Manifest(entries)
    except InvalidManifest as error:
        raise SnapshotRefused(f"{error}. Mend it, or leave it out by a line in {IGNORE_FILE}") from None
    sizes = [(each.path, each.size_bytes or 0) for each in entries]
    size_limits.check(sizes, limits)  # files may have grown since
    if len(manifest.text()) > MAX_TEXT_BYTES:
        raise SnapshotRefused(f"the paths together are too long. Leave out files by lines in {IGNORE_FILE}")
    sources = {each.sha256: each.path for each in entries if each.sha256 is not None}
    notes = tuple(f"skipped {quoted(path)}, which is no file" for path, about in found if not _has_kind(about))
    return Packed(manifest, sources, notes)


def _path(each: tuple[str, os.stat_result]) -> str:
    return each[0]


def _has_kind(about: os.stat_result) -> bool:
    return stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)


def _entry(contents: Contents, path: str, about: os.stat_result) -> Entry:
    if stat.S_ISLNK(about.st_mode):
        target = inside(str(contents.tree.root), path, contents.tree.target(path))
        try:
            return Entry(path=path, kind=Kind.LINK, target=target)
        except InvalidManifest as error:
            raise SnapshotRefused(
                f"{error}. Leave it out by the line {ignore_line(path)} in {IGNORE_FILE}, or copy what it leads to"
            ) from None
    content, executable = contents.of(path)
    return Entry(path=path, executable=executable, sha256=content.sha256, size_bytes=content.size_bytes)
