"""Job files of the kinds that people have for Slurm: each runs as its author meant, or is refused with what to change.

They are submitted to one queue with two simulated devices, all before the first test waits for one of them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.queue.connect import connect
from gpuqueue.settings.settings import Settings


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """A job file, and what comes of it.

    *words* are typed behind it. *log* is what it prints, ``{job}`` its id and ``{dir}`` the directory of the submit;
    of an array the output of each member in turn. *says* is in what the submit prints, and *refused* too if it is.
    *spec* are fields of the job, and *files* what its links to the log hold.
    """

    name: str
    text: str
    words: tuple[str, ...] = ()
    log: str | tuple[str, ...] = ""
    state: JobState = JobState.SUCCEEDED
    says: str = ""
    refused: str = ""
    note: str = ""
    spec: tuple[tuple[str, object], ...] = ()
    files: tuple[tuple[str, str], ...] = ()


FILES = (
    JobFile(
        name="pretrain",
        text="""#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=16
#SBATCH --mem=128G
#SBATCH --time=24:00:00
#SBATCH --output=logs/%x-%j.out
#SBATCH --partition=gpu

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
test "$MASTER_ADDR" = "$(uname -n)" || exit 3
torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE train.py config/gpt2.py --threads=$OMP_NUM_THREADS
""",
        log="torchrun --standalone --nproc_per_node=2 train.py config/gpt2.py --threads=16\n",
        says="not used of its #SBATCH lines: --partition (--pool here)",
        spec=(("name", "gpt"), ("gpus", 2), ("time_limit_s", 86400.0)),
        files=(("logs/gpt-{job}.out", "torchrun --standalone"),),
    ),
    JobFile(
        name="lines-of-a-file",
        text="""#!/bin/bash
