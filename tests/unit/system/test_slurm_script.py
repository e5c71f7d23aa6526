"""Scripts for Slurm: what in them works only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.system.slurm_script import judged

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
