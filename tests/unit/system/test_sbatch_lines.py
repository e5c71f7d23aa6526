"""Tests of the ``#SBATCH`` lines as options of ``submit``: the forms that scripts of clusters have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuqueue.cli.commands.submit import submit
from gpuqueue.system.sbatch_lines import OPTIONS, counterpart_of, read
from gpuqueue.system.slurm_script import VARIABLES

ROOT = Path(__file__).parents[3]


def words(*lines: str, script: str = "python train.py") -> list[str]:
    """Return the options that these lines give."""
    found = read("\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), script]))
    assert found is not None
    assert (found.faults, found.unused) == ([], {})
    return [word for _, part in found.words for word in part]


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("--job-name=bert", ["--name=bert"]),
        ("-J bert   # the model", ["--name=bert"]),
        ("--job-name='my run' -t 10", ["--name=my run", "--time=600s"]),
        ("-t 4-00:00:00", ["--time=345600s"]),
        ("--time=0-0:30:00", ["--time=1800s"]),
        ("--time 1-12:00", ["--time=129600s"]),
        ("--time 1-12", ["--time=129600s"]),
        ("--time=2:30:00", ["--time=9000s"]),
        ("--time=90:30", ["--time=5430s"]),
        ("--time=UNLIMITED", []),
        ("--mem=64g", ["--cpu-mem=64G"]),
        ("--mem=64Gb", ["--cpu-mem=64G"]),
        ("--mem 2048", ["--cpu-mem=2048M"]),
        ("--mem=0", []),
        ("-c8", ["--cpus=8"]),
        ("--gres=gpu:1", []),
        ("--gres=gpu:a100:3", ["--gpus", "3", "--device-type", "a100"]),
        ("--gpus-per-node=h100:4", ["--gpus", "4", "--device-type", "h100"]),
        ("-G 2", ["--gpus", "2"]),
        ("--array=8,18,28", ["--array=8,18,28"]),
        ("-a 1-9%9", ["--array=1-9%9"]),
        ("--signal=B:USR1@120 --time=1:00:00", ["--signal=USR1@120", "--time=3600s"]),
        ("--output=logs/%x-%j.out", ["--output=logs/%x-%j.out"]),
        ("--nodes=1 --ntasks=1 --ntasks-per-node=1 --requeue --export=ALL", []),
        ("--export=ALL,LR=1e-3", ["--env=LR=1e-3"]),
        ("--begin=now+1hour", ["--begin=3600s"]),
        ("--hold --exclusive --no-requeue", ["--hold", "--exclusive", "--no-requeue"]),
    ],
)
def test_an_option_means_what_it_means_to_sbatch(line: str, options: list[str]) -> None:
    assert words(line) == options


def test_memory_for_each_processor_and_gpu_is_multiplied() -> None:
    assert words("--mem-per-cpu=4G", "--cpus-per-task=8") == ["--cpu-mem=32G", "--cpus=8"]
    assert words("--mem-per-gpu=40G --gpus=2") == ["--cpu-mem=80G", "--gpus", "2"]
    assert words("--mem-per-gpu=40G --gres=gpu:a100:2 ") == ["--cpu-mem=80G", "--gpus", "2", "--device-type", "a100"]
    assert words("--cpus-per-gpu=6 --gpus=2") == ["--cpus=12", "--gpus", "2"]


def test_a_job_of_several_tasks_has_the_processors_memory_and_gpus_of_all() -> None:
    """``-n 8`` is how many ask for eight processors."""
    found = read("#!/bin/bash\n#SBATCH -n 4 -c 2 --mem-per-cpu=1G --gpus-per-task=1\ntorchrun train.py\n")

    assert found is not None
    assert [word for _, part in found.words for word in part] == ["--cpus=8", "--cpu-mem=8G", "--gpus", "4"]
    assert (found.faults, list(found.unused)) == ([], ["--ntasks"])


def test_steps_of_one_task_each_do_not_refuse_a_script() -> None:
    found = read("#!/bin/bash\n#SBATCH --ntasks=3\nsrun \\\n  --exclusive -n1 a &\nsrun --ntasks=1 -c 2 b\nwait\n")

    assert found is not None
    assert found.faults == []


def test_typed_values_replace_those_of_the_lines() -> None:
    text = "#!/bin/bash\n#SBATCH -d afterok:1 -a 0-9 -c 4 --signal=USR1@60\ntrue\n"

    found = read(text, {"dependency": "7", "array": "2-5:2", "time": "1h", "cpus-per-task": "8"})

    assert found is not None
    assert (found.faults, list(found.unused)) == ([], ["--dependency"])
    assert ["--signal=USR1@60"] in [words for _, words in found.words]
    assert found.variables == {
        "SLURM_CPUS_PER_TASK": "8",
        **dict.fromkeys(("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), "8"),
        "SLURM_ARRAY_TASK_MIN": "2",
        "SLURM_ARRAY_TASK_MAX": "4",
    }


def test_only_lines_of_sbatch_above_the_first_command_count() -> None:
    found = read("#!/bin/bash\n##SBATCH --mem=1G\n# SBATCH --mem=1G\n#SBATCHES\n\n#SBATCH -t 1\nls\n#SBATCH -t 2\n")

    assert found is not None
    assert list(found.words) == [(6, ["--time=60s"])]
    assert read("#!/bin/bash\necho '#SBATCH'\n") is None


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--partition=gpu", "--partition"),
        ("-A lab", "--account"),
        ("--qos=high", "--qos"),
        ("--mail-user=ann@example.org", "--mail-user"),
        ("--gres=shard:1", "--gres"),
        ("--output=/dev/null", "--output"),
        ("--output=log-%t.txt", "--output"),
        ("--output=log.txt --array=0-3", "--output"),
        ("--error=log-%a.txt", "--error"),
        ("--signal=USR1@120", "--signal"),
        ("--ntasks=8", "--ntasks"),
        ("--hint=nomultithread", "--hint"),
        ("--time=soon", "--time"),
    ],
)
def test_what_has_no_meaning_here_is_named(line: str, option: str) -> None:
    found = read(f"#!/bin/bash\n#SBATCH {line}\npython train.py\n")

    assert found is not None
    assert list(found.unused) == [option]
    assert all(found.unused.values())


@pytest.mark.parametrize(
    ("line", "script", "words"),
    [
        ("--nodes=2", "python train.py", "line 2 asks for --nodes='2': a job runs on one host"),
        ("-n 4", "srun python train.py", "line 2 asks for --ntasks='4': gpuqueue starts the command once"),
        ("--ntasks-per-node=4", "mpirun ./solve", "torchrun starts a process for each GPU"),
        ("-n 2", "srun \\\n --exclusive -n 2 python train.py", "line 2 asks for --ntasks='2'"),
        ("--dependency=afterok:123", "true", "line 2 asks for --dependency='afterok:123': no job here has this id"),
        ("hetjob", "true", "line 2 asks for hetjob: a job runs on one host"),
    ],
)
def test_what_would_do_other_work_refuses_the_script(line: str, script: str, words: str) -> None:
    found = read(f"#!/bin/bash\n#SBATCH {line}\n{script}\n")

    assert found is not None
    assert words in "; ".join(found.faults)


def test_the_lines_decide_variables_of_slurm() -> None:
    found = read("#!/bin/bash\n#SBATCH -J bert -p gpu -A lab -c 4\n")

    assert found is not None
    assert found.variables == {
        "SLURM_JOB_NAME": "bert",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_ACCOUNT": "lab",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_CPUS_ON_NODE": "4",
        "SLURM_JOB_CPUS_PER_NODE": "4",
    }


def test_the_page_for_slurm_users_has_each_option() -> None:
    """The table of the page names each option of sbatch that is known, with its counterpart, and no other."""
    page = (ROOT / "docs/howto/for-slurm-users.md").read_text()
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| `sbatch ")]
    shown: dict[str, str] = {}
    for slurms, ours, remarks in rows:
        for option in re.findall(r"--([a-z-]+)", slurms):
            shown[option] = shown.get(option, "") + ours + remarks

    assert {*OPTIONS} == {*shown}
    assert [] == [name for name, ours in OPTIONS.items() if ours.option and ours.option not in shown[name]]
    page = (ROOT / "docs/howto/options-in-files.md").read_text()
    assert [] == [name for name in VARIABLES if f"`{name}`" not in page]


def test_the_counterparts_are_options_of_submit() -> None:
    """An option that is named can be typed. The letters of sbatch are known as well."""
    options = {option for param in submit.params for option in param.opts}

    assert [] == [ours.option for ours in OPTIONS.values() if ours.option and ours.option not in options]
    assert "--job-name" == (counterpart_of("-J") or "")[0]
    assert None is counterpart_of("--lr") is counterpart_of("-z") is counterpart_of("-")
