"""What a worker asks a launcher for, for a job that the service has signed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuqueue.client.signing import Signer
from gpuqueue.codec.request import decode_spec, encode_spec, of_member
from gpuqueue.model.array import Member
from gpuqueue.model.code_snapshot import CodeSnapshot
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from workers.run.environment import environment, threads_of
from workers.runner import with_python
from workers.shim.code import TREE
from workers.steps.container import container_of
from workers.steps.fetch_code import unpacking

KEY = bytes(range(32))
#: A container engine of the host: the launcher judges its program, which nothing starts here.
ENGINE = "charliecloud=/bin/ls"
JOB = 7


def signed(spec: JobSpec, key: bytes = KEY, job_id: int = JOB) -> JobSpec:
    """Return *spec* with the ticket of the job, as a worker reads it from the store."""
    return decode_spec(encode_spec(Signer(key).signed(spec, job_id)))


def member_of(spec: JobSpec, index: int, key: bytes = KEY) -> tuple[JobSpec, int]:
    """Return the spec and the id of a member of the signed array *spec*, as a worker reads them from the store."""
    member = Member(JOB, index)
    return decode_spec(of_member(encode_spec(Signer(key).signed(spec, JOB)), member)), member.id


def fields_of(
    spec: JobSpec,
    run_dir: Path,
    devices: tuple[RunDevice, ...],
    *,
    job_id: int = JOB,
    token: str = "1.a",
    python: str | None = None,
    threads: bool = False,
) -> dict[str, Any]:
    """Return the fields of a shim's spec that come from a job, as the worker writes them (``steps/spawn.py``).

    *python* is the program of the job's environment on this host. With *threads* the site limits them.
    """
    code = None
    if python is not None:
        spec = with_python(spec, python)
    count = threads_of(spec, 1) if threads else None
    if spec.snapshot is not None:
        snapshot = CodeSnapshot.parse(spec.snapshot)
        code = unpacking(snapshot, run_dir / "code")
        spec = replace(spec, cwd=str(run_dir / "code" / TREE / snapshot.directory))
    return {
        "argv": spec.argv,
        "cwd": spec.cwd,
        "env": environment(job_id, token, spec, devices, run_dir, as_submitters=True, threads=count),
        "umask": spec.umask,
        "user": {"name": spec.account.name, "uid": spec.account.uid},
        "pty": None if spec.pty is None else (spec.pty.columns, spec.pty.rows),
        "typed": spec.pty is not None and spec.pty.typed,
        "code": code,
        "ticket": spec.ticket,
        "outputs": {"log": spec.output, "stderr": spec.error},
        "container": container_of(spec, ENGINE, devices, spec.env),
    }
