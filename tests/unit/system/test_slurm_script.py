"""Scripts for Slurm: what in them works only there."""

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
from gpuqueue.system.slurm_script import check, judged

ROOT = Path(__file__).parents[3]
HEAD = "#!/bin/bash\n#SBATCH --array=0-3\n"


def verdict(text: str, *, is_shell: bool = True) -> tuple[str, str]:
    """Return the fault and the remarks about a script, empty without any. Its lines have been read."""
    fault, remarks = judged("job.sh", text, reader="sh" if is_shell else None, known={}, is_read=True, is_array=False)
    return fault or "", "; ".join(remarks)


def of(*lines: str) -> tuple[str, str]:
    """Return the verdict about a bash script with these lines from line 3 on."""
    return verdict(HEAD + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --seed $SLURM_ARRAY_TASK_ID",
        'python train.py --seed "${SLURM_ARRAY_TASK_ID}"',
        'python train.py --model "${names[$((SLURM_ARRAY_TASK_ID / 2))]}"',
        "python train.py --model ${names[SLURM_ARRAY_TASK_ID]}",
        'sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt',
        "(( seed = SLURM_ARRAY_TASK_ID + 1 ))",
        "let seed=SLURM_ARRAY_TASK_ID+1",
        "seed=${SLURM_ARRAY_TASK_ID:?}",
        "seed=$(expr 1 + $SLURM_ARRAY_TASK_ID)",
        'if [ "$SLURM_ARRAY_TASK_ID" -eq 0 ]; then echo first; fi',
        'if [ "$SLURM_ARRAY_TASK_ID" = 0 ]; then lr=1; fi',
        "case $SLURM_ARRAY_TASK_ID in\n  0) lr=1 ;;\nesac",
        "python train.py \\\n  --seed \\\n  $SLURM_ARRAY_TASK_ID",
        "for i in 1 2; do\n  true\ndone\necho it\\'s $SLURM_ARRAY_TASK_ID",
        "echo ${SLURM_JOB_ID:-none} $SLURM_ARRAY_TASK_ID",
        "echo $SLURM_ARRAY_TASK_ID\nSLURM_ARRAY_TASK_ID=3",
    ],
)
def test_the_index_of_an_array_that_is_missing_in_any_case_is_a_fault(line: str) -> None:
    """Each member would do the same. The line is named with what to write there."""
    fault, _ = of(line)

    assert "uses SLURM_ARRAY_TASK_ID, which only Slurm sets: write $GPUQUEUE_ARRAY_INDEX there" in fault, line


@pytest.mark.parametrize(
    "line",
    [
        "srun python train.py",
        "  srun --ntasks=2 python train.py",
        "OMP_NUM_THREADS=4 exec /usr/bin/srun python train.py",
        "timeout 1h srun python train.py",
        "cd run; srun python train.py",
        "srun \\\n  python train.py",
        "python a.py | srun tee log",
    ],
)
def test_a_start_of_srun_in_any_case_is_a_fault(line: str) -> None:
    """The program is not there, or is that of another queue."""
    fault, _ = of(line)

    assert "starts srun, which only Slurm has: take it and its options out" in fault, line


@pytest.mark.parametrize(
    "line",
    [
        # Words that are no use.
        "mysrun python train.py",
        "python train.py --launcher srun x",
        "python train.py  # was: srun python train.py $SLURM_ARRAY_TASK_ID",
        "echo 'srun python train.py $SLURM_ARRAY_TASK_ID'",
        'echo "use srun python train.py, it costs \\$SLURM_ARRAY_TASK_ID"',
        "cat > job.sbatch <<'END'\nsrun python train.py $SLURM_ARRAY_TASK_ID\nEND",
        'srun() { "$@"; }\nsrun python train.py',
        "unset SLURM_ARRAY_TASK_ID",
        "x=$((1 << 2)); echo ${#files[@]} '#' ; echo it",
        # A default.
        "seed=$(( ${SLURM_ARRAY_TASK_ID:-0} % 2 ))",
        'seed="${SLURM_ARRAY_TASK_ID:=0}"\necho $SLURM_ARRAY_TASK_ID',
        "seed=${GPUQUEUE_ARRAY_INDEX:-$SLURM_ARRAY_TASK_ID}",
        # The script asks first.
        'if [ -n "$SLURM_JOB_ID" ]; then srun python train.py $SLURM_ARRAY_TASK_ID; else python train.py; fi',
        "if [[ -v SLURM_JOB_ID ]]; then\n  srun python train.py\nfi",
        'if [ -z "${SLURM_JOB_ID:-}" ]; then\n  python train.py\n  exit\nfi\nsrun python train.py',
        'if [ "$SLURM_ARRAY_TASK_ID" ]; then\n  echo $SLURM_ARRAY_TASK_ID\nfi',
        'if [ "x$SLURM_ARRAY_TASK_ID" != "x" ]; then\n  echo $SLURM_ARRAY_TASK_ID\nfi',
        'if [ "${SLURM_ARRAY_TASK_ID:-}" != "" ]; then\n  echo $SLURM_ARRAY_TASK_ID\nfi',
        'if [ "x$SLURM_JOB_ID" != "x" ]; then\n  srun python train.py\nfi',
        'if test -n "$SLURM_JOB_ID"; then\n  srun python train.py\nfi',
        "if command -v srun > /dev/null; then\n  srun python train.py\nelse\n  python train.py\nfi",
        '[ -n "$SLURM_JOB_ID" ] &&\n  srun python train.py',
        'case "${SLURM_JOB_ID:-}" in "") python train.py ;; *) srun python train.py ;; esac',
        '[ -z "$GPUQUEUE_JOB_ID" ] && srun python train.py',
        # It gives the variable a value of its own.
        "SLURM_ARRAY_TASK_ID=3\necho $SLURM_ARRAY_TASK_ID",
        "for SLURM_ARRAY_TASK_ID in 0 1; do echo $SLURM_ARRAY_TASK_ID; done",
    ],
)
def test_what_is_guarded_or_only_mentioned_is_none(line: str) -> None:
    """Such a script runs here as its author wants."""
    assert ("", "") == of(line), line


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        ('if [ "$1" = slurm ]\nthen\nsrun python train.py\nfi', "may start srun, which only Slurm has (line 5)"),
        ("[ -e cluster ] && srun python train.py", "may start srun"),
        ("train() {\n  srun python train.py\n}", "may start srun"),
        ("case $1 in\n  a) srun python a.py ;;\nesac", "may start srun"),
        ('LAUNCH="srun --ntasks=2"\n$LAUNCH python train.py', "may start srun"),
        ("host=$(srun hostname -s)", "may start srun"),
        ('echo "write\nsrun python train.py"', "may start srun"),
        ("train() {\n  echo $SLURM_ARRAY_TASK_ID\n}", "does not set SLURM_ARRAY_TASK_ID (line 4; here $GPUQUEUE_ARR"),
        ("cat > params.txt <<END\nseed: $SLURM_ARRAY_TASK_ID\nEND", "does not set SLURM_ARRAY_TASK_ID"),
    ],
)
def test_what_may_be_left_out_is_a_remark(line: str, remark: str) -> None:
    """Regression: scripts that never start srun outside of Slurm were refused. Whether this one does is not known."""
    fault, shown = of(line)

    assert "" == fault
    assert remark in shown


