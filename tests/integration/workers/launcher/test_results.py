"""The results of a job that ran as its submitter: packed as the submitter, by the worker's command and the launcher."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from one_shim import RUN_TOKEN, Shim
from results_copy import contents
from submitters import Launcher, People

from gpuqueue.files.manifest import write_stream
from gpuqueue.files.pack_program import PackRequest
from gpuqueue.files.take import take_snapshot
from workers.results.command import pack_results
from workers.results.pack import NoCopy, PackFailed

Run = Callable[[str], Shim]
Pack = Callable[..., dict[str, Any]]


@pytest.fixture
def ran(shims: Any, people: People, open_dir: Path, launcher: Launcher, tmp_path: Path) -> Run:
    """Return a function that runs a script of alice's in a copy of a small project, until it ends."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("data", "edited"):
        (project / name).write_text("seven\n")
    snapshot = take_snapshot(project)

    def run(script: str) -> Shim:
        run_dir = open_dir / "runs" / "1" / RUN_TOKEN
        code = {"directory": f"{run_dir}/code", "address": snapshot.address, "cwd": "."}

        def write_bundle() -> None:
            (run_dir / "bundle").write_bytes(b"".join(write_stream(snapshot.manifest, snapshot.blob)))
            (run_dir / "bundle").chmod(0o600)

        fields = {
            "cwd": f"{run_dir}/code/tree",
            "launcher": launcher.socket,
            "user": {"name": people.alice.pw_name, "uid": people.alice.pw_uid},
            "code": code,
        }
        words = ("/bin/sh", "-c", script)
        made: Shim = shims(*words, runs=open_dir / "runs", entered=True, before=write_bundle, **fields)
        assert 0 == made.ended().ending.exit_code, made.log()
        return made

    return run


@pytest.fixture
def packed(launcher: Launcher, tmp_path: Path) -> Pack:
    """Return a function that packs the results of a run by the launcher, and returns what the archive has."""

    def pack(run: Shim, *patterns: str, notes: list[str] | None = None) -> dict[str, Any]:
        output = os.open(tmp_path / "archive.tar", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            asked = PackRequest(directory=str(run.directory.path), patterns=patterns)
            lines = pack_results(asked, launcher.socket, output)
        finally:
            os.close(output)
        if notes is not None:
            notes.extend(lines)
        return contents(tmp_path / "archive.tar")

    return pack


def test_results_are_what_the_submitter_s_job_made(ran: Run, packed: Pack) -> None:
    """Files that only the submitter can read are packed, and files that came with the job are not."""
    run = ran(
        "umask 077; mkdir out; echo made > out/new; echo eight > edited; echo '#!' > run; chmod +x run; ln -s run l"
    )

    assert {
        "edited": (b"eight\n", "644"),
        "l": "-> run",
        "out/new": (b"made\n", "644"),
        "run": (b"#!\n", "755"),
    } == packed(run)
    assert ["data", "out/new"] == [*packed(run, "data", "out/")]


def test_a_hostile_job_gets_nothing_packed_that_it_could_not_read(
    ran: Run, packed: Pack, people: People, open_dir: Path
) -> None:
    """Links out, pipes, files of others, also by a second name, and closed directories are left out."""
    run = ran(
        "ln -s /etc/shadow shadow; ln -s / root; ln -s root/etc/shadow via; mkfifo pipe; echo fine > fine; "
        "mkdir closed; echo x > closed/x; chmod 0 closed"
    )
    secret = open_dir / "secret"
    secret.write_text("bob's")
    secret.chmod(0o600)
    os.chown(secret, people.bob.pw_uid, people.bob.pw_gid)
    os.link(secret, run.directory.code / "tree" / "second-name")  # a user may only do this where the host permits it
    notes: list[str] = []

    assert {"fine": (b"fine\n", "644")} == packed(run, notes=notes)

    assert 2 == len(notes)
    assert any(each.endswith("which cannot be read (Permission denied), and 1 more like it") for each in notes)
    assert any(each.endswith("or in a circle, and 2 more like it") for each in notes)


def test_a_tree_that_is_swapped_for_a_link_is_no_copy(ran: Run, packed: Pack, people: People) -> None:
    """The directory above belongs to the submitter, who can put anything in the place of the tree."""
    run = ran(f"cd ..; mv tree away; ln -s {people.alice.pw_dir} tree")

    with pytest.raises(NoCopy, match="there is no copy of the code of this run"):
        packed(run, "*")


def test_deep_directories_are_packed_to_their_limit(ran: Run, packed: Pack) -> None:
    """A tree without an end costs a line."""
    run = ran("for i in $(seq 300); do mkdir d; cd d; done; : > end; cd $OLDPWD; : > almost")
    notes: list[str] = []

    assert {} == packed(run, notes=notes)
    assert notes[0].endswith("which has more than 100 parts")


def test_a_launcher_that_is_gone_is_one_error(ran: Run, packed: Pack, launcher: Launcher) -> None:
    """Nothing is packed by another account instead."""
    run = ran(": > file")
    launcher.kill()

    with pytest.raises(PackFailed, match=r"the launcher .* cannot be used: Connection refused"):
        packed(run)
    launcher.start()
