"""Directories and files that the installation makes, below a temporary directory and for this account."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from gpuqueue.errors import Refused
from gpuqueue.installation.files import Directory, File, Owned, State

ME = {"owner": pwd.getpwuid(os.geteuid()).pw_name, "group": grp.getgrgid(os.getegid()).gr_name}


def directory(path: Path, mode: int = 0o711) -> Directory:
    """Return a step for a directory of this account."""
    return Directory(path=path, owned=Owned(**ME, mode=mode), purpose="test")


def file(path: Path, text: str = "text\n", *, editable: bool = False, forced: bool = False) -> File:
    """Return a step for a file of this account."""
    return File(path=path, text=text, owned=Owned(**ME, mode=0o640), purpose="test", editable=editable, forced=forced)


def test_a_directory_gets_its_mode(tmp_path: Path) -> None:
    """It is missing, then there. With another mode it differs, and is changed; its content stays."""
    step = directory(tmp_path / "made")
    states = [step.state()]
    step.make()
    states.append(step.state())
    (step.path / "kept").touch()
    step.path.chmod(0o777)
    states.append(step.state())
    step.make()

    assert [State.MISSING, State.THERE, State.DIFFERS] == states
    assert (State.THERE, True) == (step.state(), (step.path / "kept").exists())
    step.remove()
    step.remove()
    assert State.MISSING is step.state()


def test_an_account_that_is_missing_owns_nothing(tmp_path: Path) -> None:
    """A directory of an account that is not there yet has to be changed."""
    owned = Owned(owner="no-such-account", group=ME["group"], mode=0o700)

    assert State.DIFFERS is Directory(path=tmp_path, owned=owned, purpose="test").state()


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    """A link in the place of a directory or file is refused. A link below a directory is removed, not its target."""
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    for step in (directory(tmp_path / "link"), file(tmp_path / "link")):
        with pytest.raises(Refused, match="is there and is no"):
            step.state()
    with pytest.raises(OSError, match=r"symbolic links|Not a directory|File exists"):
        directory(tmp_path / "link").make()

    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(target)
    directory(tmp_path / "top").remove()
    assert target.is_dir()


def test_a_file_with_another_content_is_refused(tmp_path: Path) -> None:
    """It is replaced only where that is forced. A file that the site may change counts as there."""
    path = tmp_path / "sub" / "unit"
    file(path).make()
    assert ("text\n", 0o640, State.THERE) == (path.read_text(), path.stat().st_mode & 0o777, file(path).state())
    path.write_text("changed\n")

    with pytest.raises(Refused, match="with different content: move it away, or replace it with --force"):
        file(path).state()
    assert (State.THERE, True) == (file(path, editable=True).state(), file(path, editable=True).lasting)
    assert State.DIFFERS is file(path, forced=True).state()
    file(path, forced=True).make()
    assert ["unit"] == [each.name for each in path.parent.iterdir()]
    assert State.THERE is file(path).state()
    assert not file(path, editable=True).lasting


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A failure in the middle leaves the old file and nothing else."""
    path = tmp_path / "unit"
    path.write_text("old\n")
    broken = File(path=path, text="new\n", owned=Owned(owner="no-such-account", mode=0o600), purpose="", forced=True)

    with pytest.raises(KeyError):
        broken.make()
    assert (["unit"], "old\n") == ([each.name for each in tmp_path.iterdir()], path.read_text())
