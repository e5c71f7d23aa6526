"""The files of runs on this host, read by a program in the place of ``gpuqueue-worker pack``."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from archives import END, archive, file
from becoming import becoming
from factories import make_spec

from gpuqueue.client import files as files_module
from gpuqueue.client.files import Files
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.files import pack_program
from gpuqueue.files.errors import ArchiveCutShort
from gpuqueue.files.names import LEFT_OUT_NOTES
from gpuqueue.files.pack_program import PackRequest
from gpuqueue.model.array import Array
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Ending, Record, Run
from gpuqueue.model.run_files import KeptFiles, KeptState, RunFile
from gpuqueue.settings.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SNAPSHOT = f"{'0' * 64}:."


class Host:
    """A host with the directory of one run, and with a program that prints an archive."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings.load({"GPUQUEUE_STATE_DIR": str(directory / "state"), "GPUQUEUE_CONFIG": os.devnull})
        self.run_dir = self.settings.runs_dir / "81" / "1.abc"
        self.run_dir.mkdir(parents=True)
        self.program = directory / "pack"
        self.words = directory / "words"
        job = Job(id=81, spec=make_spec(snapshot=SNAPSHOT), state=JobState.SUCCEEDED, submitted_at=NOW)
        self.run = Run(
            job_id=81,
            attempt=1,
            token="1.abc",
            host=self.settings.host,
            worker="w",
            devices=(),
            claimed_at=NOW,
            ended_at=NOW,
            ending=Ending.from_status(0),
            log_path=str(self.run_dir / "log"),
        )
        self.record = Record(job=job, runs=(self.run,))

    def packs(self, content: bytes = b"", code: int = 0, errors: str = "", *, only_kept: bool = False) -> None:
        """Have the program print *content* and *errors*, and exit with *code*; with *only_kept*, 3 for a directory."""
        (self.program.parent / "content").write_bytes(content)
        self.runs(
            "import json, sys, pathlib\n"
            "asked = json.load(sys.stdin)\n"
            f"pathlib.Path({str(self.words)!r}).write_text(json.dumps([sys.argv[1:], asked]))\n"
            f"if {only_kept} and asked['source'] is None: sys.exit(3)\n"
            f"sys.stdout.buffer.write(pathlib.Path({str(self.program.parent / 'content')!r}).read_bytes())\n"
            f"sys.stdout.flush(); print({errors!r}, file=sys.stderr); sys.exit({code})\n"
        )

    def runs(self, code: str) -> None:
        """Have the program run the Python *code*."""
        becoming(self.program, sys.executable, "-c", code)

    @property
    def packed(self) -> PackRequest:
        """Return the request that the program was given."""
        words, asked = json.loads(self.words.read_text())
        assert ["pack"] == words
        return PackRequest.read(json.dumps(asked).encode())

    def with_spec(self, **changes: Any) -> None:
        """Change the request of the job."""
        job = self.record.job
        self.record = replace(self.record, job=replace(job, spec=make_spec(**{"snapshot": SNAPSHOT, **changes})))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return a host whose program is the stand-in, and whose job 81 is known."""
    made = Host(tmp_path)
    made.packs(archive([file("a"), file("b/c", b"two")]))
    known = SimpleNamespace(newest=lambda *_: made.record, show=lambda *_: made.record)
    monkeypatch.setattr(files_module, "reads", known)
    monkeypatch.setattr(pack_program, "pack_command", lambda: [str(made.program), "pack"])
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def files(host: Host) -> Files:
    """Return the group of functions."""
    return Files(SimpleNamespace(settings=host.settings))  # type: ignore[arg-type] # the part that it uses


def test_files_come_from_the_program(host: Host, files: Files, tmp_path: Path) -> None:
    """The program gets the directory and the patterns as they are, and the files come to a directory of the job."""
    found = files.fetch(81, ["results/**", "-x"])

    assert PackRequest(directory=str(host.run_dir), patterns=("/results/**", "-x")) == host.packed
    assert ("results-81", 2, 6, 0, 1, "directory") == (
        *(found.directory, found.files, found.size_bytes, found.skipped, found.run, found.source),
    )
    assert ("one", "two") == ((tmp_path / "results-81/a").read_text(), (tmp_path / "results-81/b/c").read_text())
    assert [RunFile(path="a", size_bytes=3), RunFile(path="b/c", size_bytes=3)] == list(files.list(81, run=1))


def test_kept_files_are_there_after_the_copy(host: Host, files: Files) -> None:
    """If there is no copy of the code any more, the files come from those that were kept."""
    host.packs(archive([file("a")]), only_kept=True)
    (host.run_dir / "results.tar").touch()

    assert ("kept", 1) == ((found := files.fetch(81)).source, found.files)
    assert PackRequest(directory=str(host.run_dir), source="results.tar") == host.packed


def test_kept_files_can_be_taken_before_the_copy_is_deleted(host: Host, files: Files) -> None:
    """The program reads the archive, although there is a copy of the code."""
    host.packs(archive([file("a")]))
    (host.run_dir / "results.tar").touch()

    assert "kept" == files.fetch(81, kept=True).source
    assert "results.tar" == host.packed.source
    assert 1 == len(files.list(81, kept=True))
    assert "directory" == files.fetch(81).source


def test_the_state_of_kept_files_is_known(host: Host, files: Files) -> None:
    """From the archive or the note in its place, else from the run. Without the archive, fetching says the same."""
    old = NOW + timedelta(days=100)
    (host.run_dir / "results.tar").write_bytes(bytes(2048))
    os.utime(host.run_dir / "results.tar", (old.timestamp(), old.timestamp()))
    until = old + timedelta(days=30)
    assert KeptFiles(state=KeptState.KEPT, size_bytes=2048, expires_at=until) == files.kept(81, run=1)
    (host.run_dir / "results.tar").write_bytes(END)
    assert (KeptState.FAILED, "no file matched what the job asked to keep") == (
        (empty := files.kept(81)).state,
        empty.reason,
    )
    (host.run_dir / "results.tar").unlink()

    def state(words: str) -> KeptState:
        found = files.kept(81)
        with pytest.raises(Refused, match=words):
            files.fetch(81, kept=True)
        assert found.reason is None or re.search(words, f"{found.reason}")
        return found.state

    assert KeptState.NONE is state("asked to keep no files")
    host.with_spec(keep=("*.pt",))
    assert KeptState.REMOVED is state(r"they are kept for 30d .*after the run \(setting keep_results\)")
    host.record = replace(host.record, runs=(replace(host.run, ended_at=datetime.now(timezone.utc)),))
    assert KeptState.WAITING is state(f"host {host.settings.host} has not packed or delivered them")
    host.record = replace(host.record, job=replace(host.record.job, state=JobState.RUNNING, attempt=1))
    assert KeptState.WAITING is state("they are packed after the end of the run")
    (host.run_dir / "results.failed").write_text("they have 12G\n")
    assert KeptState.FAILED is state("they have 12G$")
    (host.run_dir / "results.removed").write_text("too much (setting user_results_limit)")
    assert KeptState.REMOVED is state(r"too much \(setting user_results_limit\)$")


def test_files_that_are_gone_are_explained(host: Host, files: Files) -> None:
    """The message says after which setting, or why nothing was kept."""
    host.packs(code=3, errors="gpuqueue-worker: no copy")
    with pytest.raises(Refused, match=r"^the copy of the code of job 81 is not there any more; it is kept for 7d"):
        files.fetch(81)

    (host.run_dir / "results.failed").write_text("they have 12G, above the limit of 10G\n")
    with pytest.raises(
        Refused, match=r"^the files that job 81 asked to keep were not kept: they have 12G, above .* 10G$"
    ):
        files.fetch(81)

    (host.run_dir / "results.removed").write_text("they needed 60G (setting user_results_limit)")
    with pytest.raises(Refused, match=r"^the files that job 81 kept were removed: they needed 60G \(setting user_"):
        files.fetch(81)


def test_a_run_that_has_not_begun_has_no_files(host: Host, files: Files) -> None:
    """Before the code is unpacked, the message says so."""
    host.packs(code=3, errors="gpuqueue-worker: not unpacked")
    job = replace(host.record.job, state=JobState.RUNNING, attempt=1)
    host.record = replace(host.record, job=job, runs=(replace(host.run, ended_at=None, ending=None),))

    with pytest.raises(Refused, match="the code of job 81 is not unpacked yet: try again"):
        files.list(81)


@pytest.mark.parametrize(
    ("runs", "spec", "number", "message"),
    [
        ((), {}, None, r"job 81 \(succeeded\) has no files yet: it has not run"),
        (None, {}, 7, "job 81 has no run 7: its runs are 1"),
        (None, {"snapshot": None, "cwd": "/x"}, None, "job 81 ran in /x on .*: its code did not travel, copy files"),
        (
            None,
            {"array": Array.asked("3-5", (), None)},
            None,
            "array 81 has no files of its own: name a member, such as 81_3",
        ),
    ],
    ids=["no run", "other run", "no snapshot", "array"],
)
def test_a_job_without_files_is_refused(
    host: Host, files: Files, runs: Any, spec: dict[str, Any], number: int | None, message: str
) -> None:
    """The program is not run."""
    host.with_spec(**spec)
    if runs is not None:
        host.record = replace(host.record, runs=runs)

    with pytest.raises(Refused, match=message):
        files.fetch(81, run=number)
    assert not host.words.exists()


def test_a_run_of_another_host_is_refused_unless_its_directory_is_here(host: Host, files: Files) -> None:
    """Another host may share the directory of the runs, as containers do."""
    host.record = replace(host.record, runs=(replace(host.run, host="gpu2"),))
    (host.run_dir / "log").touch()
    assert 2 == files.fetch(81).files

    host.record = replace(host.record, runs=(replace(host.run, host="gpu2", log_path="/x/runs/81/1.abc/log"),))
    with pytest.raises(Refused, match=r"the files of job 81 are on host gpu2, in /x/runs/81/1\.abc: fetch them there"):
        files.fetch(81)


def test_a_program_that_fails_is_one_line(host: Host, files: Files, tmp_path: Path) -> None:
    """Before the first byte its reason is the message. Later, what is whole stays."""
    host.packs(code=1, errors="warning\ngpuqueue-worker: cannot read /x: Permission denied")
    with pytest.raises(GpuQueueError, match=r"^the files cannot be read: cannot read /x: Permission denied$"):
        files.fetch(81)

    whole = archive([file("a"), file("b", bytes(2000))])
    host.packs(whole[:2000], code=1, errors="gpuqueue-worker: b was deleted meanwhile")
    with pytest.raises(
        ArchiveCutShort, match=r"cut short: b was deleted meanwhile\. 1 file, 3B, arrived in results-81: run"
    ):
        files.fetch(81)
    assert {"a", ".gitignore"} == {each.name for each in (tmp_path / "results-81").iterdir()}


def test_a_program_that_fails_after_its_archive_is_not_believed(host: Host, files: Files) -> None:
    """Only exit code 0 says that all files are there."""
    host.packs(archive([file("a")]), code=1, errors="gpuqueue-worker: the disk does not answer")

    with pytest.raises(ArchiveCutShort, match="the disk does not answer"):
        files.fetch(81)


def test_a_program_that_is_not_read_to_its_end_is_ended(host: Host, files: Files) -> None:
    """An error on this side leaves no process behind, even one that would write for ever."""
    host.packs()
    info = tarfile.TarInfo("huge")
    info.size = 2**30
    pid = host.program.parent / "pid"
    host.runs(
        f"import os, sys, pathlib\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        f"sys.stdout.buffer.write({info.tobuf()!r})\nwhile True: sys.stdout.buffer.write(bytes(2**16))\n"
    )

    with pytest.raises(KeyboardInterrupt):
        files.fetch(81, seen=_interrupt)

    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def _interrupt(size_bytes: int) -> None:
    if size_bytes:
        raise KeyboardInterrupt


def test_bad_patterns_are_refused_before_anything_is_read(host: Host, files: Files) -> None:
    """A text is no list of patterns."""
    for patterns in ("*.csv", [""], ["x"] * 33):
        with pytest.raises(BadRequest, match="patterns"):
            files.list(81, patterns)
    assert not host.words.exists()


def test_a_source_is_read_in_parts(host: Host) -> None:
    """No read returns more than it was asked for, and the sum is the output of the program."""
    content = archive([file("a", bytes(5000))])
    host.packs(content)
    packed = files_module.PackedRun(PackRequest(directory=str(host.run_dir)))
    read = io.BytesIO()
    while part := packed.read(100):
        assert len(part) <= 100
        read.write(part)
    packed.close()

    assert content == read.getvalue()


def test_results_are_left_out_of_the_next_code(host: Host, files: Files, tmp_path: Path) -> None:
    """The directory that the program has named keeps its ignore file, also if the job has one in the same place.

    With the job's file there, all results would be in the code of the next submit.
    """
    ignore = tmp_path / "results-81" / ".gitignore"
    files.fetch(81)
    files.fetch(81, to="other")
    assert "*" in ignore.read_text().splitlines()
    assert not (tmp_path / "other" / ".gitignore").exists()

    host.packs(archive([file(".gitignore", b"*.pt\n"), file("d/.gitignore", b"x\n")]))
    (left,) = files.fetch(81, ["**"]).left_out
    assert ".gitignore" == left.path
    assert "*" in ignore.read_text().splitlines()
    assert "x\n" == (ignore.parent / "d" / ".gitignore").read_text()
    assert () == files.fetch(81, ["**"], to="other").left_out
    assert "*.pt\n" == (tmp_path / "other" / ".gitignore").read_text()


def test_what_the_packing_left_out_is_named(host: Host, files: Files, tmp_path: Path) -> None:
    """The last file of the archive says what is missing. It is no result, and it alone is not nothing."""
    notes, lines = file(LEFT_OUT_NOTES, b"left out 'a\\nb', which has control characters\n"), list[str]()
    host.packs(archive([file("a"), notes]))

    found = files.fetch(81, warn=lines.append)
    assert (1, ("left out 'a\\nb', which has control characters",)) == (found.files, found.notes)
    assert [*found.notes] == lines
    assert {"a", ".gitignore"} == {each.name for each in (tmp_path / "results-81").iterdir()}
    assert ["a"] == [each.path for each in files.list(81, warn=lines.append)]
    assert [*found.notes, *found.notes] == lines

    host.packs(archive([notes]))
    assert (0, found.notes) == ((alone := files.fetch(81)).files, alone.notes)
    assert [] == [*files.list(81)]
