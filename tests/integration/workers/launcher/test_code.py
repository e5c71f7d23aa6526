"""The code that came with a job: unpacked as its submitter, closed to everybody else, and deleted as its owner."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from one_shim import RUN_TOKEN, Shim
from submitters import Launcher, People

from gpuqueue.files.manifest import write_stream
from gpuqueue.files.take import Snapshot, take_snapshot
from gpuqueue.model.run import EndingKind
from workers.shim.launched import remove_code

Start = Callable[..., Shim]


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """Return a snapshot of a small project."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "go.sh").write_text(
        "#!/bin/sh\nid -un; pwd; cat ../data; echo result > made; mkdir -m 700 own\n"
    )
    (project / "src" / "go.sh").chmod(0o755)
    (project / "data").write_text("seven\n")
    return take_snapshot(project / "src", root=project)


@pytest.fixture
def start(shims: Any, people: People, open_dir: Path, launcher: Launcher, snapshot: Snapshot) -> Start:
    """Return a function that starts a run of alice's with code."""

    def started(*argv: str, damage: bool = False, **changes: Any) -> Shim:
        run_dir = open_dir / "runs" / "1" / RUN_TOKEN
        code = {"directory": f"{run_dir}/code", "address": snapshot.address, "cwd": snapshot.cwd}

        def write_bundle() -> None:
            content = b"".join(write_stream(snapshot.manifest, snapshot.blob))
            (run_dir / "bundle").write_bytes(content[:-3] if damage else content)
            (run_dir / "bundle").chmod(0o600)

        user = {"name": people.alice.pw_name, "uid": people.alice.pw_uid}
        fields = {"cwd": f"{run_dir}/code/tree/src", "launcher": launcher.socket, "user": user, "code": code, **changes}
        made: Shim = shims(*argv, runs=open_dir / "runs", entered=True, before=write_bundle, **fields)
        return made

    return started


def test_the_job_runs_in_its_copy_as_its_submitter(start: Start, people: People) -> None:
    """The files are there with their modes, belong to the submitter, and the job may write beside them."""
    run = start("./go.sh")

    assert (0, [people.alice.pw_name, f"{run.directory.code}/tree/src", "seven"]) == (
        run.ended().ending.exit_code,
        run.log().splitlines(),
    )
    made = run.directory.code / "tree" / "src" / "made"
    assert ("result\n", people.alice.pw_uid) == (made.read_text(), made.stat().st_uid)


def test_nobody_else_reads_the_code(start: Start, people: People) -> None:
    """Another user enters neither the directory nor the packed code, although the run directory can be entered."""
    run = start("./go.sh")
    run.ended()

    for words in ("cat bundle", "ls code", "cat code/tree/data"):
        refused = people.shell(people.bob, f"cd {run.directory.path}; {words}")
        assert "Permission denied" in refused.stderr
        assert (True, "") == (refused.returncode != 0, refused.stdout)


def test_a_damaged_bundle_starts_nothing_and_is_the_host_s_fault(start: Start) -> None:
    """A copy that was cut short is no failure of the job: another host may have a whole one."""
    run = start("./go.sh", damage=True)

    end = run.ended()
    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks)
    assert "cannot unpack its code as" in str(end.ending)
    assert [] == [*run.directory.code.iterdir()]


def test_the_code_is_deleted_as_its_owner(start: Start, launcher: Launcher) -> None:
    """Everything below the directory goes, closed directories of the job too; what links name stays."""
    close = "mkdir -p deep/er; echo > deep/er/file; chmod 0 deep/er; chmod 500 deep"
    run = start("/bin/sh", "-c", f"./go.sh; ln -s /etc/passwd link; ln -s .. up; {close}")
    run.ended()

    remove_code(launcher.socket, str(run.directory.path))

    assert [] == [*run.directory.code.iterdir()]
    assert Path("/etc/passwd").exists()


def test_only_run_directories_of_the_service_are_emptied(launch: Callable[..., Launcher], people: People) -> None:
    """The launcher touches no directory of a user, whatever the service account names."""
    launcher = launch()
    own = launcher.runs / "1" / "1.own"
    (own / "code").mkdir(parents=True)
    (own / "code" / "kept").touch()
    for path in (own / "code", own):
        os.chown(path, people.bob.pw_uid, -1)

    with pytest.raises(OSError, match="does not belong to the account of the queue"):
        remove_code(launcher.socket, str(own))

    assert ["kept"] == [each.name for each in (own / "code").iterdir()]
