from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.inside import watch
from workers.inside.watch import Modules, is_standard, shadow, state


@pytest.mark.parametrize(
    ("path", "standard"),
    [
        ("json/__init__.py", True),
        ("site-packages/torch/__init__.py", False),
        ("dist-packages/", False),
    ],
)
def test_packages_may_lie_inside_the_standard_library(path: str, *, standard: bool) -> None:
    """Installed packages are checked even if their directory is inside the standard library's directory."""
    assert standard == is_standard(f"{Path(os.__file__).parent}/{path}")
    assert not is_standard("/home/ada/model.py")


def test_what_counts_in_a_directory(tmp_path: Path) -> None:
    """Only modules count in a directory with other files; in a directory for packages each entry counts."""
    for name in ("one.py", "two.cpython-311-x86_64-linux-gnu.so", "three.pyc", "four.txt", "five.py.bak", "six"):
        (tmp_path / name).touch()
    for name in ("seven", "eight", "__pycache__", "site-packages"):
        (tmp_path / name).mkdir()
    (tmp_path / "eight" / "__init__.py").touch()
    (tmp_path / "site-packages" / "a-1.0.dist-info").mkdir()

    assert {"one.py", "two.cpython-311-x86_64-linux-gnu.so", "three.pyc", "eight"} == state(str(tmp_path))
    assert {"a-1.0.dist-info"} == state(str(tmp_path / "site-packages"))
    assert (tmp_path / "one.py").stat().st_mtime_ns == state(str(tmp_path / "one.py"))
    assert state(str(tmp_path / "nowhere")) == 0


def test_a_file_beside_the_script_shadows_a_loaded_module(tmp_path: Path) -> None:
    """Only a module with the name of a loaded module that Python searches for counts."""
    for name in ("__main__.py", "sys.py", "json.txt", "not_loaded.py"):
        (tmp_path / name).touch()
    assert shadow(str(tmp_path)) is None

    (tmp_path / "json.py").touch()
    assert "json.py" == shadow(str(tmp_path))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory on ``sys.path``, beside one for packages. Its ``model.py`` is the only loaded module."""
    for place in ("site-packages", "mine"):
        (tmp_path / place).mkdir()
    (tmp_path / "site-packages" / "six.py").touch()
    model = tmp_path / "mine" / "model.py"
    model.touch()
    os.utime(model, (time.time() - 10, time.time() - 10))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), str(tmp_path / "mine")])
    monkeypatch.setattr(watch, "module_files", lambda: [str(model)])
    return tmp_path / "mine"


def touch_later(path: Path) -> None:
    """Touch a file so that its time is later than now, as far as the clock of the file system can tell."""
    os.utime(path, (time.time() + 0.001, time.time() + 0.001))


def changes_of(mine: Path) -> dict[str, Callable[[], object]]:
    """Return changes on disk that make the loaded modules outdated, by the path that they change."""
    packages = mine.parent / "site-packages"
    return {
        str(mine / "model.py"): lambda: touch_later(mine / "model.py"),
        str(mine / "json.py"): (mine / "json.py").touch,
        str(packages / "torch-2.0.dist-info"): (packages / "torch-2.0.dist-info").mkdir,
        str(packages / "six.py"): (packages / "six.py").unlink,
    }


@pytest.mark.parametrize("during_import", [False, True])
def test_a_change_is_reported(mine: Path, *, during_import: bool) -> None:
    """A change after the imports is reported, and so is one during them.

    Regression: the state after an import was taken for the loaded state, so an upgrade during the import went unseen.
    """
    for path, change in changes_of(mine).items():
        modules = Modules()
        os.utime(mine / "model.py", (time.time() - 10, time.time() - 10))
        if during_import:
            change()
            assert path == modules.outdated()
        else:
            assert modules.outdated() is None
            change()
            assert path == modules.changed()


def test_other_files_are_no_change(mine: Path) -> None:
    """Results of a job and the caches that an import makes are no change."""
    modules = Modules()
    assert modules.outdated() is None

    (mine / "results").mkdir()
    (mine / "log.txt").touch()
    (mine.parent / "site-packages" / "__pycache__").mkdir()

    assert modules.changed() is None


def test_a_file_that_was_removed_has_changed(mine: Path) -> None:
    """A removed file has changed, because an import does not find it any more."""
    modules = Modules()
    assert modules.outdated() is None

    (mine / "model.py").unlink()

    assert str(mine / "model.py") == modules.changed()


def test_what_an_import_makes_for_itself_is_no_change(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that an import creates itself are no change.

    Up to 2.5 torch writes a module into a new directory and imports it. Regression: no warm interpreter with such a
    torch was ever usable.
    """
    modules = Modules()
    made = tmp_path / "made" / "instantiated.py"
    made.parent.mkdir()
    made.touch()
    touch_later(made)
    sys.path.append(str(made.parent))
    monkeypatch.setattr(watch, "module_files", lambda: [str(mine / "model.py"), str(made)])

    assert modules.outdated() is None
