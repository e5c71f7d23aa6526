from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from factories import make_spec

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import Placement, Visible
from gpuqueue.model.run import RunDevice
from gpuqueue.model.slurm_variables import MARK
from gpuqueue.system.environment import travelling
from gpuqueue.text.units import GIB, MIB
from workers.run.environment import INSIDE, environment, threads_of
from workers.run.signed_environment import SLURM_BIN


def device(uuid: str, kind: DeviceKind, index: int | None = None) -> RunDevice:
    return RunDevice(uuid=uuid, lease_bytes=1, kind=kind, index=index)


def test_devices_are_pinned_by_uuid_in_order() -> None:
    """Devices are pinned by UUID.

    A program sees them as 0, 1, … in this order, whatever their indices on the host are.
    """
    devices = (device("GPU-b", DeviceKind.GPU), device("GPU-a", DeviceKind.GPU))

    env = environment(7, "1.abc", make_spec(env={"CUDA_VISIBLE_DEVICES": "0,1,2"}), devices, Path("/run"))

    assert "GPU-b,GPU-a" == env["CUDA_VISIBLE_DEVICES"]
    assert "PCI_BUS_ID" == env["CUDA_DEVICE_ORDER"]
    assert ("7", "1", "1.abc", "/run") == tuple(
        env[f"GPUQUEUE_{name}"] for name in ("JOB_ID", "ATTEMPT", "TOKEN", "RUN_DIR")
    )


def test_a_job_can_have_its_devices_by_index() -> None:
    """The indexes are in the order of the devices, as UUIDs are."""
    devices = (device("GPU-b", DeviceKind.GPU, 3), device("GPU-a", DeviceKind.GPU, 0))

    env = environment(7, "1.abc", make_spec(visible=Visible.INDEX), devices, Path("/run"))

    assert "3,0" == env["CUDA_VISIBLE_DEVICES"]


def test_a_script_for_sbatch_finds_srun_and_submits_jobs_without_it() -> None:
    """The launcher of a host whose jobs run as their submitters adds it. A job that has no PATH gets a usable one."""
    spec = make_spec(env={MARK: "{}", "PATH": "/bin"})

    found = environment(7, "1.a", spec, (), Path("/run"))
    by_launcher = environment(7, "1.a", spec, (), Path("/run"), as_submitters=True)
    without = environment(7, "1.a", make_spec(env={MARK: "{}"}), (), Path("/run"))

    assert (f"{SLURM_BIN}:/bin", "/bin") == (found["PATH"], by_launcher["PATH"])
    assert (True, False) == ("BASH_ENV" in found, "BASH_ENV" in by_launcher)
    assert f"{SLURM_BIN}:{os.defpath}" == without["PATH"]
    assert {"PATH": "/bin", "PYTHONUNBUFFERED": "1"} == travelling(found)


@pytest.mark.parametrize("uuid", ["MIG-b", "GPU-unknown"])
def test_devices_keep_their_uuids_if_one_has_no_index(uuid: str) -> None:
    """A MIG instance has no index for CUDA, nor has a device that the worker does not know."""
    other = device(uuid, DeviceKind.GPU, 1 if uuid.startswith("MIG-") else None)

    env = environment(
        7, "1.a", make_spec(visible=Visible.INDEX), (device("GPU-a", DeviceKind.GPU, 0), other), Path("/r")
    )

    assert f"GPU-a,{uuid}" == env["CUDA_VISIBLE_DEVICES"]


def test_a_job_on_the_cpu_sees_no_card() -> None:
    """A job on the CPU sees no card, because none was allocated to it."""
    env = environment(7, "1.abc", make_spec(), (device("cpu-h", DeviceKind.CPU),), Path("/run"))

    assert "" == env["CUDA_VISIBLE_DEVICES"]


