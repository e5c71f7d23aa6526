"""The archives of a release: what they have, how they are built, and that an installed wheel works by itself."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hatchling.builders.sdist import SdistBuilder

from gpuqueue.service.web.files import NEEDED, NoPage, PageFiles

ROOT = Path(__file__).parents[2]
#: What the tests of an installed wheel, and those of a build, must do without.
FORBIDDEN = {"git", "node", "npm", "npx"}
PARTS = runpy.run_path(str(ROOT / "page_parts.py"))["PARTS"]
#: Most files of the page at its first load, itself among them, if the wheel has the bundle.
MOST_FILES = 5
NO_NPM = "npm is not installed, so there is no web page: install Node.js 20 or newer"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Return a directory with a short name for the archives, the environments and their state."""
    made = Path(mkdtemp(prefix="gpuqueue-wheel-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def programs(place: Path) -> Path:
    """Return a directory with the programs of this machine, without git, Node.js and npm."""
    made = place / "bin"
    made.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            if program.name not in FORBIDDEN and not (made / program.name).is_symlink():
                (made / program.name).symlink_to(program)
    return made


@pytest.fixture(scope="module")
def wheel(place: Path, programs: Path) -> Path:
    """Build the wheel of this tree. Its page has parts only if they are there already."""
    build(ROOT, place / "dist", programs, "wheel")
    (built,) = (place / "dist").glob("gpuqueue_server-*.whl")
    return built


@pytest.fixture
def source(tmp_path: Path, programs: Path) -> Path:
    """Build the source archive of this tree, and return the directory into which it is unpacked."""
    build(ROOT, tmp_path / "dist", programs, "sdist")
    (built,) = (tmp_path / "dist").glob("gpuqueue_server-*.tar.gz")
    with tarfile.open(built) as opened:
        opened.extractall(tmp_path)  # noqa: S202 - our own
    return tmp_path / built.name.removesuffix(".tar.gz")


def build(tree: Path, into: Path, programs: Path, target: str) -> str:
    """Build an archive of *tree* without npm, as a release would. Return the messages."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into), "-t", target]
    done = subprocess.run(
        command, cwd=tree, env={"PATH": str(programs)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout + done.stderr


def skip_without_parts() -> None:
    """Skip the test if this tree does not have the third-party parts of the page."""
    try:
        PageFiles().current()
    except NoPage:
        pytest.skip("the third-party parts of the page are missing: python3 page_parts.py")


def test_the_wheel_holds_what_an_installed_copy_needs(wheel: Path) -> None:
    """The wheel has the scripts, the migrations and both packages, and no tests."""
    files = {file.filename: file.external_attr >> 16 for file in zipfile.ZipFile(wheel).infolist()}
    names = set(files)

    assert all(files[f"workers/inside/slurm/bin/{program}"] & 0o111 for program in ("srun", "scontrol"))
    for needed in (
        "gpuqueue/queue/lua/acts/claim.lua",
        "gpuqueue/migrations/env.py",
        "gpuqueue/migrations/versions/0001_initial.py",
        "workers/shim/supervisor.py",
        "gpuqueue/web/index.html",
    ):
        assert needed in names
    assert (ROOT / ".git").exists() <= ("gpuqueue/commit" in names)
    assert not [each for each in names if "node_modules" in each or each.endswith((".d.ts", "tsconfig.json"))]
    assert {"gpuqueue", "workers"} == {name.split("/")[0] for name in names if "dist-info" not in name}


def test_wheel_and_source_archive_hold_the_parts_of_the_page(wheel: Path) -> None:
    """Both archives have the page's third-party parts with their licences, and the mark that they are complete."""
    skip_without_parts()
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    in_source = {each.relative_path for each in SdistBuilder(str(ROOT)).recurse_included_files()}
    parts = [f"gpuqueue/web/vendor/{name}" for name in (".lock", *PARTS.values())]

    assert [] == [part for part in parts if part not in in_wheel]
    assert [] == [part for part in parts if part not in in_source]
    assert {f"gpuqueue/web/{name}" for name in NEEDED} <= set(parts)
    built = [f"gpuqueue/web/built/{name}" for name in ("app.js", "app.css", "index.html", ".tree")]
    is_bundled = (ROOT / built[-1]).exists()  # python3 page_parts.py --bundle, or dev.py dist
    assert built * is_bundled == [each for each in built if each in in_wheel]
    assert built * is_bundled == [each for each in built if each in in_source]


def test_the_description_leads_nowhere_that_is_not_there(wheel: Path) -> None:
    """The package description has no relative link or picture, and no text is missing.

    It is read on pages where no file of the repository is available.
    """
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (name for name in opened.namelist() if name.endswith("/METADATA"))
        text = opened.read(metadata).decode().partition("\n\n")[2]

    assert [] == [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    for words in (
        "# gpuqueue", "    pip install 'gpuqueue-server[all]'\n", "gpuqueue submit train.py --mem 6G", "| Celery |",
        "the first ten minutes",
    ):  # fmt: skip
        assert words in text


def test_a_release_is_not_built_without_the_parts_of_the_page(tmp_path: Path, programs: Path) -> None:
    """``dev.py dist`` without the parts and without npm says what is missing, and builds nothing."""
    for name in ("dev.py", "page_parts.py", "package-lock.json", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    before = sorted(tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-B", "dev.py", "dist"],
        cwd=tmp_path,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (1, f"nothing is built: {NO_NPM}\n", "") == (done.returncode, done.stdout, done.stderr)
    assert before == sorted(tmp_path.iterdir())


@pytest.mark.full
def test_a_source_archive_builds_the_page_without_npm(source: Path, programs: Path, tmp_path: Path) -> None:
    """An unpacked source archive has the parts of the page, and so has its wheel. Without them the build says so."""
    skip_without_parts()
    vendor = "gpuqueue/web/vendor"

    assert "there is no web page" not in build(source, tmp_path / "whole", programs, "wheel")
    shutil.rmtree(source / vendor)
    assert NO_NPM in build(source, tmp_path / "bare", programs, "wheel")

    (whole,), (bare,) = ((tmp_path / name).glob("*.whl") for name in ("whole", "bare"))
    assert f"{vendor}/preact.js" in zipfile.ZipFile(whole).namelist()
    assert [] == [name for name in zipfile.ZipFile(bare).namelist() if name.startswith(vendor)]


def read(address: str) -> str:
    """Return the text at an address of this machine."""
    with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - http
        return str(answer.read().decode())


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("installer", ["pip", "uvx"])
def test_the_installed_wheel_does_the_whole_job(wheel: Path, place: Path, programs: Path, installer: str) -> None:
    """The wheel works from an empty directory, on a machine without git, npm and the checkout.

    It is installed with the extra of the service, by pip or by uvx. The test runs --help, up with the page, one job,
    history and down.
    """
    skip_without_parts()
    here = place / installer
    here.mkdir()
    environ = {**os.environ, "PATH": str(programs), "HOME": str(here), "GPUQUEUE_STATE_DIR": str(here / "state")}
    environ.pop("VIRTUAL_ENV", None)
    programs_of_venv = here / "venv" / "bin"
    if installer == "pip":
        venv.create(here / "venv", with_pip=True)
        pip = [str(programs_of_venv / "pip"), "install", "-q", "--disable-pip-version-check"]
        for what in (str(wheel), "gpuqueue-server[service]"):
            subprocess.run([*pip, what], env=environ, cwd=here, check=True, timeout=600)
        environ |= {"PATH": f"{programs_of_venv}:{programs}", "VIRTUAL_ENV": str(here / "venv")}
        command = ["gpuqueue"]
    else:
        uvx = str(Path(sys.executable).with_name("uvx"))
        command = [uvx, "--python", sys.executable, "--from", f"{wheel}[service]", "gpuqueue"]

    def gpuqueue(*words: str) -> str:
        done = subprocess.run(
            [*command, *words], env=environ, cwd=here, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    assert "Start here" in gpuqueue("--help")
    (here / "job.py").write_text("import sys; print('hello', sys.argv[1])\n")
    up = ("up", "--devices", "sim:2x8G", "--web")
    address = re.search(r"^(http://127\.0\.0\.1:[0-9]+/)#sign-in=", gpuqueue(*up), re.MULTILINE)
    try:
        assert address is not None
        files = re.search(r'"(static/[0-9a-f]+/)', read(address[1]))
        assert files is not None
        assert "./preact.js" in read(f"{address[1]}{files[1]}vendor/hooks.js")
        page = read(address[1])
        scripts = re.findall(r'<(?:script|link)[^>]*"(static/[^"]+)"', page)
        assert all(read(f"{address[1]}{each}") for each in scripts)
        assert not (ROOT / "gpuqueue/web/built/.tree").exists() or len(scripts) <= MOST_FILES - 1
        assert "hello there\n" == gpuqueue("run", "job.py", "--mem", "64M", "--", "there")
        (record,) = json.loads(gpuqueue("history", "--json"))
        assert ("succeeded", "Simulated 8G") == (record["job"]["state"], record["runs"][0]["devices"][0]["name"])
        if installer == "pip":  # the Python of uvx is in its cache
            assert str(programs_of_venv / "python") == record["job"]["spec"]["interpreter"]
    finally:
        gpuqueue("down", "--cancel-jobs")
