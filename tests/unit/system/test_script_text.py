"""The text of a script that a job starts: which file it is, how much of it is read, and what keeps it from running."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest
from gpuqueue.model.array import Array
from gpuqueue.model.job_request import JobRequest
from gpuqueue.system.command_line import MAX_SCRIPT_BYTES, first_line_of, first_part, script_to_judge, started_file
from gpuqueue.system.slurm_script import check

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("./run.sh a", ("./run.sh", None)),
        ("/opt/run a", ("/opt/run", None)),
        ("train a/b", None),
        ("bash run.sh a", ("run.sh", "bash")),
        ("/bin/bash -e -x run.sh", ("run.sh", "bash")),
        ("bash -euo pipefail run.sh", ("run.sh", "bash")),
        ("bash --rcfile rc run.sh", ("run.sh", "bash")),
        ("bash -- run.sh", ("run.sh", "bash")),
        ("sh +x run.sh", ("run.sh", "sh")),
        ("bash -c run.sh", None),
        ("bash -lc run.sh", None),
        ("bash", None),
        ("env A=1 nice -n 5 bash run.sh", ("run.sh", "bash")),
        ("timeout 1h ./run.sh", ("./run.sh", None)),
        ("nohup", None),
        ("python3.12 -u -W ignore run.py", ("run.py", "python3.12")),
        ("python -m run", None),
        ("python -c run", None),
    ],
)
def test_the_file_that_a_command_starts(command: str, started: tuple[str, str | None] | None) -> None:
    """The kernel reads it, or the program before it. A program on the PATH is left alone."""
    assert started == started_file(make_spec(argv=tuple(command.split())))


def test_the_script_of_a_request_is_the_file() -> None:
    """Its Python reads it, if it has one."""
    shell = make_spec(argv=("/bin/bash", "/w/run.sh"), script="run.sh", interpreter=None)
    assert ("run.sh", None) == started_file(shell)
    assert ("t.py", "python") == started_file(make_spec(argv=("/py", "t.py"), script="t.py", interpreter="/py"))


def test_only_the_first_part_of_a_text_file_is_read(tmp_path: Path) -> None:
    """A pipe without a writer would block, and a device may start something. Binary files are left alone."""
    text, binary, pipe = tmp_path / "text", tmp_path / "binary", tmp_path / "pipe"
    text.write_bytes(b"x" * (MAX_SCRIPT_BYTES + 1))
    binary.write_bytes(b"\x7fELF\0\r\n#SBATCH")
    os.mkfifo(pipe)

    assert MAX_SCRIPT_BYTES == len(first_part(str(text)))
    for path in (str(binary), str(pipe), "/dev/zero", str(tmp_path), str(tmp_path / "gone"), "x" * 5000, "a\0b"):
        assert b"" == first_part(path), path


@pytest.mark.parametrize("text", [b"#!/bin/sh\necho\n", b"", b"print('\xc3\xa9')\n"])
def test_a_usual_script_needs_no_closer_look(tmp_path: Path, text: bytes) -> None:
    """The modules for it are not imported then."""
    (tmp_path / "run.sh").write_bytes(text)

    assert None is script_to_judge(make_spec(argv=("./run.sh",), cwd=str(tmp_path)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"#!/bin/bash", ["/bin/bash"]),
        (b"#! /bin/bash -e -x ", ["/bin/bash", "-e -x"]),
        (b"#!/usr/bin/env -S python3 -u", ["/usr/bin/env", "-S python3 -u"]),
        (BOM + b"#!/bin/sh\r", ["/bin/sh"]),
        (b"#!", []),
        (b"# !/bin/sh", []),
    ],
)
def test_the_first_line_is_read_as_by_the_kernel(line: bytes, words: list[str]) -> None:
    """All behind the interpreter is one argument."""
    assert words == first_line_of(line + b"\necho\n")


class Judge:
    """Judges a script in a directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "run it.sh"

    def __call__(self, content: bytes, *argv: str, array: str | None = None, **asked: Any) -> list[str]:
        """Return the remarks about a script that *argv* starts, for members of *array*; by default it starts itself."""
        self.path.write_bytes(content)
        members = None if array is None else Array.parse(array)
        spec = make_spec(argv=argv or (f"./{self.path.name}",), cwd=str(self.path.parent), array=members)
        notes: list[str] = []
        judged = script_to_judge(spec)
        if judged is not None:
            check(*judged, spec, JobRequest("", **asked), notes.append)
        return notes


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Return a judge."""
    return Judge(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"#!/bin/sh\r\necho hello\r\n",
        b"#!/bin/sh -e\r\necho hello\n",
        b"#!/usr/bin/env sh\r\necho hello\r\n",
        BOM + b"#!/bin/sh\necho hello\n",
        BOM + b"#!/bin/sh\r\necho hello\r\n",
        b"#!/bin/sh\recho hello\r",
    ],
)
def test_a_script_that_windows_wrote_is_refused_with_its_repair(judge: Judge, content: bytes) -> None:
    """It cannot run. With the command of the message it can, and it is accepted."""
    with pytest.raises(BadRequest, match="cannot run") as caught:
        judge(content)
    repair = str(caught.value).partition("repair it with ")[2].partition("; or submit it")[0]
    with pytest.raises((OSError, subprocess.CalledProcessError)):
        subprocess.run([_executable(judge.path)], capture_output=True, check=True)
    subprocess.run(shlex.split(repair), cwd=judge.path.parent, check=True)

    assert b"hello\n" == subprocess.run([_executable(judge.path)], capture_output=True, check=True).stdout
    assert [] == judge(judge.path.read_bytes())
    assert [] == judge(content, anyway=True)


def _executable(path: Path) -> str:
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("content", [b"#!/bin/sh\r\necho hello\r\n", BOM + b"echo hello\n", b"#!/bin/sh\necho a\r\n"])
def test_a_shell_that_is_given_such_a_script_gets_a_warning(judge: Judge, content: bytes) -> None:
    """It runs, with the odd characters in its words."""
    (line,) = judge(content, "bash", judge.path.name)

    assert line.startswith("warning: run it.sh ")
    assert "which bash takes for a part of its words: repair it with sed -i " in line


def test_other_line_ends_that_do_no_harm_are_none(judge: Judge) -> None:
    """Python reads them, and a carriage return within a line may be meant."""
    assert [] == judge(BOM + b"print()\r\n", "python", judge.path.name)
    assert [] == judge(b"#!/usr/bin/env python3\nprint()\r\n")
    assert [] == judge(b"#!/bin/sh\nprintf 'a\rb'\n")


def test_utf_16_cannot_run(judge: Judge) -> None:
    """Windows tools write it, and neither the kernel nor a shell reads it."""
    with pytest.raises(
        BadRequest, match=r"which cannot run: repair it with iconv -f UTF-16 -t UTF-8 '\./run it\.sh' \|"
    ):
        judge("#!/bin/sh\necho hello\n".encode("utf-16"))


def test_lines_for_sbatch_that_nobody_read_are_named(judge: Judge) -> None:
    """They are read of the script that is typed, not of one that a command starts."""
    text = b"#!/bin/bash\n#SBATCH -J a --time=2:00:00 --no-requeue\ntrue\n"

    (remark,) = judge(text)
    assert remark == "./run it.sh: its #SBATCH line is not read here: gpuqueue submit './run it.sh' reads them"


@pytest.mark.parametrize("mark", ["#PBS", "#BSUB"])
def test_lines_for_another_scheduler_are_named(judge: Judge, mark: str) -> None:
    """Nothing said that the job ran without what they ask for."""
    (remark,) = judge(f"#!/bin/bash\n{mark} -l walltime=2:00:00\ntrue\n".encode())

    assert remark.startswith(f"./run it.sh: its {mark} lines are not read: write their options as #GPUQ lines")


def test_the_language_is_that_of_the_program_that_reads_the_script(judge: Judge) -> None:
    """It is the one that is given the file, or that of its first line."""
    head, use = b"#SBATCH -J a\n", b"srun hostname x\n"
    for content, argv in (
        (b"#!/bin/bash\n" + head + use, ()),
        (b"#!/usr/bin/env -S bash -e\n" + head + use, ()),
        (b"#!/usr/bin/perl\n" + head + use, ("bash", judge.path.name)),
    ):
        with pytest.raises(BadRequest, match="starts srun"):
            judge(content, *argv)
        assert 1 == len(judge(content, *argv, anyway=True))
    for content, argv in ((b"#!/usr/bin/perl\n" + head + use, ()), (head + use, ("python3", judge.path.name))):
        assert 1 == len(judge(content, *argv))


def test_the_index_of_slurm_in_an_array_needs_no_lines_for_sbatch(judge: Judge) -> None:
    """Somebody who typed ``sbatch --array`` has a script without lines: all members would do the same work."""
    use = b'#!/bin/bash\nsed -n "${SLURM_ARRAY_TASK_ID}p" parameters\n'

    with pytest.raises(BadRequest, match="uses SLURM_ARRAY_TASK_ID, which only Slurm sets"):
        judge(use, array="0-2")
    assert [] == judge(use) == judge(use, array="0-2", anyway=True)
    for harmless in (b"python a.py $SLURM_JOB_ID\n", b"echo ${SLURM_ARRAY_TASK_ID:-$GPUQUEUE_ARRAY_INDEX}\n"):
        assert [] == judge(b"#!/bin/bash\n" + harmless, array="0-2"), harmless
