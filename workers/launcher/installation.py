"""Finds what others than root can change in the whole installation of gpuqueue. Standard library only.

The launcher loads few files, and checks those at each start. The workers, the recorder and the service execute all of
the installation, and may start jobs as every member of a group. ``gpuqueue install`` and ``gpuqueue doctor`` use this.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys

from workers.launcher.main import changeable, others_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def first_changeable() -> str | None:
    """Return a file or directory of this installation that others than root can change, None if there is none."""
    tops = list(dict.fromkeys(os.path.abspath(each) for each in roots() if os.path.isdir(each)))
    return next(changeable([sys.executable, *tops]), None) or next(within(tops), None)


def roots() -> Iterator[str]:
    """Yield the directories with the programs, the modules and the standard library of this Python."""
    yield os.path.dirname(sys.executable)
    yield os.path.dirname(os.__file__)
    yield os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    yield from filter(None, sys.path)


def within(tops: list[str]) -> Iterator[str]:
    """Yield what others than root can change below the directories *tops*, and where links in them lead."""
    done: set[str] = set()
    left = [os.path.realpath(top) for top in tops]
    while left:
        directory = left.pop()
        if directory in done:
            continue
        done.add(directory)
        with contextlib.suppress(PermissionError), os.scandir(directory) as entries:  # only root can read it
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISLNK(found.st_mode):
                    yield from changeable([entry.path]) if os.path.exists(entry.path) else ()
                elif others_write(found):
                    yield entry.path
                elif stat.S_ISDIR(found.st_mode):
                    left.append(entry.path)
