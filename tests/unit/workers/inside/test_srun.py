"""``srun`` and ``scontrol`` of a job whose script is one for ``sbatch``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.run.signed_environment import SLURM_BIN, with_srun

PATH = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "a b", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_NODELIST": "nodeA"}


def run(line: str, tmp_path: Path, *shell: str) -> subprocess.CompletedProcess[str]:
    """Run a *line* with a shell in the environment of such a job."""
    env = {**JOB, **with_srun({}, PATH)}
    return subprocess.run(
        [*(shell or ("sh",)), "-c", line], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "options",
    [
        "",
        "-n1 -u",
        "--ntasks=1 --gres=gpu:2 -c 4",
        "--ntasks 1 --cpu-bind=none --kill-on-bad-exit",
        "-N 1 -l --",
        "-luv -N1-1 -K0 -J name -p gpu -t 10",
        "--nodes=1-4 --mpi pmix --gres=none --gres=shard:1 -G2 --gpus-per-task=a100:2 --label --pty",
        "--export=ALL --output all --jobid=7 --overlap --exclusive=user --het-size 1",
    ],
)
def test_a_program_starts_once_with_its_own_words(options: str, tmp_path: Path) -> None:
    done = run(f"srun {options} printf '%s|' a 'b c' --n=4; srun sh -c 'exit 3'", tmp_path)

    assert (done.stdout, done.stderr, done.returncode) == ("a|b c|--n=4|", "", 3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-n 4", "-n 4: gpuqueue starts a program once: torchrun"),
        ("-n4", "-n 4: "),
        ("-un4", "-n 4: "),
        ("--ntasks=2", "--ntasks 2: "),
        ("--ntasks-per-node=8", "--ntasks-per-node 8: "),
        ("--nodes 2", "--nodes 2: a job runs on one host"),
        ("-N2-4", "-N 2-4: a job runs on one host"),
        ("--multi-prog conf", "--multi-prog: gpuqueue starts a program once"),
        ("--het-group=0,1", "--het-group: gpuqueue starts a program once"),
        ("--container-image=x", "--container-image: the program runs on the host"),
        ("--gpus 1", "--gpus 1: a program sees all 2 GPUs of the job: submit an array"),
        ("--gres=gpu", "--gres gpu: a program sees all 2 GPUs"),
        ("-o %q", "--output %q: its codes are"),
        ("-n1 #", "name a program"),
    ],
)
def test_what_would_do_other_work_is_refused(options: str, says: str, tmp_path: Path) -> None:
    done = run(f"srun {options} echo hello", tmp_path)

    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith(f"srun: {says}")


@pytest.mark.parametrize(
    "line",
    [
        "exec srun echo it",
        "timeout 60 srun echo it",
        "env X=1 srun echo it",
        "nohup srun echo it",
        "srun srun echo it",
        "sh -c 'srun echo it'",
        'python -c \'import subprocess; subprocess.run(["srun", "echo", "it"])\'',
    ],
)
@pytest.mark.parametrize("shell", [("sh",), ("bash",), ("bash", "-l")], ids=["sh", "bash", "bash -l"])
def test_it_is_a_program_and_not_only_a_word_of_the_shell(line: str, shell: tuple[str, ...], tmp_path: Path) -> None:
    """A login shell has set PATH anew, mostly without the directory of this test's Python."""
    done = run(line.replace("python", sys.executable), tmp_path, *shell)

    assert done.stdout == "it\n", done.stderr


def test_bash_env_of_the_submitter_stays() -> None:
    assert with_srun({"BASH_ENV": "/opt/lmod/init/bash"}, PATH) == {"PATH": f"{SLURM_BIN}:{PATH}"}
    assert with_srun({}, f"{SLURM_BIN}:/bin:{SLURM_BIN}")["PATH"] == f"{SLURM_BIN}:/bin"


def test_output_input_and_directory_are_those_of_srun(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "in").write_text("hello\n")
    both = "echo out; echo error >&2"

    run(f"srun -o %j_%t.txt sh -c '{both}'; srun --open-mode=append -o 7_0.txt echo more", tmp_path)
    run(f"srun --output=%x.txt -e 'e%%.txt' sh -c '{both}'; srun --output none echo x", tmp_path)
    fed = run("srun -i in cat; srun --input=none cat; srun -D sub sh -c 'pwd'; srun --chdir=nowhere echo x", tmp_path)
    given = run("srun --export=ALL,A=1,B='b c',HOME,1=2,x-y=3 sh -c 'echo $A$B'", tmp_path)

    assert (tmp_path / "7_0.txt").read_text() == "out\nerror\nmore\n"
    assert ((tmp_path / "a b.txt").read_text(), (tmp_path / "e%.txt").read_text()) == ("out\n", "error\n")
    assert (fed.stdout, fed.returncode != 0) == (f"hello\n{tmp_path}/sub\n", True)
    assert given.stdout == "1b c\n"


def test_scontrol_knows_the_host_and_says_what_to_write_for_the_rest(tmp_path: Path) -> None:
    assert run("scontrol show hostnames", tmp_path).stdout == "nodeA\n"
    assert run("scontrol show hostname $SLURM_JOB_NODELIST | head -n1", tmp_path).stdout == "nodeA\n"
    requeue, update = run("scontrol requeue 7", tmp_path), run("scontrol update JobId=7", tmp_path)
    assert (requeue.returncode, update.returncode) == (1, 1)
    assert 'end the script with "exit 75"' in requeue.stderr
    assert "gpuqueue has no scontrol update" in update.stderr