def test_what_the_submitter_set_stays() -> None:
    """A variable of the submitter is kept. Output is unbuffered by default."""
    devices = (device("GPU-a", DeviceKind.GPU),)

    assert "1" == environment(1, "1.a", make_spec(), devices, Path("/r"))["PYTHONUNBUFFERED"]
    assert "" == environment(1, "1.a", make_spec(env={"PYTHONUNBUFFERED": ""}), devices, Path("/r"))["PYTHONUNBUFFERED"]


def on_gpu(*, cap: bool = True, wanted: bool = True, **spec: Any) -> dict[str, str]:
    """Return the environment of a job that requests 6 of 24 GiB."""
    gpu = RunDevice(uuid="GPU-a", lease_bytes=6 * GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB)
    return environment(1, "1.a", make_spec(mem_bytes=6 * GIB, cap=wanted, **spec), (gpu,), Path("/r"), cap=cap)


def test_a_job_on_a_gpu_is_capped_unless_it_or_the_site_says_no() -> None:
    """A job on a GPU is capped unless the job or the site turns caps off.

    The Python hook stays in either case, because it reports memory figures.
    """
    assert "0.225586" == on_gpu()["GPUQUEUE_TORCH_FRACTION"]
    for free in (on_gpu(cap=False), on_gpu(wanted=False)):
        assert str(INSIDE) == free["PYTHONPATH"]
        assert {"PYTHONPATH"} == set(json.loads(free["GPUQUEUE_CHANGED"]))


def test_a_job_that_has_its_cards_for_itself_may_take_what_the_smaller_gives() -> None:
    """A job with whole cards is capped at the smaller card's usable memory.

    Regression: without --mem it asked for 1 MiB and was capped to that, so torch had no memory.
    """
    cards = tuple(
        RunDevice(uuid=f"GPU-{gib}", lease_bytes=(gib - 1) * GIB, kind=DeviceKind.GPU, total_bytes=gib * GIB)
        for gib in (24, 80)
    )
    whole = make_spec(mem_bytes=MIB, placement=Placement(exclusive=True, whole=True))

    env = environment(1, "1.a", whole, cards, Path("/r"))

    assert str(23 * GIB) == env["GPUQUEUE_MEM_BYTES"]
    assert "0.933920" == env["GPUQUEUE_TORCH_FRACTION"]
    assert str(23 * GIB - 600 * MIB) == env["CUPY_GPU_MEMORY_LIMIT"]


def test_a_job_on_the_cpu_is_left_alone() -> None:
    """A job on the CPU has no cap and no hook, because there is nothing to cap or report."""
    env = environment(7, "1.abc", make_spec(), (device("cpu-h", DeviceKind.CPU),), Path("/run"))

    assert not {"PYTHONPATH", "GPUQUEUE_CHANGED", "CUPY_GPU_MEMORY_LIMIT"} & set(env)


def test_of_two_cards_the_smaller_one_makes_the_share() -> None:
    """The smaller card decides the fraction. With the larger one a job would not get its memory on the smaller card."""
    cards = tuple(
        RunDevice(uuid=f"GPU-{gib}", lease_bytes=1, kind=DeviceKind.GPU, total_bytes=gib * GIB) for gib in (24, 80)
    )

    env = environment(1, "1.a", make_spec(mem_bytes=6 * GIB), cards, Path("/r"))

    assert "0.225586" == env["GPUQUEUE_TORCH_FRACTION"]


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [(None, "{us}"), ("", "{us}"), ("/a:/b", "{us}:/a:/b"), (":/a", "{us}::/a"), ("/a:{us}", "{us}:/a")],
)
def test_our_directory_comes_first_on_the_path_once(theirs: str | None, expected: str) -> None:
    """The hook's directory comes first on PYTHONPATH, once.

    No empty entry is added, because it would be the current directory.
    """
    env = {} if theirs is None else {"PYTHONPATH": theirs.format(us=INSIDE)}

    assert expected.format(us=INSIDE) == on_gpu(env=env)["PYTHONPATH"]


