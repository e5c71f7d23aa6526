"""Whole jobs in the words of Slurm: options, the script, run by a real shell, and what Slurm says of an end."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpuqueue.engines.slurm_whole import (
    COLUMNS,
    account_of_sacct,
    account_of_scontrol,
    exported,
    gpu_mem_of,
    script_of,
    words_of,
)
from gpuqueue.engines.whole_job import MAX_EARLIER, WholeJob, WholeKey
from gpuqueue.text.units import GIB, MIB

NAME = "gpuqueue-w663c26a7j17n1"
#: As scontrol of Slurm 22.05 printed it, shortened.
SHOWN = (
    f"JobId=2 JobName={NAME} UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Requeue=1 Restarts=0 ExitCode=4:0 "
    "RunTime=00:00:04 StartTime=1796059472 EndTime=1796059476 NodeList=node[1-2] BatchHost=node1 NumNodes=2 "
    "Comment=hi JobName=other"
)


def job(*argv: str, **more: object) -> WholeJob:
    """Return a job on four GPUs."""
    place = str(more.pop("place", "/shared/runs/17/1.a"))
    fields = {"gpus": 4, "output": f"{place}/k.out", "exit_file": f"{place}/k.exit", "directory": "/tmp", **more}
    return WholeJob(argv=argv or ("true",), **fields)  # type: ignore[arg-type]


def test_the_key_and_what_was_asked_for_are_options() -> None:
    """GPUs are shared evenly by the nodes. The options of the site come last, so they take precedence."""
    words = words_of(
        job(nodes=2, duration_s=90.0, cpus=1.5, cpu_mem_bytes=GIB, signal=("USR1", 30.0), error="/e"),
        NAME,
        ("--qos=x",),
    )

    assert ["sbatch", "--parsable", f"--job-name={NAME}", f"--comment={NAME}"] == words[:4]
    assert {"--nodes=2", "--gres=gpu:2", "--time=2", "--cpus-per-task=2", "--mem=1024M", "--error=/e"} <= {*words}
    assert "--signal=USR1@30" in words
    assert ["--requeue", "--qos=x"] == words[-2:]


def test_what_was_not_asked_for_is_left_to_slurm() -> None:
    """No time limit, processors or memory; and no requeue if the job must not run twice."""
    words = words_of(job(requeue=False, signal=("TERM", 60.0)), NAME, ())

    assert not [word for word in words if word.startswith(("--time", "--cpus", "--mem", "--error"))]
    assert "--signal=B:TERM@60" in words  # the shell of the script passes it on
    assert "--no-requeue" == words[-1]


def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script as Slurm would, on one node, with these variables alone."""
    path = os.environ.get("PATH", os.defpath)
    return subprocess.run(
        ["/bin/sh"], input=script, env={"PATH": path, **env}, capture_output=True, text=True, check=False, timeout=30
    )


def test_the_script_has_the_environment_the_directory_and_the_exit_code(tmp_path: Path) -> None:
    """Quotes and new lines stay. The exit code is in a file, which an earlier run may have left."""
    (tmp_path / "k.exit").write_text("0\n")
    odd = 'it\'s "so"\n$HOME `x`'
    command = ("/bin/sh", "-c", 'printf "%s|" "$ODD"; pwd; umask; exit 7')
    done = run(script_of(job(*command, place=tmp_path, directory=str(tmp_path), umask=0o027, env={"ODD": odd})))

    assert (7, f"{odd}|{tmp_path}\n0027\n") == (done.returncode, done.stdout)
    assert "7\n" == (tmp_path / "k.exit").read_text()


def test_a_directory_that_is_not_there_fails_the_job(tmp_path: Path) -> None:
    """It does not run elsewhere."""
    done = run(script_of(job("/bin/echo", "ran", place=tmp_path, directory="/nowhere/at/all")))

    assert (True, "") == (done.returncode != 0, done.stdout)


def test_a_signal_reaches_the_first_process_and_its_exit_code_counts(tmp_path: Path) -> None:
    """The shell of the script waits on after the signal."""
    command = ("/bin/sh", "-c", "trap 'echo warned; exit 9' USR1; kill -USR1 $PPID; while :; do sleep 0.1; done")
    done = run(script_of(job(*command, place=tmp_path, signal=("USR1", 60.0))))

    assert (9, "warned\n") == (done.returncode, done.stdout)


def test_on_several_nodes_srun_starts_it_once_on_each() -> None:
    """Unless the command begins with a launcher of its own."""
    assert "\nsrun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=3 --kill-on-bad-exit=1 torchrun a.py\n" in (
        script_of(job("torchrun", "a.py", nodes=2, cpus=3.0))
    )
    for own in ("srun", "/opt/bin/mpirun"):
        assert f"\n{own} a.py\n" in script_of(job(own, "a.py", nodes=2))
    assert "srun" not in script_of(job("torchrun", "a.py"))


