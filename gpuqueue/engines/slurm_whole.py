"""Whole jobs in the words of Slurm: the options of sbatch, the script, and what scontrol and sacct say of an end. Pure.

The script starts the command once on each node: on one node itself, on several by ``srun``. A command that begins with
a launcher of its own, such as ``srun``, is started once, on the first node.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from gpuqueue.engines.whole_job import Account, WholeJob
from gpuqueue.text.units import GIB, KIB, MIB

#: Programs that start the processes on the other nodes themselves.
LAUNCHERS = frozenset(("srun", "mpirun", "mpiexec"))
#: Names that a shell can set. A function that bash exports has another one.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What Slurm sets in each job, so that the submitter's values would be wrong.
_OF_SLURM = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
_NOT_EXPORTED = frozenset(
    ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_")
)
#: torchrun takes each option from PET_OPTION too, so a plain ``torchrun train.py`` finds the other nodes.
_MEETING = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR="${MASTER_ADDR:-$first}"
export MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}"
export PET_NNODES="${PET_NNODES:-$SLURM_JOB_NUM_NODES}"
export PET_NPROC_PER_NODE="${PET_NPROC_PER_NODE:-@GPUS@}"
export PET_RDZV_BACKEND="${PET_RDZV_BACKEND:-c10d}"
export PET_RDZV_ID="${PET_RDZV_ID:-$SLURM_JOB_ID}"
export PET_RDZV_ENDPOINT="${PET_RDZV_ENDPOINT:-$MASTER_ADDR:$MASTER_PORT}"
"""
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_MEMORY = re.compile(r"gres/gpumem=([0-9.]+)([KMGT]?)")
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}


def words_of(job: WholeJob, name: str, options: Iterable[str]) -> list[str]:
    """Return the command that submits *job* as *name*. Later options take precedence, so those of the site are last."""
    words = ["sbatch", "--parsable", f"--job-name={name}", f"--comment={name}"]
    words += [f"--nodes={job.nodes}", "--ntasks-per-node=1", f"--gres=gpu:{job.gpus_per_node}"]
    if job.duration_s is not None:
        words.append(f"--time={math.ceil(job.duration_s / 60)}")
    if job.cpus is not None:
        words.append(f"--cpus-per-task={math.ceil(job.cpus)}")
    if job.cpu_mem_bytes is not None:
        words.append(f"--mem={math.ceil(job.cpu_mem_bytes / MIB)}M")
    if job.signal is not None:
        signal, before_s = job.signal
        words.append(f"--signal={'' if _by_srun(job) else 'B:'}{signal}@{math.ceil(before_s)}")
    if job.error is not None:
        words.append(f"--error={job.error}")
    words += [f"--output={job.output}", "--open-mode=append", "--export=NONE"]
    return [*words, "--requeue" if job.requeue else "--no-requeue", *options]


def script_of(job: WholeJob) -> str:
    """Return the script that Slurm runs on the first node. It has the environment, so nobody else may read it."""
    lines = ["#!/bin/sh", f"umask {job.umask:03o}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in exported(job.env)]
    lines.append("export SLURM_EXPORT_ENV=ALL")  # srun takes this environment along; --export=NONE keeps it from that
    if job.nodes > 1:
        lines.append(_MEETING.replace("@GPUS@", str(job.gpus_per_node)).rstrip())
    place, command = shlex.quote(job.exit_file), shlex.join(job.argv)
    if _by_srun(job):
        cpus = "" if job.cpus is None else f" --cpus-per-task={math.ceil(job.cpus)}"
        step = f"srun --nodes={job.nodes} --ntasks={job.nodes} --ntasks-per-node=1{cpus} --kill-on-bad-exit=1"
        command = f"{step} {command}"
    lines += [f"rm -f {place}", f"cd {shlex.quote(job.directory)} || exit 1"]
    if job.signal is None or _by_srun(job):
        lines += [command, "code=$?"]
    else:  # the signal comes to this shell, which passes it on
        signal = job.signal[0]
        lines += [f"trap 'kill -{signal} \"$first_process\" 2>/dev/null' {signal}", f"{command} &", "first_process=$!"]
        lines += [
            "while :; do",
            '  wait "$first_process"',
            "  code=$?",
            '  kill -0 "$first_process" 2>/dev/null || break',
        ]
        lines.append("done")
    return "\n".join([*lines, f'echo "$code" > {place}.new && mv {place}.new {place}', 'exit "$code"', ""])


def _by_srun(job: WholeJob) -> bool:
    return job.nodes > 1 and PurePath(job.argv[0]).name not in LAUNCHERS


def exported(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables of *env* that a job of Slurm gets."""
    for name, value in sorted(env.items()):
        if _NAME.fullmatch(name) and name not in _NOT_EXPORTED and not name.startswith(_OF_SLURM):
            yield name, value


def account_of_scontrol(text: str, name: str) -> Account | None:
    """Return what ``scontrol show job --oneliner`` says of the job *name*, None if it is about another one.

    Its times must be seconds (``SLURM_TIME_FORMAT=%s``).
    """
    fields = dict(reversed(_FIELD.findall(text)))  # the first of a name counts: a path may look like a field
    if fields.get("JobName") != name:
        return None
    return _account(fields.get("JobState", ""), fields.get("ExitCode", ""), fields, nodes=fields.get("NodeList", ""))


def account_of_sacct(text: str, name: str) -> Account | None:
    """Return what sacct says of the job *name*: the columns of :data:`COLUMNS`, of the job and of its steps."""
    found, most = None, None
    for line in text.splitlines():
        row = dict(zip(COLUMNS, line.split("|"), strict=False))
        if row.get("JobIDRaw", "").isdecimal():
            if row.get("JobName") != name:
                return None
            found = _account(
                row.get("State", ""), row.get("ExitCode", ""), row, nodes=row.get("NodeList", ""), end="End"
            )
        used = gpu_mem_of(row.get("TRESUsageInMax", ""))
        if used is not None:
            most = max(used, most or 0)
    if found is None:
        return None
    return Account(
        word=found.word,
        exit_code=found.exit_code,
        signal=found.signal,
        nodes=found.nodes,
        started_s=found.started_s,
        ended_s=found.ended_s,
        gpu_mem_bytes=most,
    )


#: The columns of sacct.
COLUMNS = ("JobIDRaw", "JobName", "State", "ExitCode", "Start", "End", "NodeList", "TRESUsageInMax")


def gpu_mem_of(text: str) -> int | None:
    """Return the bytes of ``gres/gpumem`` in a list of TRES; None without it, and for 0: then nothing was measured."""
    found = _MEMORY.search(text)
    return (round(float(found[1]) * _UNITS[found[2]]) or None) if found is not None else None


def _account(state: str, codes: str, fields: Mapping[str, str], *, nodes: str, end: str = "EndTime") -> Account:
    code, _, signal = codes.partition(":")
    start = "Start" if end == "End" else "StartTime"
    return Account(
        word=state.split(maxsplit=1)[0].lower() if state.split() else "",
        exit_code=int(code) if code.isdecimal() else None,
        signal=int(signal) or None if signal.isdecimal() else None,
        nodes=nodes if nodes not in {"", "(null)", "None assigned"} else None,
        started_s=_seconds(fields.get(start, "")),
        ended_s=_seconds(fields.get(end, "")),
    )


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() else None
