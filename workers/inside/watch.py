"""Detects changes on disk that make a warm interpreter's loaded modules outdated. Python 3.8 and later.

A cold start imports the modules that exist at that time. A warm interpreter must therefore notice when a loaded module
changes, or when a new one appears in a place that its imports have searched. Loaded by
:mod:`workers.inside.warm_start`, in the waiting interpreter. Standard library only.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    #: For each path: the time of its last change (0 if it does not exist), and for a shared directory its modules.
    Seen = Dict[str, Tuple[int, Optional[Set[str]]]]

#: Names of directories that hold only installed packages, so any change in them counts.
INSTALLED = ("site-packages", "dist-packages")
#: Files that a module reads from the working directory at its import.
READ_WHEN_LOADED = {"matplotlib": "matplotlibrc", "numba": ".numba_config.yaml"}
#: Entries that Python itself creates next to the modules it imports.
MADE_BY_IMPORT = frozenset(("__pycache__",))
#: How far the clock of a file server may be ahead, in nanoseconds. A later date is an error of long standing, not a
#: sign of a recent change.
AHEAD_NS = 60 * 10**9
#: Names of modules that an import looked for and did not find. A cold start would find a module that appears later.
missed = set()  # type: Set[str]


class Missing:
    """A finder at the end of ``sys.meta_path`` that records the modules that no other finder finds."""

    def find_spec(self, name: str, path: "Any" = None, _target: "Any" = None) -> None:
        """Record a top-level *name*. Submodules are looked for only in their package, so they are not recorded."""
        if path is None:
            missed.add(name)


class Import:
    """Detects changes on disk during the imports, such as an upgrade, that leave the loaded modules outdated."""

    def __init__(self) -> None:
        """Record the state before the imports."""
        self.began_ns = time.time_ns()
        self.packages = installed()
        self.places = [*self.packages, *shared(self.packages)]
        self.entries = {path: entries_of(path) for path in self.places if not os.path.isfile(path)}

    def changed(self, after: "Seen") -> "Optional[str]":
        """Return a path that was changed since the start of the imports, None if there is none.

        *after* is the state after the imports. The times of directories are not compared, because an import creates
        ``__pycache__`` in them. Inode change times are not compared, because installers add hard links to files of
        other environments. Files in a directory that the import itself created and put on ``sys.path`` (as torch 2.5
        does) do not count.
        """
        latest_ns = time.time_ns() + AHEAD_NS
        for path, before in self.entries.items():
            for entry in sorted((entries_of(path) ^ before) - MADE_BY_IMPORT):
                if path in self.packages or is_module(path, entry):
                    return os.path.join(path, entry)
        own = tuple(path + os.sep for path in shared(self.packages) if path not in self.places)
        for path, (at_ns, _) in after.items():
            if (path + os.sep).startswith(own):
                continue
            if path not in self.entries and self.began_ns < at_ns <= latest_ns:
                return path
        return None


def entries_of(directory: str) -> "Set[str]":
    """Return the names of the entries of *directory*; an empty set if it cannot be read."""
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()


def seen() -> "Seen":
    """Return the current state of the places that modules come from.

    The state covers the file of each loaded module, except those of the standard library and of this package. It covers
    the directories in which packages are installed. For shared directories (PYTHONPATH, editable installs), which also
    hold other files, it lists the modules in them.
    """
    directories = installed()
    ours = os.path.dirname(os.path.abspath(__file__)) + os.sep
    standard = os.path.dirname(os.__file__) + os.sep
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    found = {path: (changed_at(path), None) for path in directories}  # type: Seen
    for path in files:
        if isinstance(path, str) and not path.startswith(ours) and not is_in(path, standard, directories):
            found[path] = (changed_at(path), None)
    for path in shared(directories):
        if path not in found:
            found[path] = (changed_at(path), modules_in(path))
    return found


def shared(directories: "List[str]") -> "List[str]":
    """Return the entries of ``sys.path`` that belong neither to the standard library nor to *directories*."""
    standard = os.path.dirname(os.__file__) + os.sep
    return [path for path in sys.path if path not in directories and not is_in(path + os.sep, standard, directories)]


def installed() -> "List[str]":
    """Return the directories for installed packages. Directories that do not exist yet are included."""
    site = sys.modules.get("site")
    paths = [path for path in sys.path if os.path.basename(path) in INSTALLED]
    if site is not None:
        paths += getattr(site, "getsitepackages", list)()
        if site.ENABLE_USER_SITE and site.USER_SITE:
            paths.append(site.USER_SITE)
    return paths


def is_in(path: str, standard: str, directories: "List[str]") -> bool:
    """Return whether *path* belongs to the standard library and not to one of *directories* inside it."""
    return path.startswith(standard) and not path.startswith(tuple(each + os.sep for each in directories))


def changed_at(path: str) -> int:
    """Return the modification time of *path* in nanoseconds; 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def modules_in(directory: str) -> "Optional[Set[str]]":
    """Return the entries of *directory* that could be imported; None if it cannot be read."""
    try:
        return {entry for entry in os.listdir(directory) if is_module(directory, entry)}
    except OSError:
        return None


def is_module(directory: str, entry: str) -> bool:
    """Return whether an entry of *directory* would be imported instead of a later one with the same name."""
    _, _, suffix = entry.partition(".")
    if suffix:
        return suffix in ("py", "pyc", "so") or suffix.endswith(".so")
    if entry in missed and os.path.isdir(os.path.join(directory, entry)):
        return True  # a namespace package: found if there is no other match
    return any(os.path.exists(os.path.join(directory, entry, "__init__" + end)) for end in (".py", ".pyc"))


def changed(before: "Seen") -> "Optional[str]":
    """Return a path of *before* that has changed, None if there is none. In shared directories only modules count."""
    for path, (at, modules) in before.items():
        if changed_at(path) == at:
            continue
        now = None if modules is None else modules_in(path)
        if modules is None or now is None:
            return path
        if now != modules:
            return os.path.join(path, min(now ^ modules))
    return None


def shadow(directory: str) -> "Optional[str]":
    """Return in words which module in *directory* a cold start would import instead, None if there is none.

    *directory* is the first entry of the script's ``sys.path``.
    """
    loaded = {name for name in list(sys.modules) if "." not in name} - {"__main__", *sys.builtin_module_names}
    for entry in os.listdir(directory):
        name = entry.partition(".")[0]
        if (name in loaded or name in missed) and is_module(directory, entry):
            how = "is loaded already" if name in loaded else "was looked for in vain already"
            return f"{entry} beside the script has the name of a module that {how}"
    return None


def read_when_loaded() -> "Optional[str]":
    """Return a file in the working directory that a loaded module would have read at its import, None if none."""
    for name, file in READ_WHEN_LOADED.items():
        if name in sys.modules and os.path.exists(file):
            return file
    return None
