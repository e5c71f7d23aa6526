"""The compiled modules of gpuqueue and of its libraries.

An account that cannot write beside a module compiles it at each command. pip compiles what it installs, uv does not
without ``--compile-bytecode``.
"""

from __future__ import annotations

import os
import re
import tokenize
import warnings
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.installation.step import State
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    import compileall
    from importlib import metadata
else:
    compileall = later("compileall")
    metadata = later("importlib.metadata")

#: The name of gpuqueue's distribution, and the extras for servers.
_OURS, _EXTRAS = "gpuqueue-server", {"notify", "plot", "postgres", "service"}
#: The name in an entry of ``Requires-Dist``, and the extra that needs it.
_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*\bextra\s*==\s*[\"']([\w-]+)[\"'])?")


@dataclass(frozen=True, slots=True)
class Bytecode:
    """The bytecode of gpuqueue, and of the libraries that are installed in the same directory *site*.

    It is no part of what ``uninstall`` removes: it goes with the packages.
    """

    site: Path
    lasting: bool = False

    @property
    def name(self) -> str:
        """The name in the record of what was made. It is never written there."""
        return f"bytecode in {self.site}"

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""
        return f"{self.site}: bytecode of gpuqueue and its libraries, so that commands start sooner"

    def state(self) -> State:
        """Return whether each module that can be compiled has bytecode. Some libraries have files that cannot."""
        return State.DIFFERS if any(map(_can_be_compiled, self._uncompiled())) else State.THERE

    def make(self) -> None:
        """Compile what is missing, for every account to read. Where this account may not write, nothing changes."""
        umask = os.umask(0o022)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the code of libraries
                for path in self._uncompiled():
                    compileall.compile_file(path, quiet=2)
        finally:
            os.umask(umask)

    def remove(self) -> None:
        """Leave it."""

    def _uncompiled(self) -> Iterator[Path]:
        for path in self._modules():
            if not Path(cache_from_source(path)).exists():
                yield path

    def _modules(self) -> Iterator[Path]:
        for package in ("gpuqueue", "workers"):  # an editable installation has no list of them
            yield from (self.site / package).rglob("*.py")
        for library in _libraries():
            for file in library.files or ():
                path = Path(str(library.locate_file(file)))
                if path.suffix == ".py" and self.site in path.parents and path.exists():
                    yield path


def _libraries() -> Iterator[metadata.Distribution]:
    """Yield the installed distributions that gpuqueue needs, and those that they need."""
    seen, todo = {_OURS}, [_OURS]
    while todo:
        name = todo.pop()
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra, or of another platform
        yield found
        extras = _EXTRAS if name == _OURS else set()
        for entry in map(_REQUIREMENT.match, found.requires or ()):
            if entry is not None and entry[1] not in seen and entry[2] in {None, *extras}:
                seen.add(entry[1])
                todo.append(entry[1])


def _can_be_compiled(path: Path) -> bool:
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return False
    return True
