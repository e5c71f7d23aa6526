"""A git repository with one commit of a made-up author."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.measure.place import quiet


def small_repository(place: Path) -> str | None:
    """Create a repository with one file and one commit in *place*; return in words why that failed, or None."""
    if shutil.which("git") is None:
        return "no git here"
    place.mkdir()
    (place / "train.py").write_text("print('trained')\n", encoding="ascii")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    in_place = ("git", "-C", str(place))
    whose = ("-c", "user.name=ada", "-c", "user.email=ada@localhost")
    try:
        quiet([*in_place, "init", "--quiet"], environ)
        quiet([*in_place, "add", "train.py"], environ)
        quiet([*in_place, *whose, "commit", "--quiet", "--message=first"], environ)
    except (OSError, subprocess.SubprocessError) as error:
        return f"git makes no repository here: {error}"
    return None
