"""Results come back from end to end: real jobs, the program that packs, and each connection of the command line."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from bounded import until
from site_of_one import BIN, Site

from gpuqueue.files.pack_program import PackRequest

GPUQUEUE = str(BIN / "gpuqueue")
MAKES = "mkdir out && echo 1,2 > out/a.csv && cp train.py out/copy.py && echo changed >> train.py && ln -s a.csv out/l"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory with code."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "train.py").write_text("print(1)\n")
    (made / "same.txt").write_text("same\n")
    return made


def answers(path: Path) -> bool:
    """Return whether something listens at *path*."""
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(str(path)) == 0


def fetched(directory: Path) -> dict[str, str]:
    """Return the files and links below *directory*."""
    return {
        str(each.relative_to(directory)): f"-> {each.readlink()}" if each.is_symlink() else each.read_text()
        for each in sorted(directory.rglob("*"))
        if each.is_symlink() or each.is_file()
    }


def check_kept(site: Site, job_id: str, archive: Path, paths: list[str]) -> None:
    """Check what is said of the kept files in *archive*, while the copy of the code is there."""
    shown = json.loads(site.cli("show", "--json", job_id).stdout)["kept_files"]
    assert ("kept", archive.stat().st_size, None) == (shown["state"], shown["size_bytes"], shown["reason"])
    assert f"(gpuqueue fetch --kept {job_id})" in site.cli("show", job_id).stdout
    listed = json.loads(site.cli("fetch", "--kept", "--list", "--json", job_id).stdout)
    assert paths == [each["path"] for each in listed]


@pytest.mark.full
def test_results_come_back_over_each_connection(site: Site, project: Path, tmp_path: Path) -> None:
    """The files that a job made or changed, those that match, and those that were kept of a copy that is gone."""
    site.start_recorder()
    site.start_worker()
    path = tmp_path / "api.sock"
    site.spawn_command([GPUQUEUE, "serve", "--socket", str(path)])
    until(lambda: answers(path), what="the service")
    url = {"GPUQUEUE_URL": f"unix://{path}"}
    words = ("--mem", "1M", "--cwd", str(project), "--snapshot", str(project), "--keep", "out/**")
    site.environ.update(url)
    job_id = site.cli("submit", *words, "--", "sh", "-c", MAKES).stdout.strip()
    assert 0 == site.cli("wait", job_id).returncode
    results = {
        "out/a.csv": "1,2\n",
        "out/copy.py": "print(1)\n",
        "out/l": "-> a.csv",
        "train.py": "print(1)\nchanged\n",
    }

    for number in range(2):
        if number:
            del site.environ["GPUQUEUE_URL"]
        places = [tmp_path / f"{name}{number}" for name in ("all", "some")]
        every = site.cli("fetch", job_id, "--to", str(places[0]))
        some = site.cli("fetch", job_id, "*.txt", "out/*.csv", "--to", str(places[1]), "--json")
        listed = json.loads(site.cli("fetch", "--list", "--json", job_id).stdout)

        assert (0, f"4 files, 30B, in {places[0]}\n", "") == (every.returncode, every.stdout, every.stderr)
        assert results == fetched(places[0])
        assert {"out/a.csv": "1,2\n", "same.txt": "same\n"} == fetched(places[1])
        assert ("directory", 1, 2) == tuple(json.loads(some.stdout)[key] for key in ("source", "run", "files"))
        assert sorted(results) == [each["path"] for each in listed]
        assert "all of them there before" in site.cli("fetch", job_id, "--to", str(places[0])).stdout

    run_dir = next((site.settings.runs_dir / job_id).iterdir())
    with (run_dir / "results.tar").open("wb") as kept:
        asked = PackRequest(directory=str(run_dir), patterns=("out/**",)).text()
        pack = [str(BIN / "gpuqueue-worker"), "pack"]
        subprocess.run(pack, env=site.environ, input=asked, stdout=kept, check=True)
    for number in range(2):
        if number:
            site.environ.update(url)
        check_kept(site, job_id, run_dir / "results.tar", ["out/a.csv", "out/copy.py", "out/l"])
    del site.environ["GPUQUEUE_URL"]
    shutil.rmtree(run_dir / "code")
    for number in range(2):
        if number:
            site.environ.update(url)
        place = tmp_path / f"kept{number}"
        found = json.loads(site.cli("fetch", job_id, "--to", str(place), "--json").stdout)
        assert ("kept", 3) == (found["source"], found["files"])
        assert {path: each for path, each in results.items() if path.startswith("out/")} == fetched(place)

    (run_dir / "results.tar").unlink()
    with_service = site.cli("fetch", job_id, check=False)
    del site.environ["GPUQUEUE_URL"]
    direct = site.cli("fetch", job_id, check=False)
    assert (with_service.returncode, with_service.stderr) == (direct.returncode, direct.stderr)
    assert f"the copy of the code of job {job_id} is not there any more" in direct.stderr


@pytest.mark.full
def test_patterns_begin_in_the_directory_of_the_job(site: Site, project: Path, tmp_path: Path) -> None:
    """A person in `sub` names files as seen from there. Their paths begin at the top of what travelled."""
    (project / "sub").mkdir()
    (project / "sub" / "run.sh").write_text("mkdir made && echo 1 > made/a && echo 2 > b\n")
    site.start_recorder()
    site.start_worker()
    path = tmp_path / "api.sock"
    site.spawn_command([GPUQUEUE, "serve", "--socket", str(path)])
    until(lambda: answers(path), what="the service")
    site.environ["GPUQUEUE_URL"] = f"unix://{path}"
    words = ("--mem", "1M", "--cwd", str(project / "sub"), "--snapshot", str(project), "--keep", "made/**")
    job_id = site.cli("submit", *words, "--", "sh", "run.sh").stdout.strip()
    assert 0 == site.cli("wait", job_id).returncode

    site.cli("fetch", job_id, "./made/*", "--to", str(tmp_path / "one"))
    del site.environ["GPUQUEUE_URL"]  # now without the service
    site.cli("fetch", job_id, "/sub/b", "--to", str(tmp_path / "other"))

    assert {"sub/made/a": "1\n"} == fetched(tmp_path / "one")
    assert {"sub/b": "2\n"} == fetched(tmp_path / "other")
    assert "keep       /sub/made/**" in site.cli("show", job_id).stdout