#SBATCH -J grid
#SBATCH -a 1-3
#SBATCH -o grid_%A_%a.out
args=$(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: $args"
""",
        log=("task 1 of 3: --lr 1\n", "task 2 of 3: --lr 2\n", "task 3 of 3: --lr 3\n"),
        files=(("grid_{job}_2.out", "task 2 of 3"),),
    ),
    JobFile(
        name="conda-and-modules",
        text="""#!/bin/bash
#SBATCH --time=02:00:00 --gres=gpu:1
module() { echo "module $*"; }   # as a site gives it to each shell
module purge
module load cuda/12.1
source conda/etc/profile.d/conda.sh
conda activate vision
which srun > /dev/null && srun --unbuffered env | grep CONDA_DEFAULT_ENV
""",
        log="module purge\nmodule load cuda/12.1\nCONDA_DEFAULT_ENV=vision\n",
    ),
    JobFile(
        name="conda-without-conda",
        text="""#!/bin/bash
#SBATCH --time=10
module load gcc
conda activate vision
python -c 'import torch_that_is_in_vision'
""",
        state=JobState.FAILED,
        note="`module` or `conda activate`",
    ),
    JobFile(
        name="login-shell",
        text="""#!/bin/bash -l
#SBATCH --time=5
PATH=/usr/bin:/bin bash -c 'srun echo "in a login shell"'
bash -lc 'exec srun -n1 echo "and once more"'
""",
        log="in a login shell\nand once more\n",
    ),
    JobFile(
        name="steps",
        text="""#!/bin/bash
#SBATCH -N 1 -n 1
#SBATCH --gres=gpu:1
set -e
srun --gres=gpu:1 --cpu-bind=none --mem=0 -c 4 echo "step $SLURM_PROCID"
srun --ntasks=1 --nodes 1 --kill-on-bad-exit=1 -lu -o step_%j_%t.txt sh -c 'echo "in a file"; echo "errors too" >&2'
cat step_${SLURM_JOB_ID}_0.txt
srun --export=ALL,SEED=3 -D sub sh -c 'echo "seed $SEED in ${PWD##*/}"'
env LR=1 srun sh -c 'echo "lr $LR"'
timeout 60 srun -n1 echo "in time"
sh -c 'srun echo "from sh"'
srun --jobid=$SLURM_JOB_ID --overlap -- echo --last
exec srun sh -c 'exit 7'
""",
        log="step 0\nin a file\nerrors too\nseed 3 in sub\nlr 1\nin time\nfrom sh\n--last\n",
        state=JobState.FAILED,
    ),
    JobFile(
        name="posix-shell",
        text="#!/bin/sh\n#SBATCH --job-name=sh\nsrun echo one &\nwait\nsrun echo $SLURM_JOB_NAME\n",
        log="one\nsh\n",
    ),
    JobFile(
        name="python.py",
        text="""#!/usr/bin/env python
#SBATCH --time=10:00
import os, subprocess
subprocess.run(["srun", "--ntasks=1", "echo", "job", os.environ["SLURM_JOB_ID"]], check=True)
""",
        log="job {job}\n",
        spec=(("time_limit_s", 600.0),),
    ),
    JobFile(
        name="checkpoint-at-a-signal",
        text="""#!/bin/bash
#SBATCH --signal=B:USR1@59
#SBATCH --time=1
trap 'echo saved; kill $!; exit 0' USR1
echo begun
sleep 300 &
wait
""",
        log="begun\nsaved\n",
    ),
    JobFile(
        name="runs-again",
        text="""#!/bin/bash
#SBATCH --requeue --open-mode=append
echo "restart ${SLURM_RESTART_COUNT:-0}"
if [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]; then exit 75; fi
""",
        log="restart 1\n",
        says="--open-mode (there is nothing like it)",
    ),
    JobFile(
        name="requeues-itself",
        text="""#!/bin/bash
#SBATCH --requeue
# scontrol requeue in a comment
trap 'scontrol requeue $SLURM_JOB_ID' TERM
echo done
""",
        log="done\n",
        says="calls scontrol requeue, which only Slurm has (line 4): write exit 75",
    ),
    JobFile(
        name="in-its-directory",
        text="#!/bin/bash\n#SBATCH -n1\ncd /\ncd $SLURM_SUBMIT_DIR\npwd\n",
        log="{dir}\n",
    ),
    JobFile(
        name="elsewhere",
        text='#!/bin/bash\n#SBATCH --chdir=sub\n#SBATCH --output=here.txt\necho "$PWD from $SLURM_SUBMIT_DIR"\n',
        log="{dir}/sub from {dir}\n",
        files=(("sub/here.txt", "/sub from "),),
    ),
    JobFile(
        name="several-in-a-line",
        text="""#!/bin/bash
#SBATCH -p gpu -A lab -t 0-0:30:00 -J "my run"    # where, for whom, how long
#SBATCH --ntasks=1            # one task
#SBATCH --cpus-per-task 4     ### four processors
#SBATCH --mem-per-cpu=2048
echo "$SLURM_JOB_NAME, $SLURM_CPUS_PER_TASK of $SLURM_CPUS_ON_NODE, $SLURM_JOB_PARTITION, $SLURM_JOB_ACCOUNT"
""",
        log="my run, 4 of 4, gpu, lab\n",
        says="sets no limit",
        spec=(("name", "my run"), ("time_limit_s", 1800.0)),
    ),
    JobFile(
        name="what-is-no-option",
        text="""#!/bin/bash
##SBATCH --nodes=4
# SBATCH --nodes=4
#SBATCH --nodes=1

echo begun
#SBATCH --nodes=4
""",
        log="begun\n",
    ),
    JobFile(
        name="indexes",
        text="#!/bin/bash\n#SBATCH --array=8,18,28 -o /dev/null\necho $((SLURM_ARRAY_TASK_ID / 2))\n",
        log=("4\n", "9\n", "14\n"),
        says="--output (gpuqueue logs ID prints it)",
    ),
    JobFile(
        name="nine-at-once",
        text="""#!/bin/bash
#SBATCH -a 1-9%9
#SBATCH -o all.txt
seeds=(0 1 2 3 5 8 13 21 34 55)
echo "${seeds[$SLURM_ARRAY_TASK_ID]}"
""",
        log=tuple(f"{number}\n" for number in (1, 2, 3, 5, 8, 13, 21, 34, 55)),
    ),
    JobFile(
        name="shards",
        text="""#!/bin/bash
#SBATCH --array=0-8:4
if [ $SLURM_ARRAY_TASK_ID -eq $SLURM_ARRAY_TASK_MAX ]; then last=yes; fi
echo "$SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX $last"
""",
        log=("0 to 8 \n", "0 to 8 \n", "0 to 8 yes\n"),
    ),
    JobFile(
        name="typed-array",
        text='#!/bin/bash\n#SBATCH --array=0-99\n#SBATCH -J old\necho "$SLURM_ARRAY_TASK_MAX $SLURM_JOB_NAME"\n',
        words=("--array", "0-1", "--name", "new"),
        log=("1 new\n", "1 new\n"),
    ),
    JobFile(
        name="a-day-and-a-half",
        text='#!/bin/bash\n#SBATCH -t 1-12\n#SBATCH --mem=64Gb\necho $0 "$@"\n',
        words=("--", "a b", "-c"),
        log="{dir}/a-day-and-a-half a b -c\n",
        spec=(("time_limit_s", 129600.0), ("cpu_mem_bytes", None)),
    ),
    JobFile(
        name="two-components",
        text="#!/bin/bash\n#SBATCH -n1 --mem=4G\n#SBATCH hetjob\n#SBATCH -n1 --mem=64G\nsrun a : b\n",
        refused="line 3 asks for hetjob: a job runs on one host",
    ),
    JobFile(
        name="two-packs",
        text="#!/bin/bash\n#SBATCH -n1\n#SBATCH packjob\n#SBATCH -n1\nsrun a : b\n",
        refused="line 3 asks for packjob: a job runs on one host",
    ),
    JobFile(
        name="two-hosts",
        text="#!/bin/bash\n#SBATCH -J ddp\n#SBATCH --nodes=2\nsrun torchrun --nnodes=$SLURM_NNODES train.py\n",
        refused="line 3 asks for --nodes='2': a job runs on one host",
    ),
    JobFile(
        name="one-to-four-hosts",
        text="#!/bin/bash\n#SBATCH --nodes=1-4\nsrun echo $SLURM_NNODES\n",
        log="1\n",
    ),
    JobFile(
        name="four-tasks",
        text="#!/bin/bash\n#SBATCH --ntasks=4\nsrun \\\n  python ddp.py\n",
        refused="line 2 asks for --ntasks='4': gpuqueue starts the command once; torchrun starts a process for",
    ),
    JobFile(
        name="four-ranks",
        text="#!/bin/bash\n#SBATCH --ntasks-per-node=4\nmpirun -np 4 ./solve\n",
        refused="line 2 asks for --ntasks-per-node='4'",
    ),
    JobFile(
        name="four-processes",
        text="#!/bin/bash\n#SBATCH --ntasks-per-node=4\ntorchrun --nproc-per-node $SLURM_NTASKS_PER_NODE train.py\n",
        log="torchrun --nproc-per-node 4 train.py\n",
        says="--ntasks-per-node (the script is started once, as in Slurm)",
    ),
    JobFile(
        name="three-at-the-same-time",
        text="""#!/bin/bash
#SBATCH --ntasks=3
for seed in 1 2 3; do
  srun --exclusive \\
    -N1 -n1 sh -c "echo seed $seed" > seed-$seed.txt &
done
wait
cat seed-*.txt
""",
        log="seed 1\nseed 2\nseed 3\n",
    ),
    JobFile(
        name="too-many-for-a-step",
        text="#!/bin/bash\n#SBATCH -N1\nsrun -n 4 echo rank\n",
        log="srun: -n 4: gpuqueue starts a program once: torchrun starts a process for each GPU\n",
        state=JobState.FAILED,
    ),
    JobFile(
        name="a-card-for-each-step",
        text="#!/bin/bash\n#SBATCH --gpus=2\nsrun --gpus=1 echo one &\nwait $!\n",
        log="srun: --gpus 1: a program sees all 2 GPUs of the job: submit an array instead\n",
        state=JobState.FAILED,
    ),
    JobFile(
        name="in-an-image",
        text="#!/bin/bash\n#SBATCH -n1\nsrun --container-image=nvcr.io/x python train.py\n",
        log="srun: --container-image: the program runs on the host: start it with podman or apptainer\n",
        state=JobState.FAILED,
    ),
    JobFile(
        name="kind-of-card",
        text="#!/bin/bash\n#SBATCH --gres=gpu:a100:2\necho $SLURM_GPUS_ON_NODE\n",
        words=("--device-type", "simulated"),
        log="2\n",
        spec=(("gpus", 2),),
    ),
    JobFile(
        name="cards-of-a-node",
        text="#!/bin/bash\n#SBATCH --gpus-per-node=simulated:4\necho $SLURM_GPUS_PER_NODE\n",
        words=("--gpus", "1"),
        log="simulated:4\n",
        spec=(("gpus", 1),),
    ),
    JobFile(
        name="a-share-of-a-card",
        text="#!/bin/bash\n#SBATCH --gres=shard:1\necho shared\n",
        log="shared\n",
        says="--gres (a job shares a card by --mem)",
    ),
    JobFile(
        name="mail",
        text="#!/bin/bash\n#SBATCH --mail-type=END,FAIL\n#SBATCH --mail-user=ann@example.org\necho sent\n",
        log="sent\n",
        says="--mail-type (--on-end here); --mail-user (--on-end here)",
    ),
    JobFile(
        name="after-another",
        text="#!/bin/bash\n#SBATCH --dependency=afterok:1234\necho late\n",
        refused="line 2 asks for --dependency='afterok:1234': no job here has this id: type --after ID",
    ),
    JobFile(
        name="one-at-a-time",
        text="#!/bin/bash\n#SBATCH -d singleton\necho late\n",
        refused="line 2 asks for --dependency='singleton': no job here has this id: type --after ID, or --dedupe KEY",
    ),
    JobFile(
        name="after-a-typed-one",
        text="#!/bin/bash\n#SBATCH -d afterok:1234\necho late\n",
        words=("--after", "1:any"),
        log="late\n",
    ),
    JobFile(
        name="exported",
        text='#!/bin/bash\n#SBATCH --export=ALL,LR=1e-3,SEED=4\necho "$LR $SEED ${HOME:+home}"\n',
        log="1e-3 4 home\n",
    ),
    JobFile(
        name="nothing-exported",
        text="#!/bin/bash\n#SBATCH --export=NONE\necho clean\n",
        log="clean\n",
        says="--export (the job has your environment, and --env adds to it)",
    ),
    JobFile(
        name="exclusive",
        text="#!/bin/bash\n#SBATCH --exclusive --constraint=80g|ib --nice=100 --licenses=x:1\necho alone\n",
        log="alone\n",
        says="--constraint (--device-type here); --nice (there is nothing like it); --licenses",
    ),
    JobFile(
        name="one-file-for-both",
        text="#!/bin/bash\n#SBATCH -o both-%j.log\n#SBATCH -e both-%j.log\necho out\necho error >&2\n",
        log="out\nerror\n",
        files=(("both-{job}.log", "out\nerror\n"),),
    ),
    JobFile(
        name="files-with-the-host",
        text="#!/bin/bash\n#SBATCH --output=%N-%j.log\n#SBATCH --error=err-%j.txt\necho out\necho error >&2\n",
        log="out\n",
        files=(("{host}-{job}.log", "out\n"), ("err-{job}.txt", "error\n")),
    ),
    JobFile(
        name="from-windows",
        text="#!/bin/bash\r\n#SBATCH --time=10\r\necho hello\r\n",
        refused="its first line ends with \\r, and there is no '/bin/bash\\r': repair it with sed",
    ),
    JobFile(
        name="python-inside",
        text="""#!/usr/bin/env bash
#SBATCH --time=10
set -euo pipefail
python - "${SLURM_ARRAY_TASK_ID:-0}" <<'END'
import os, sys
print("index", sys.argv[1], "job", os.environ["SLURM_JOBID"])
#SBATCH --nodes=4
END
""",
        log="index 0 job {job}\n",
    ),
    JobFile(
        name="scratch",
        text="""#!/bin/bash
#SBATCH -n 1
scratch=$(mktemp -d)/$SLURM_JOB_ID
mkdir "$scratch" && cp params.txt "$scratch" && cd "$scratch" && wc -l < params.txt
cp params.txt "$SLURM_SUBMIT_DIR/back.txt" && rm -r "$scratch"
""",
        log="3\n",
    ),
    JobFile(
        name="wrapped",
        text="",
        words=("--wrap", "python train.py && python eval.py"),
        refused="put the command after --: -- sh -c 'A && B'",
    ),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the job files, with what they start."""
    made = tmp_path_factory.mktemp("job-files")
    for name in ("bin", "sub", "logs", "conda/etc/profile.d"):
        (made / name).mkdir(parents=True)
    (made / "params.txt").write_text("--lr 1\n--lr 2\n--lr 3\n")
    (made / "conda/etc/profile.d/conda.sh").write_text("conda() { export CONDA_DEFAULT_ENV=$2; }\n")
    (made / "bin/torchrun").write_text('#!/bin/sh\necho torchrun "$@"\n')
    (made / "bin/torchrun").chmod(0o755)
    for file in FILES:
        (made / file.name).write_text(file.text, newline="")
    return made


@pytest.fixture(scope="module")
def site(_server: Settings, tmp_path_factory: pytest.TempPathFactory, directory: Path) -> Iterator[Site]:
    """Return a site with two devices."""
    client = connect(_server.redis_url)
    client.flushall()
    client.close()
    made = Site(
        tmp_path_factory.mktemp("site"),
        _server.redis_url,
        GPUQUEUE_DEVICES="sim:2x8G",
        GPUQUEUE_CONFIG=os.devnull,
        PATH=f"{directory}/bin{os.pathsep}{os.environ['PATH']}",
    )
    for name in [name for name in made.environ if name.startswith(("SLURM_", "CONDA_", "BASH_"))]:
        del made.environ[name]
    made.start_recorder()
    for device in ("0", "1"):
        made.start_worker(device)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def submitted(site: Site, directory: Path) -> dict[str, tuple[int, str]]:
    """Return for each file the id of its job, 0 if it was refused, and what the submit printed beside."""
    found = {}
    before = Path.cwd()
    os.chdir(directory)
    try:
        for file in FILES:
            done = site.cli("submit", file.name, "--mem", "1M", *file.words, check=False)
            found[file.name] = (int(done.stdout or 0), done.stderr)
    finally:
        os.chdir(before)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_job_file_runs_as_its_author_meant_or_is_refused_with_what_to_change(
    file: JobFile, submitted: dict[str, tuple[int, str]], site: Site, directory: Path
) -> None:
    job, printed = submitted[file.name]
    assert file.says in printed
    if file.refused:
        assert 0 == job
        assert file.refused in printed
        return
    assert 0 != job, printed
    is_array = isinstance(file.log, tuple)
    spec: JobSpec = site.client.jobs.get(job).spec
    members = [f"{job}_{index}" for index in spec.array.indexes] if spec.array is not None else [str(job)]
    site.cli("wait", str(job), check=False)

    logs = [site.cli("logs", member).stdout for member in members]
    assert file.state is site.client.jobs.get(job).state, logs
    if file.note:
        assert file.note in site.cli("show", str(job)).stdout
    else:
        expected = file.log if isinstance(file.log, tuple) else (file.log,)
        assert [text.format(job=job, dir=directory) for text in expected] == logs
    assert is_array is (spec.array is not None)
    assert dict(file.spec) == {name: getattr(spec, name) for name, _ in file.spec}
    for path, text in file.files:
        assert text in (directory / path.format(job=job, host=platform.node())).read_text()
