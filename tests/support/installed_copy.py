"""A copy of this checkout that only root can change and every account can run.

The checkout may be below /tmp, in a home that other accounts cannot enter, or have files that only its owner can read.
The copy has only the code of gpuqueue. Libraries are mounted into it from the environment of the tests, in the mount
namespace of the program that needs them, and so is the interpreter, if it is in a directory that is closed to others.

As a program: ``python -I installed_copy.py HOME`` makes the copy in HOME.
"""

from __future__ import annotations

import shutil
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Where the code is in the checkout, and below site-packages in an installation.
TREES = {"gpuqueue": "gpuqueue", "workers": "workers", "migrations": "gpuqueue/migrations"}
PROGRAMS = {"gpuqueue": "gpuqueue.__main__", "gpuqueue-worker": "workers.cli"}
#: The interpreter of which the environment of the tests has a link or a copy. Others may not reach or trust that one.
PYTHON = Path(sys._base_executable).resolve()  # type: ignore[attr-defined] # as venv does
#: Covers directories and mounts others: BASE SOURCE... -- COVERED... -- TARGET... -- COMMAND. BASE is empty.
MOUNT = r"""
set -e
mount --make-rprivate /
base=$1; shift
mount -t tmpfs -o mode=755 none "$base"
number=0
while [ "$1" != -- ]; do number=$((number + 1)); mkdir "$base/$number"; mount --rbind "$1" "$base/$number"; shift; done
shift
while [ "$1" != -- ]; do mount -t tmpfs -o mode=755 none "$1"; shift; done
shift
number=0
while [ "$1" != -- ]; do number=$((number + 1)); mkdir -p "$1"; mount --rbind "$base/$number" "$1"; shift; done
shift
"""


def install(home: Path) -> None:
    """Make the copy in the directory *home*, where the libraries may be mounted already."""
    venv.create(home, symlinks=True)
    modules = site_packages(home)
    for source, name in TREES.items():
        shutil.copytree(ROOT / source, modules / name, dirs_exist_ok=True)  # with the bytecode: install would make it
    places = sorted((home / "libraries").iterdir()) if (home / "libraries").exists() else list(libraries(home))
    (modules / "zz.pth").write_text("".join(f"{place}\n" for place in places))
    for name, module in PROGRAMS.items():
        script = home / "bin" / name
        script.write_text(f"#!{home}/bin/python\nfrom {module} import main\nmain()\n")
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    own = [path for name in ("bin", "lib") for path in (home / name).rglob("*") if not path.is_symlink()]
    for path in [home, *home.iterdir(), *own]:
        if path.name != "libraries" and not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)


def site_packages(home: Path) -> Path:
    """Return the directory of the modules of the copy in *home*."""
    return home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def libraries(home: Path) -> dict[Path, str]:
    """Return where the copy in *home* expects its libraries, and where they are."""
    found = [each for each in sys.path if each.endswith("-packages") and Path(each).is_dir()]
    return {home / "libraries" / str(number): each for number, each in enumerate(found)}


def mounts(base: Path, home: Path, *more: tuple[Path, Path], covered: Iterable[str] = ()) -> list[str]:
    """Return the arguments of MOUNT before the command, for the copy in *home*.

    Args:
        base: an empty directory.
        home: where the copy is.
        more: other directories, and where they are needed.
        covered: directories to hide.

    """
    python = Path(sys.base_prefix)
    closed = closed_above(python)
    targets = {target: str(source) for source, target in [(python, python), *more]} | libraries(home)
    hidden = dict.fromkeys([*([str(closed)] if closed else []), *covered])
    return [str(base), *targets.values(), "--", *hidden, "--", *map(str, targets), "--"]


def closed_above(path: Path) -> Path | None:
    """Return the highest directory above *path* that other accounts cannot enter, None if there is none."""
    return next((each for each in [*reversed(path.parents), path] if not each.stat().st_mode & 0o001), None)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
