"""Directories and files with their owners and modes."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import stat
import tempfile
from enum import Enum
from pathlib import Path
from typing import Protocol

from gpuqueue.errors import Refused
from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Owned:
    """The owner, the group and the mode of a directory or file."""

    owner: str = "root"
    group: str = "root"
    mode: int

    def fits(self, found: os.stat_result) -> bool:
        """Return whether *found* has them. An account that does not exist owns nothing."""
        try:
            ids = pwd.getpwnam(self.owner).pw_uid, grp.getgrnam(self.group).gr_gid
        except KeyError:
            return False
        return (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (*ids, self.mode)

    def give(self, fd: int) -> None:
        """Give them to an open file or directory."""
        os.fchown(fd, pwd.getpwnam(self.owner).pw_uid, grp.getgrnam(self.group).gr_gid)
        os.fchmod(fd, self.mode)

    def __str__(self) -> str:
        return f"{self.owner}:{self.group} {self.mode:04o}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Directory:
    """A directory. Install never changes its content. Removing it removes its content."""

    path: Path
    owned: Owned
    purpose: str
    lasting: bool = True

    @property
    def name(self) -> str:
        """The name in the record of what was made."""
        return str(self.path)

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""
        return f"{self.path} ({self.owned}): {self.purpose}"

    def state(self) -> State:
        """Return whether it is there with its owner and mode.

        Raises:
            Refused: something else is there, such as a link.

        """
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return State.MISSING
        if not stat.S_ISDIR(found.st_mode):
            raise Refused(f"{self.path} is there and is no directory: move it away")
        return State.THERE if self.owned.fits(found) else State.DIFFERS

    def make(self) -> None:
        """Make it, or change its owner and mode."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self.owned.give(fd)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove it with all that is in it. No link is followed."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file that install writes.

    With *forced*, a file with a different content is replaced; otherwise it is an error.
    """

    path: Path
    text: str
    owned: Owned
    purpose: str
    #: Whether the site may edit it. An edited file counts as present.
    editable: bool = False
    #: Whether ``uninstall`` without ``--purge`` keeps a file that the site has edited.
    keeps_changes: bool = True
    forced: bool = False

    @property
    def lasting(self) -> bool:
        """Whether only ``uninstall --purge`` removes it: a file that the site has changed."""
        return self.editable and self.keeps_changes and self._content() != self.text

    @property
    def name(self) -> str:
        """The name in the record of what was made."""
        return str(self.path)

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""
        return f"{self.path} ({self.owned}): {self.purpose}"

    def state(self) -> State:
        """Return whether it is there as it should be.

        Raises:
            Refused: another file is in its place.

        """
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return State.MISSING
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{self.path} is there and is no file: move it away")
        if not self.editable and self._content() != self.text:
            if not self.forced:
                raise Refused(f"{self.path} is there with different content: move it away, or replace it with --force")
            return State.DIFFERS
        return State.THERE if self.editable or self.owned.fits(found) else State.DIFFERS

    def _content(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return self.text
        except PermissionError:
            raise Refused(f"{self.path} cannot be read by this account: use sudo") from None

    def make(self) -> None:
        """Write the file atomically."""
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd, made = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(self.text)
                file.flush()
                self.owned.give(fd)
                os.fsync(fd)
            Path(made).replace(self.path)
        except BaseException:
            Path(made).unlink()
            raise

    def remove(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)


class State(Enum):
    """Whether a step has to be done."""

    #: Already there.
    THERE = "there"
    MISSING = "missing"
    #: Something else is in its place.
    DIFFERS = "differs"


class Step(Protocol):
    """One thing that ``install`` makes and ``uninstall`` removes."""

    @property
    def name(self) -> str:
        """The name in the record of what was made."""

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""

    @property
    def lasting(self) -> bool:
        """Whether only ``uninstall --purge`` removes it."""

    def state(self) -> State:
        """Return whether it is there. Changes nothing."""

    def make(self) -> None:
        """Make it, or change it to what it should be."""

    def remove(self) -> None:
        """Remove it, if it is there."""
