"""A launcher with the key of the service: real accounts, a real shim, and a worker that may be taken over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from factories import make_spec
from installed_copy import site_packages
from one_shim import RUN_TOKEN, Shim
from signed_runs import KEY, fields_of, member_of, signed
from submitters import Launcher, People

from gpuqueue.files.manifest import write_stream
from gpuqueue.files.take import Snapshot, take_snapshot
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.run import EndingKind, RunDevice
from gpuqueue.model.terminal_size import Window

CPU = (RunDevice(uuid="cpu-h", lease_bytes=1, kind=DeviceKind.CPU),)
PATH = "/usr/local/bin:/usr/bin:/bin"
Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def key(open_dir: Path) -> Path:
    """Return the file with the key, which only root can read."""
    path = open_dir / "ticket-key"
    path.touch(0o400)
    path.write_text(f"{KEY.hex()}\n")
    return path


@pytest.fixture
def start(shims: Any, launch: Callable[..., Launcher], key: Path) -> Callable[..., Shim]:
    """Return a function that starts a run of a job, as the worker's fields say after a *change*."""
    launcher, number = launch("--ticket-key", str(key)), count(1)

    def started(spec: JobSpec, job_id: int = 7, *, change: Change = dict, bundle: bytes | None = None) -> Shim:
        run = next(number)
        run_dir = launcher.runs / str(run) / RUN_TOKEN
        fields = change(fields_of(spec, run_dir, CPU, job_id=job_id, token=RUN_TOKEN, threads=True))
        argv = fields.pop("argv")

        def write_bundle() -> None:
            if bundle is not None:
                (run_dir / "bundle").write_bytes(bundle)

        more = {"runs": launcher.runs, "job_id": run, "launcher": launcher.socket, "before": write_bundle}
        made: Shim = shims(*argv, entered=True, **more, **fields)
        return made

    return started


@pytest.fixture
def hers(people: People) -> Callable[..., JobSpec]:
    """Return a function that makes the request of a job of alice's."""
    account = Account(name=people.alice.pw_name, uid=people.alice.pw_uid, host="h")

    def made(*argv: str, **changes: Any) -> JobSpec:
        env = {"PATH": PATH, "LD_LIBRARY_PATH": "/opt/cuda", "HF_TOKEN": "s"}
        return make_spec(**{"argv": argv, "cwd": people.alice.pw_dir, "account": account, "env": env, **changes})

    return made


def refused(run: Shim) -> str:
    """Return why the launcher did not start *run*. The host is excluded for the job, and the job goes on waiting."""
    end = run.ended()
    assert (EndingKind.REFUSED, True) == (end.ending.kind, end.host_lacks), end
    assert "" == run.log()
    return end.ending.detail


def test_a_signed_job_starts_as_its_submitter(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People
) -> None:
    """It has its own directory and variables, and the key is not among them."""
    words = "id -un; pwd; echo $LD_LIBRARY_PATH $HF_TOKEN $PATH $HOME; env | grep -ci ticket"
    run = start(signed(hers("/bin/sh", "-c", f"{words}; echo $MASTER_ADDR $OMP_NUM_THREADS; exit 3")))

    alice = people.alice
    assert 3 == run.ended().ending.exit_code, run.ended()
    share = f"127.0.0.1 {len(os.sched_getaffinity(0))}"
    assert [alice.pw_name, alice.pw_dir, f"/opt/cuda s {PATH} {alice.pw_dir}", "0", share] == run.log().splitlines()


