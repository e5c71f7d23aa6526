from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.inside.watch import Import, changed, changed_at, is_in, modules_in, seen

STANDARD = "/opt/conda/lib/python3.11/"
INSTALLED = ["/opt/conda/lib/python3.11/site-packages"]


@pytest.mark.parametrize(
    ("path", "reported"),
    [
        ("/opt/conda/lib/python3.11/json/__init__.py", True),
        ("/opt/conda/lib/python3.11/site-packages/torch/__init__.py", False),
        ("/opt/conda/lib/model.py", False),
        ("/home/ada/model.py", False),
    ],
)
def test_packages_may_lie_inside_the_standard_library(path: str, *, reported: bool) -> None:
    """Installed packages are checked even if their directory is inside the standard library's directory."""
    assert reported == is_in(path, STANDARD, INSTALLED)


def test_what_can_be_imported_from_a_directory(tmp_path: Path) -> None:
    """Modules, compiled modules and packages can be imported.

    A directory without an __init__ counts only if an import of its name has found nothing else.
    """
    for name in ("one.py", "two.cpython-311-x86_64-linux-gnu.so", "three.pyc", "four.txt", "five.py.bak", "six"):
        (tmp_path / name).touch()
    for name in ("seven", "eight"):
        (tmp_path / name).mkdir()
    (tmp_path / "eight" / "__init__.py").touch()

    expected = {"one.py", "two.cpython-311-x86_64-linux-gnu.so", "three.pyc", "eight"}
    assert expected == modules_in(str(tmp_path))
    assert modules_in(str(tmp_path / "one.py")) is None
    assert modules_in(str(tmp_path / "nowhere")) is None


def test_an_archive_on_the_path_counts_by_its_time(tmp_path: Path) -> None:
    """An archive on the path is compared by its modification time, because its content is not listed."""
    archive = tmp_path / "lib.zip"
    archive.touch()
    seen = {str(archive): (changed_at(str(archive)), modules_in(str(archive)))}

    assert changed(seen) is None
    assert str(archive) == changed({str(archive): (1, None)})


def test_a_file_that_went_has_changed(tmp_path: Path) -> None:
    """A removed file has changed, because an import does not find it any more."""
    assert str(tmp_path / "gone.py") == changed({str(tmp_path / "gone.py"): (1, None)})


def test_what_is_changed_during_an_import_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change during an import is reported.

    Regression: the state after an import was taken for the loaded state, so an upgrade during the import went unseen.

    Files are compared by time. Packages are compared by the names in their directories, because some installers keep
    the original times of a package's files.
    """
    packages, mine = tmp_path / "site-packages", tmp_path / "mine"
    for place in (packages, mine):
        place.mkdir()
    for old in (packages / "six.py", mine / "model.py"):
        old.touch()
    monkeypatch.setattr(sys, "path", [str(packages), str(mine)])

    def changes(change: Callable[[], object]) -> str | None:
        importing = Import()
        change()
        return importing.changed({**seen(), str(mine / "model.py"): (changed_at(str(mine / "model.py")), None)})

    def dated(path: Path, in_s: float) -> None:
        os.utime(path, (time.time() + in_s, time.time() + in_s))

    for harmless in (packages / "__pycache__", mine / "results"):
        assert changes(harmless.mkdir) is None, harmless
    assert changes((mine / "log.txt").touch) is None
    assert changes(lambda: dated(mine / "model.py", 86400)) is None  # written with a wrong clock, a day ahead
    assert str(mine / "model.py") == changes(lambda: dated(mine / "model.py", 0.001))
    dated(mine / "model.py", -10)
    assert changes(lambda: None) is None
    assert str(packages / "torch-2.0.dist-info") == changes((packages / "torch-2.0.dist-info").mkdir)
    assert str(packages / "six.py") == changes((packages / "six.py").unlink)
    assert str(mine / "json.py") == changes((mine / "json.py").touch)


def test_what_an_import_makes_for_itself_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that an import creates itself are no change.

    Up to 2.5 torch writes a module into a new directory and imports it. Regression: no warm interpreter with such a
    torch was ever usable.
    """
    monkeypatch.setattr(sys, "path", [*sys.path])
    importing = Import()
    module = tmp_path / "made" / "instantiated.py"
    module.parent.mkdir()
    module.touch()
    os.utime(module, (time.time() + 0.001, time.time() + 0.001))
    sys.path.append(str(module.parent))

    assert importing.changed({**seen(), str(module): (changed_at(str(module)), None)}) is None
