"""What must not change while a spare waits: what it has loaded, and where it would have looked. Any Python from 3.8 on.

A job that is started as ever imports what is there by then. Loaded by :mod:`workers.inside.warm_start`, in the
interpreter
that waits. Standard library only.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    #: Path, time of its last change (0 if it is not there), and where others write as well, the modules in it.
    Seen = Dict[str, Tuple[int, Optional[Set[str]]]]

#: Directories into which only packages are installed: any change tells.
INSTALLED = ("site-packages", "dist-packages")
#: What a module reads from the working directory when it is loaded.
READ_WHEN_LOADED = {"matplotlib": "matplotlibrc", "numba": ".numba_config.yaml"}
#: What Python itself makes where modules are when it imports them.
MADE_BY_IMPORT = frozenset(("__pycache__",))
#: So far the clock of a file server may be ahead, in nanoseconds. A file may be dated later than that: it stays so.
AHEAD_NS = 60 * 10**9
#: Names that an import has looked for in vain: what comes under one of them would have been found.
missed = set()  # type: Set[str]


class Missing:
    """Notes what nobody finds, at the end of ``sys.meta_path``."""

    def find_spec(self, name: str, path: "Any" = None, _target: "Any" = None) -> None:
        """Note a *name*; those within a package are looked for in that alone."""
        if path is None:
            missed.add(name)


class Import:
    """What is changed while modules are imported, as by an upgrade: what is loaded is older than what lies there."""

    def __init__(self) -> None:
        """Begin: nothing has been imported."""
        self.began_ns = time.time_ns()
        self.packages = installed()
        self.places = [*self.packages, *shared(self.packages)]
        self.entries = {path: entries_of(path) for path in self.places if not os.path.isfile(path)}

    def changed(self, after: "Seen") -> "Optional[str]":
        """Return a path that was changed since, None if none was; *after* is what is there now.

        Not told by the times of directories: an import makes ``__pycache__`` in them. Nor by when a file was given one
        more name: installers do so to the packages of others. What lies in a directory that the import itself has made
        and put on the path (as torch 2.5 does) is its own.
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
    """Return the names of what is in *directory*; none if it is none."""
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()


def seen() -> "Seen":
    """Return what is there now.

    The file of each module, but for those of the standard library and ours; the directories in which packages are
    installed; and of those where others write as well (PYTHONPATH, what is installed to be edited) the modules in them.
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
    """Return the places where modules are looked for that are none of Python's own, nor of these *directories*."""
    standard = os.path.dirname(os.__file__) + os.sep
    return [path for path in sys.path if path not in directories and not is_in(path + os.sep, standard, directories)]


def installed() -> "List[str]":
    """Return the directories in which packages are or could be installed: one that comes later is looked in as well."""
    site = sys.modules.get("site")
    paths = [path for path in sys.path if os.path.basename(path) in INSTALLED]
    if site is not None:
        paths += getattr(site, "getsitepackages", list)()
        if site.ENABLE_USER_SITE and site.USER_SITE:
            paths.append(site.USER_SITE)
    return paths


def is_in(path: str, standard: str, directories: "List[str]") -> bool:
    """Return whether *path* is of the standard library, in which packages may be installed as well."""
    return path.startswith(standard) and not path.startswith(tuple(each + os.sep for each in directories))


def changed_at(path: str) -> int:
    """Return when *path* was last changed; 0 if it is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def modules_in(directory: str) -> "Optional[Set[str]]":
    """Return the entries of *directory* that could be imported; None if it is none."""
    try:
        return {entry for entry in os.listdir(directory) if is_module(directory, entry)}
    except OSError:
        return None


def is_module(directory: str, entry: str) -> bool:
    """Return whether an entry of *directory* can be imported, before one of the same name elsewhere."""
    _, _, suffix = entry.partition(".")
    if suffix:
        return suffix in ("py", "pyc", "so") or suffix.endswith(".so")
    if entry in missed and os.path.isdir(os.path.join(directory, entry)):
        return True  # where there is nothing better, a directory alone can be imported
    return any(os.path.exists(os.path.join(directory, entry, "__init__" + end)) for end in (".py", ".pyc"))


def changed(before: "Seen") -> "Optional[str]":
    """Return a path of *before* that is not as it was, None if all are. Where others write, only modules count."""
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
    """Return what in *directory*, first on a script's path, a job that is started as ever would import, and why."""
    loaded = {name for name in list(sys.modules) if "." not in name} - {"__main__", *sys.builtin_module_names}
    for entry in os.listdir(directory):
        name = entry.partition(".")[0]
        if (name in loaded or name in missed) and is_module(directory, entry):
            how = "is loaded already" if name in loaded else "was looked for in vain already"
            return f"{entry} beside the script has the name of a module that {how}"
    return None


def read_when_loaded() -> "Optional[str]":
    """Return a file in the working directory that a module has missed which was loaded elsewhere."""
    for name, file in READ_WHEN_LOADED.items():
        if name in sys.modules and os.path.exists(file):
            return file
    return None