def test_a_forged_job_is_refused(start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People) -> None:
    """A worker that was taken over makes up a job of alice's, without a ticket or with that of another job."""
    made = f"{people.alice.pw_dir}/made-by-a-forged-job"
    spec, bob = hers("touch", made), {"name": people.bob.pw_name, "uid": people.bob.pw_uid}

    assert "job 7 was not signed by the service, and this host starts no other" in refused(start(spec))
    assert "that the service of this host has not signed" in refused(start(signed(spec, bytes(32))))
    assert "its id" in refused(start(signed(spec, job_id=8)))
    assert "its account" in refused(start(signed(spec), change=lambda fields: {**fields, "user": bob}))
    assert 0 != people.shell(people.alice, f"test -e {made}").returncode


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda fields: {**fields, "argv": ("touch", "evil")}, "its command"),
        (lambda fields: {**fields, "cwd": "/tmp"}, "its directory"),
        (lambda fields: {**fields, "env": {**fields["env"], "LD_PRELOAD": "/tmp/evil.so"}}, "its environment"),
        (lambda fields: {**fields, "env": {**fields["env"], "PATH": f"/tmp:{PATH}"}}, "its environment (PATH)"),
        (lambda fields: {**fields, "umask": 0}, "its umask"),
        (lambda fields: {**fields, "env": {**fields["env"], "MASTER_ADDR": "evil.example"}}, "its environment"),
        (lambda fields: {**fields, "env": {**fields["env"], "OMP_NUM_THREADS": "64"}}, "its environment"),
    ],
    ids=["command", "directory", "loader", "PATH", "umask", "address", "threads"],
)
def test_a_tampered_job_is_refused(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], change: Change, says: str
) -> None:
    """A signed job whose command, directory or environment the worker has changed does not start."""
    assert f"job 7 differs from what the service has signed: {says}" in refused(
        start(signed(hers("true")), change=change)
    )


SBATCH = {"GPUQUEUE_SBATCH": '{"SLURM_CPUS_PER_TASK": "4"}'}


def test_a_script_for_sbatch_starts_the_srun_of_root(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], people: People
) -> None:
    """It is that of the installation, first on the PATH of her job, and she cannot change it."""
    words = (
        "srun id -un; echo $SLURM_JOB_ID $SLURM_CPUS_PER_TASK $SLURM_SUBMIT_DIR; bash -lc 'command -v srun'; "
        "for file in $(command -v srun) $BASH_ENV; do echo evil >> $file || echo kept; done; exec srun sh -c 'exit 3'"
    )
    env = {"PATH": PATH, **SBATCH}
    run = start(signed(hers("/bin/bash", "-c", words, env=env)))

    assert 3 == run.ended().ending.exit_code, run.ended()
    alice, program = people.alice, site_packages(people.installation) / "workers/inside/slurm/bin/srun"
    lines = [line for line in run.log().splitlines() if "Permission denied" not in line]
    assert [alice.pw_name, f"7 4 {alice.pw_dir}", str(program), "kept", "kept"] == lines
    assert (0, 0) == (program.stat().st_uid, program.stat().st_mode & 0o022)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_ID", "8"),
        ("SLURM_CPUS_PER_TASK", "$(id)"),
        ("SLURM_SUBMIT_DIR", "/tmp"),
        ("SLURM_JOB_NAME", "of the worker"),
        ("BASH_ENV", "/tmp/evil"),
        ("BASH_FUNC_srun%%", "() { id; }"),
        ("GPUQUEUE_SBATCH", '{"SLURM_CPUS_PER_TASK": "5"}'),
    ],
)
def test_a_forged_variable_of_slurm_is_refused(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], name: str, value: str
) -> None:
    """A worker that was taken over says that it has set the variable itself, as it does with the true ones."""

    def forged(fields: dict[str, Any]) -> dict[str, Any]:
        changed = json.loads(fields["env"]["GPUQUEUE_CHANGED"])
        changed[name] = [None, value]
        return {**fields, "env": {**fields["env"], name: value, "GPUQUEUE_CHANGED": json.dumps(changed)}}

    spec = signed(hers("/bin/true", env={"PATH": PATH, **SBATCH}))
    assert "job 7 differs from what the service has signed: its environment" in refused(start(spec, change=forged))


