from __future__ import annotations

from pathlib import Path

import pytest

from workers.inside.watch import changed, changed_at, is_in, modules_in

STANDARD = "/opt/conda/lib/python3.11/"
INSTALLED = ["/opt/conda/lib/python3.11/site-packages"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/opt/conda/lib/python3.11/json/__init__.py", True),
        ("/opt/conda/lib/python3.11/site-packages/torch/__init__.py", False),
        ("/opt/conda/lib/model.py", False),
        ("/home/ada/model.py", False),
    ],
)
def test_packages_may_lie_inside_the_standard_library(path: str, *, told: bool) -> None:
    """Those are looked at."""
    assert told == is_in(path, STANDARD, INSTALLED)


def test_what_can_be_imported_from_a_directory(tmp_path: Path) -> None:
    """Modules, compiled ones, packages; a directory without an __init__ only where there is none of its name else."""
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
    """No directory: what is in it nobody lists."""
    archive = tmp_path / "lib.zip"
    archive.touch()
    seen = {str(archive): (changed_at(str(archive)), modules_in(str(archive)))}

    assert changed(seen) is None
    assert str(archive) == changed({str(archive): (1, None)})


def test_a_file_that_went_has_changed(tmp_path: Path) -> None:
    """Whoever imports it now does not find it."""
    assert str(tmp_path / "gone.py") == changed({str(tmp_path / "gone.py"): (1, None)})
