"""Detects changes on disk that make the loaded modules of a warm interpreter outdated. Python 3.8 and later.

A cold start imports the modules that exist at that time. A warm interpreter must therefore notice when a loaded module
changes, or when a module appears in a place where Python searches. Loaded by :mod:`workers.inside.warm_start`, in the
waiting interpreter. Standard library only.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

#: Names of directories that hold only installed packages, so each of their entries counts.
INSTALLED = ("site-packages", "dist-packages")


class Modules:
    """The state of the places that modules come from, and of the files of the loaded modules."""

    def __init__(self) -> None:
        """Record the places. Call this before the imports."""
        self.began_ns = time.time_ns()
        self.places = {path: state(path) for path in places()}
        self.files: Dict[str, int] = {}

    def outdated(self) -> "Optional[str]":
        """Record the loaded modules after the imports; return a path that changed meanwhile, None if there is none.

        Files in a directory that an import itself put on ``sys.path`` do not count: torch 2.5 writes a module into one.
        """
        path = self.changed()
        added = [each for each in places() if each not in self.places]
        own = tuple(each + os.sep for each in added)
        self.places.update((each, state(each)) for each in added)
        self.files = {file: changed_at(file) for file in module_files()}
        changed = (file for file, at_ns in self.files.items() if at_ns > self.began_ns and not file.startswith(own))
        return path or next(changed, None)

    def changed(self) -> "Optional[str]":
        """Return a path that has changed since it was recorded, None if there is none."""
        for path, before in self.places.items():
            after = state(path)
            if after != before:
                both = isinstance(after, frozenset) and isinstance(before, frozenset)
                return os.path.join(path, min(before ^ after)) if both else path
        return next((file for file, at_ns in self.files.items() if changed_at(file) != at_ns), None)


def places() -> "List[str]":
    """Return the places for modules outside the standard library, including package directories that do not exist."""
    site = sys.modules.get("site")
    paths = list(sys.path)
    if site is not None:
        paths += getattr(site, "getsitepackages", list)()
        if site.ENABLE_USER_SITE and site.USER_SITE:
            paths.append(site.USER_SITE)
    return [path for path in paths if not is_standard(path + os.sep)]


def module_files() -> "List[str]":
    """Return the files of the loaded modules, without those of the standard library and of this package."""
    ours = os.path.dirname(os.path.abspath(__file__)) + os.sep
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [file for file in files if isinstance(file, str) and not file.startswith(ours) and not is_standard(file)]


def is_standard(path: str) -> bool:
    """Return whether *path* belongs to the standard library. Packages may be installed inside its directory."""
    inside = path.startswith(os.path.dirname(os.__file__) + os.sep)
    return inside and not any(os.sep + name + os.sep in path for name in INSTALLED)


def state(path: str) -> "Any":
    """Return the state of a place: the entries of a directory, or the time of an archive's last change, 0 for neither.

    Of a directory that also holds other files, only the modules count.
    """
    try:
        entries = os.listdir(path)
    except OSError:
        return changed_at(path)
    all_count = os.path.basename(path) in INSTALLED
    return frozenset(entry for entry in entries if entry != "__pycache__" and (all_count or is_module(path, entry)))


def changed_at(path: str) -> int:
    """Return the modification time of *path* in nanoseconds; 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def is_module(directory: str, entry: str) -> bool:
    """Return whether Python can import an entry of *directory*."""
    return entry.endswith((".py", ".pyc", ".so")) or os.path.exists(os.path.join(directory, entry, "__init__.py"))


def shadow(directory: str) -> "Optional[str]":
    """Return a file of *directory*, the first entry of the script's ``sys.path``, with the name of a loaded module."""
    loaded = sys.modules.keys() - {"__main__", *sys.builtin_module_names}
    entries = sorted(entry for entry in os.listdir(directory) if entry.partition(".")[0] in loaded)
    return next((entry for entry in entries if is_module(directory, entry)), None)