def test_a_member_of_a_signed_array_starts_with_its_values(
    start: Callable[..., Shim], hers: Callable[..., JobSpec]
) -> None:
    """The launcher computes the values itself: a worker cannot choose others."""
    array = Array(indexes=Indexes.parse("0-9"))
    member, job_id = member_of(hers("/bin/sh", "-c", "echo {index} $GPUQUEUE_ARRAY_INDEX", array=array), 4)

    run = start(member, job_id)
    assert (0, "4 4\n") == (run.ended().ending.exit_code, run.log())
    other = start(member, job_id, change=lambda fields: {**fields, "argv": ("/bin/sh", "-c", "echo 5")})
    assert "its command" in refused(other)


def test_a_terminal_is_signed(start: Callable[..., Shim], hers: Callable[..., JobSpec]) -> None:
    """The worker has the other end of a job's terminal, so a job that asked for none gets none."""
    words = ("/bin/sh", "-c", "test -t 1 && echo yes")

    run = start(signed(hers(*words, pty=Window())))
    assert (0, ["yes"]) == (run.ended().ending.exit_code, run.log().split())
    assert "its terminal" in refused(start(signed(hers(*words)), change=lambda fields: {**fields, "pty": (80, 24)}))


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """Return a snapshot of a small project."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "go.sh").write_text("echo hers\n")
    return take_snapshot(tmp_path / "project", root=tmp_path / "project")


def test_only_the_signed_code_runs(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], snapshot: Snapshot, tmp_path: Path
) -> None:
    """Code with another digest is not unpacked, whatever the worker says the digest is."""
    spec = signed(hers("/bin/sh", "go.sh", snapshot=f"{snapshot.address}:."))
    good = b"".join(write_stream(snapshot.manifest, snapshot.blob))
    (tmp_path / "project" / "go.sh").write_text("echo evil\n")
    other = take_snapshot(tmp_path / "project", root=tmp_path / "project")
    evil = b"".join(write_stream(other.manifest, other.blob))

    run = start(spec, bundle=good)
    assert (0, "hers\n") == (run.ended().ending.exit_code, run.log()), run.ended()
    assert "cannot unpack its code" in refused(start(spec, bundle=evil))
    lies = start(
        spec, bundle=evil, change=lambda fields: {**fields, "code": {**fields["code"], "address": other.address}}
    )
    assert "its code" in refused(lies)


def test_the_code_cannot_be_replaced_while_the_job_runs(
    start: Callable[..., Shim], hers: Callable[..., JobSpec], snapshot: Snapshot, people: People
) -> None:
    """The run directory belongs to the workers, who can move the directory of the code: the job sees its own."""
    words = "echo up; until [ -e go ]; do sleep 0.05; done; . $PWD/go.sh; . ./go.sh; pwd"
    spec = signed(hers("/bin/sh", "-c", words, snapshot=f"{snapshot.address}:."))
    run = start(spec, bundle=b"".join(write_stream(snapshot.manifest, snapshot.blob)))
    until(lambda: run.log() == "up\n", what="the job")

    run.directory.code.rename(run.directory.path / "moved")
    (run.directory.code / "tree").mkdir(parents=True)
    (run.directory.code / "tree" / "go.sh").write_text("echo evil\n")
    people.shell(people.alice, f"touch {run.directory.path}/moved/tree/go")

    assert 0 == run.ended().ending.exit_code, run.ended()
    assert ["up", "hers", "hers"] == run.log().splitlines()[:3]
    assert run.log().splitlines()[3].endswith("/code/tree")


def test_the_workers_cannot_read_the_key(key: Path, launch: Callable[..., Launcher], people: People) -> None:
    """The account of the workers reads neither the file nor the memory of the launcher."""
    launcher = launch("--ticket-key", str(key))
    pid = launcher.process.pid

    for path in (key, f"/proc/{pid}/mem", f"/proc/{pid}/environ"):
        tried = people.shell(people.service, f"cat {path}")
        assert (True, "") == ("Permission denied" in tried.stderr, tried.stdout), tried
    assert KEY.hex().encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
