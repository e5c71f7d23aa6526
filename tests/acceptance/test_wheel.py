from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from gpuqueue.service.web.files import NEEDED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Return a directory with a short name for the wheel, its environment and its state."""
    made = Path(mkdtemp(prefix="gpuqueue-wheel-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    """Build the wheel as a release would."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "-w", str(place), str(ROOT)], check=True, timeout=300)
    (built,) = place.glob("gpuqueue_server-*.whl")
    return built


@pytest.mark.full
def test_the_wheel_holds_what_an_installed_copy_needs(wheel: Path) -> None:
    """The wheel has the scripts, the migrations and both packages, and no tests."""
    names = set(zipfile.ZipFile(wheel).namelist())

    for needed in (
        "gpuqueue/queue/lua/acts/claim.lua",
        "gpuqueue/migrations/env.py",
        "gpuqueue/migrations/versions/0001_initial.py",
        "workers/shim/supervisor.py",
        "gpuqueue/web/index.html",
        *[f"gpuqueue/web/{each}" for each in NEEDED if (ROOT / "gpuqueue" / "web" / each).exists()],
    ):
        assert needed in names
    assert not [each for each in names if "node_modules" in each or each.endswith((".d.ts", "tsconfig.json"))]
    assert {"gpuqueue", "workers"} == {name.split("/")[0] for name in names if "dist-info" not in name}


@pytest.mark.full
def test_the_description_leads_nowhere_that_is_not_there(wheel: Path) -> None:
    """The package description has no relative link or picture, and no text is missing.

    It is read on pages where no file of the repository is available.
    """
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (name for name in opened.namelist() if name.endswith("/METADATA"))
        text = opened.read(metadata).decode().partition("\n\n")[2]

    assert [] == [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    for words in ("# gpuqueue", "gpuqueue submit train.py --mem 6G", "| Celery |", "the first ten minutes"):
        assert words in text


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_installed_wheel_does_the_whole_job(wheel: Path, place: Path) -> None:
    """The installed wheel works in a clean environment outside the checkout.

    The test runs --help, up, one job, history and down.
    """
    home = place / "venv"
    venv.create(home, with_pip=True)
    pip = [str(home / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=600)
    environ = {
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(place),
        "VIRTUAL_ENV": str(home),
        "GPUQUEUE_STATE_DIR": str(place / "state"),
    }

    def gpuqueue(*words: str) -> str:
        done = subprocess.run(
            [str(home / "bin" / "gpuqueue"), *words],
            env=environ,
            cwd=place,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    assert "Start here" in gpuqueue("--help")
    # The job holds more memory than its shim. Otherwise the kernel's own maximum would be that of the shim.
    (place / "job.py").write_text("import sys; print('hello', sys.argv[1]); held = b'x' * 2**25\n")
    gpuqueue("up", "--devices", "cpu")
    try:
        assert "hello there\n" == gpuqueue("run", "job.py", "--mem", "64M", "--", "there")
        (record,) = json.loads(gpuqueue("history", "--json"))
        assert ("succeeded", "host_rss") == (record["state"], record["runs"][0]["devices"][0]["peak"]["source"])
        assert str(home / "bin" / "python") == record["interpreter"]
    finally:
        gpuqueue("down", "--cancel-jobs")