def test_what_is_proposed_repairs_the_script() -> None:
    """The line that the message gives is enough, and with it the script still runs in Slurm."""
    text = f"{HEAD}names=(a b)\npython train.py ${{names[SLURM_ARRAY_TASK_ID]}}\n"
    fault, _ = verdict(text)
    line = fault.partition("above it: ")[2]

    assert line.startswith("export SLURM_ARRAY_TASK_ID=")
    assert ("", "") == verdict(text.replace("names=(a b)", line))


def test_all_lines_with_the_same_fault_are_counted() -> None:
    """The first one is shown, and the others are numbered. Both faults are in one message."""
    fault, _ = of("echo $SLURM_ARRAY_TASK_ID", "", "srun echo $SLURM_ARRAY_TASK_ID", "echo $SLURM_ARRAY_TASK_ID")

    srun, index = fault.split("; ")
    assert srun.startswith("'srun echo $SLURM_ARRAY_TASK_ID' in line 5 of job.sh starts srun")
    assert index.startswith("'echo $SLURM_ARRAY_TASK_ID' in line 3 of job.sh (also lines 5-6) uses")


def test_other_variables_of_slurm_are_a_remark() -> None:
    """They are named with their lines, and with what is like them here. Those that the job has are none."""
    text = f'{HEAD}cd "$SLURM_SUBMIT_DIR"\necho $SLURM_JOB_ID $SLURM_NTASKS\nmpirun -n $SLURM_NTASKS true\n'

    remark = "SLURM_SUBMIT_DIR (line 3; here $PWD), SLURM_JOB_ID (line 4; here $GPUQUEUE_JOB_ID)"
    assert ("", f"warning: job.sh: gpuqueue does not set {remark}, SLURM_NTASKS (lines 4-5)") == verdict(text)
    has = {"SLURM_SUBMIT_DIR", "SLURM_NTASKS", "SLURM_JOB_ID"}
    assert (None, []) == judged("job.sh", text, reader="sh", known=has, is_read=True, is_array=False)


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        ("set i = $SLURM_ARRAY_TASK_ID\n", True),
        ("if ($?SLURM_JOB_ID) srun python train.py\n", False),
        ("setenv SLURM_ARRAY_TASK_ID 3\necho $SLURM_ARRAY_TASK_ID\n", False),
    ],
)
def test_a_script_of_the_c_shell_is_read_too(body: str, *, is_refused: bool) -> None:
    """It asks with ``$?``."""
    fault, remarks = verdict(f"#!/bin/csh\n#SBATCH --array=0-3\n{body}")

    assert (is_refused, "") == (bool(fault), remarks)


@pytest.mark.parametrize(
    "body", ["(" * 50_000, "`" * 50_001, '"$(' * 20_000, "<<A " * 1000, "${a-" * 15_000, "'" * 9, "[ " * 30_000]
)
def test_what_is_no_script_is_read_in_time(body: str) -> None:
    """Brackets without an end are neither refused nor read again from each of them."""
    assert "" == verdict(HEAD + body)[0]


def test_a_script_in_another_language_is_not_judged() -> None:
    """``$SLURM_ARRAY_TASK_ID`` means something else there, and a missing variable ends a Python script by itself."""
    text = "#!/usr/bin/perl\n#SBATCH -J x\nsrun foo;\nprint $SLURM_ARRAY_TASK_ID;\n"

    assert ("", "") == verdict(text, is_shell=False)


# The text of a script that a job starts: which file it is, how much of it is read, and what keeps it from running.

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