def test_the_torch_that_the_command_names_decides(tmp_path: Path) -> None:
    """The interpreter in the command decides the torch version.

    It is an absolute path, a path from the working directory, or a name in the job's PATH. ``torchrun`` names no
    interpreter.
    """
    (tmp_path / "lib/python3.12/site-packages/torch-2.13.0.dist-info").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text("home = /usr\n")
    (tmp_path / "bin").mkdir()
    for name in ("python3.12", "torchrun"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    path = {"PATH": str(tmp_path / "bin")}

    reported = [
        "PYTORCH_ALLOC_CONF" in on_gpu(argv=(word, "train.py"), cwd=str(tmp_path), env=path)
        for word in (str(tmp_path / "bin" / "python3.12"), "bin/python3.12", "python3.12", "python9", "torchrun")
    ]

    assert [True, True, True, False, False] == reported


def test_the_path_of_the_worker_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's PATH is not used.

    Regression: a job without a PATH starts with the system's PATH, and got the torch version of another Python.
    """
    (tmp_path / "lib/python3.12/site-packages/torch-2.13.0.dist-info").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text("home = /usr\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3-of-the-worker").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert "PYTORCH_ALLOC_CONF" not in on_gpu(argv=("python3-of-the-worker", "train.py"), env={})


def test_what_we_change_for_a_job_does_not_travel_on() -> None:
    """Variables that gpuqueue sets for a job are not passed on.

    A job that submits a job gives it the environment that the submitter had.
    """
    theirs = {"PATH": "/usr/bin", "PYTHONPATH": "/a", "PYTORCH_ALLOC_CONF": "b:1", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    inside = on_gpu(env=theirs)

    assert {**theirs, "PYTHONUNBUFFERED": "1"} == travelling(inside)
    assert "mine" == travelling({**inside, "CUPY_GPU_MEMORY_LIMIT": "mine"})["CUPY_GPU_MEMORY_LIMIT"]
    assert travelling(dict(os.environ)) == travelling({**os.environ, "GPUQUEUE_CHANGED": ""})


def test_an_interpreter_of_another_account_is_not_started(tmp_path: Path) -> None:
    """Where jobs run as their submitters, the worker never runs a program that a job names, not even for its version.

    It would run as the service account, which reads everything.
    """
    program, ran = tmp_path / "python3", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    spec = make_spec(argv=(str(program), "train.py"), env={"PYTHONPATH": "/x"})
    gpu = RunDevice(uuid="GPU-a", lease_bytes=GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB)

    environment(1, "1.a", spec, (gpu,), Path("/r"), as_submitters=True)

    assert not ran.exists()
    environment(1, "1.a", spec, (gpu,), Path("/r"))
    assert ran.exists()


def test_a_job_of_a_submitter_looks_for_no_daemon_of_mps_below_tmp() -> None:
    """Any account could start a daemon there, and each CUDA program of others would be its client.

    A directory that the job itself names stays. A job that runs as the worker finds a daemon of its person there.
    """
    gpu = RunDevice(uuid="GPU-a", lease_bytes=GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB)
    pipes = "CUDA_MPS_PIPE_DIRECTORY"

    found = environment(1, "1.a", make_spec(), (gpu,), Path("/r"), as_submitters=True)
    assert ("/nonexistent", [None, "/nonexistent"]) == (found[pipes], json.loads(found["GPUQUEUE_CHANGED"])[pipes])
    named = make_spec(env={pipes: "/mine"})
    assert "/mine" == environment(1, "1.a", named, (gpu,), Path("/r"), as_submitters=True)[pipes]
    assert (
        "/run/mps"
        == environment(1, "1.a", make_spec(), (gpu,), Path("/r"), as_submitters=True, mps={pipes: "/run/mps"})[pipes]
    )
    assert pipes not in environment(1, "1.a", make_spec(), (gpu,), Path("/r"))


def test_a_job_through_mps_knows_where_and_how_much() -> None:
    """Where MPS is on, a job on a GPU gets the variables of a client, and the limit of its memory on each device.

    What its own environment says stays, for example its share of the threads. A job on the CPU gets none.
    """
    mps = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
    limit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    gpus = tuple(
        RunDevice(uuid=uuid, lease_bytes=6 * GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB)
        for uuid in ("GPU-a", "GPU-b")
    )

    def found(spec: JobSpec, *devices: RunDevice, cap: bool = True) -> dict[str, str]:
        made = environment(1, "1.a", spec, devices, Path("/r"), cap=cap, mps=mps)
        return {name: value for name, value in made.items() if name.startswith("CUDA_MPS_")}

    spec = make_spec(mem_bytes=6 * GIB)
    assert {**mps, limit: "0=6144M,1=6144M"} == found(spec, *gpus)
    assert mps == found(spec, *gpus, cap=False)
    own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"}
    assert {**mps, **own, limit: "0=6144M"} == found(make_spec(mem_bytes=6 * GIB, env=own), gpus[0])
    assert {} == found(spec, device("cpu-h", DeviceKind.CPU))


def on_a_host(spec: JobSpec, devices: int, monkeypatch: pytest.MonkeyPatch, *, cpus: int = 16) -> dict[str, str]:
    """Return the numbers of threads of a job on a host with so many devices and processors, by their variables."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    cpu = (device("cpu-h", DeviceKind.CPU),)
    found = environment(1, "1.a", spec, cpu, Path("/r"), threads=threads_of(spec, devices))
    return {name: value for name, value in found.items() if name.endswith("_NUM_THREADS")}


@pytest.mark.parametrize(
    ("spec", "devices", "cpus", "threads"),
    [
        ({}, 1, 16, "16"),
        ({}, 4, 16, "4"),
        ({"gpus": 2}, 4, 16, "8"),
        ({"gpus": 2}, 4, 10, "5"),
        ({}, 8, 2, "1"),
        ({"cpus": 3}, 4, 16, "3"),
        ({"cpus": 2.5}, 4, 16, "2"),
        ({"cpus": 0.5}, 4, 16, "1"),
        ({"cpus": 10_000}, 4, 16, "9999"),  # the launcher refuses more
    ],
)
def test_a_job_starts_as_many_threads_as_its_share_of_the_processors(
    spec: dict[str, Any], devices: int, cpus: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: six jobs on two processors had two threads each, and took twice as long as with one each."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

    assert dict.fromkeys(names, threads) == on_a_host(make_spec(**spec), devices, monkeypatch, cpus=cpus)


def test_the_threads_that_the_submitter_has_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """All these libraries follow OMP_NUM_THREADS where their own variable is not set."""
    assert {"OMP_NUM_THREADS": "7"} == on_a_host(make_spec(env={"OMP_NUM_THREADS": "7"}), 4, monkeypatch)
    assert {"OMP_NUM_THREADS": ""} == on_a_host(make_spec(env={"OMP_NUM_THREADS": ""}), 4, monkeypatch)
    own = on_a_host(make_spec(env={"MKL_NUM_THREADS": "7"}), 4, monkeypatch)
    assert ("7", "4") == (own["MKL_NUM_THREADS"], own["OMP_NUM_THREADS"])


def test_threads_do_not_travel_on() -> None:
    """A job that submits a job leaves the number to the host of that one. Without a number nothing is set."""
    cpu = (device("cpu-h", DeviceKind.CPU),)
    env = {"PATH": "/bin", "NUMEXPR_NUM_THREADS": "2"}

    inside = environment(1, "1.a", make_spec(env=env), cpu, Path("/r"), threads=4)

    assert "4" == inside["OMP_NUM_THREADS"]
    assert {**env, "PYTHONUNBUFFERED": "1"} == travelling(inside)
    assert "GPUQUEUE_CHANGED" not in environment(1, "1.a", make_spec(env=env), cpu, Path("/r"))