def test_torchrun_finds_the_other_nodes_unless_its_options_are_set(tmp_path: Path) -> None:
    """What the submitter has set takes precedence."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'n4\\nn5\\n'\n")
    (tmp_path / "srun").write_text('#!/bin/sh\nwhile case $1 in --*) :;; *) false;; esac; do shift; done; exec "$@"\n')
    for name in ("scontrol", "srun"):
        (tmp_path / name).chmod(0o755)
    of_slurm = {"SLURM_JOB_ID": "20001", "SLURM_JOB_NODELIST": "n[4-5]", "SLURM_JOB_NUM_NODES": "2"}
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = ("/bin/sh", "-c", "echo $PET_NNODES $PET_NPROC_PER_NODE $PET_RDZV_ENDPOINT $PET_RDZV_BACKEND")
    asked = job(*command, place=tmp_path, nodes=2)

    assert "2 2 n4:20001 c10d\n" == run(script_of(asked), **of_slurm, **path).stdout
    own = job(*command, place=tmp_path, nodes=2, env={"MASTER_PORT": "5000", "PET_NPROC_PER_NODE": "1"})
    assert "2 1 n4:5000 c10d\n" == run(script_of(own), **of_slurm, **path).stdout


def test_variables_of_another_job_of_slurm_do_not_travel() -> None:
    """Nor those that a shell cannot set."""
    env = {"A": "1", "SLURM_JOB_ID": "3", "CUDA_VISIBLE_DEVICES": "0", "BASH_FUNC_f%%": "() { :; }", "SBATCH_QOS": "x"}

    assert [("A", "1")] == [*exported(env)]


def test_slurmctld_says_how_a_job_ended() -> None:
    """The first word of a name counts, since a comment may look like one."""
    account = account_of_scontrol(SHOWN, NAME)

    assert account is not None
    assert ("failed", 4, None, "node[1-2]") == (account.word, account.exit_code, account.signal, account.nodes)
    assert (1796059472.0, 1796059476.0) == (account.started_s, account.ended_s)
    assert account_of_scontrol(SHOWN, "gpuqueue-another") is None
    assert account_of_scontrol("", NAME) is None


def test_the_accounting_says_how_a_job_ended_and_its_gpu_memory() -> None:
    """The most of its steps counts. A job that came again under the id is another one."""
    rows = [
        f"7|{NAME}|CANCELLED by 1000|0:15|1796059472|1796059476|node1|",
        "7.batch|batch|CANCELLED|0:15|1796059472|1796059476|node1|cpu=00:00:00,gres/gpumem=512M,gres/gpuutil=3",
        "7.0|train|CANCELLED|0:15|1796059472|1796059476|node1|cpu=00:00:00,gres/gpumem=1.5G",
    ]
    account = account_of_sacct("\n".join(rows), NAME)

    assert account is not None
    assert ("cancelled", 15, 3 * 512 * MIB) == (account.word, account.signal, account.gpu_mem_bytes)
    assert account_of_sacct("\n".join(rows), "gpuqueue-another") is None
    assert account_of_sacct("", NAME) is None
    assert 8 == len(COLUMNS)


@pytest.mark.parametrize(
    ("text", "expected"), [("cpu=1", None), ("gres/gpumem=0", None), ("gres/gpumem=2048K", 2 * MIB)]
)
def test_memory_that_was_not_measured_is_unknown(text: str, expected: int | None) -> None:
    """Slurm writes 0 where it could not measure."""
    assert expected == gpu_mem_of(text)


def test_a_key_leads_back_to_the_job() -> None:
    """The key of a pilot, or of another site, is none of ours."""
    key = WholeKey.of("/shared/runs", 17, 2)

    assert key == WholeKey.parse(str(key))
    assert WholeKey.parse("k3v9m2xqab") is None
    assert key.site != WholeKey.of("/other/runs", 17, 2).site
    assert [f"n{number}" for number in (4, 3, 1)] == [str(each)[-2:] for each in key.others(4)]
    assert MAX_EARLIER == len([*key.others(100)])


def test_the_script_is_for_any_shell() -> None:
    """The shell checks its grammar only."""
    text = script_of(job("a b", nodes=3, gpus=6, signal=(signal.SIGUSR1.name[3:], 5.0)))

    assert "" == subprocess.run(["/bin/sh", "-n"], input=text, capture_output=True, text=True, check=True).stderr
