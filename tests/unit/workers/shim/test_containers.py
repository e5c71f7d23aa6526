"""The command lines of the container engines: one suite for all, and what is special about each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.model.container import Engine
from workers.shim import containers
from workers.shim.containers import ENGINES, HOOK, Inside, container_name, forwards, is_valid, removal

GPU = "GPU-4242aaaa-0000-1111-2222-333344445555"
OTHER = "GPU-4242aaaa-0000-1111-2222-333344446666"
ENV = {
    "GPUQUEUE_JOB_ID": "17",
    "GPUQUEUE_TOKEN": "1.a4",
    "CUDA_VISIBLE_DEVICES": GPU,
    "HF_TOKEN": "a secret",
    "PATH": "/home/ada/bin:/usr/bin",
    "HOME": "/home/ada",
    "USER": "ada",
    "LD_LIBRARY_PATH": "/opt/cuda",
    "PYTHONPATH": f"{HOOK}{os.pathsep}/home/ada/lib",
}


def container(**changes: Any) -> dict[str, Any]:
    """Return a container of a run as the worker writes it."""
    fields = {"engine": "podman", "program": "/usr/bin/engine", "image": "team/torch:2.6", "binds": [], "devices": []}
    return {**fields, "outside": ["LD_LIBRARY_PATH", "PATH"], **changes}


def inside(env: Mapping[str, str] = ENV, *, cwd: str = "/srv/ada", pty: bool = False, **changes: Any) -> Inside:
    """Return what a job finds in a container."""
    return Inside(["python3", "train.py", "--lr", "1"], env, cwd, container(**changes), None, pty=pty, typed=pty)


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Any:
    """Return each engine."""
    return ENGINES[request.param]


def test_the_setting_knows_the_same_engines() -> None:
    """What a site can name is what a shim can start."""
    assert {*map(str, Engine)} == {*ENGINES}


def test_the_command_comes_last_behind_the_image(engine: Any) -> None:
    """The job's command runs in the image, whatever it is, and no word of it is an option of the engine."""
    words, _ = engine.command(inside())

    assert "/usr/bin/engine" == words[0]
    assert ["python3", "train.py", "--lr", "1"] == words[-4:]
    assert "team/torch:2.6" in words[-6:-4] or words[-6].endswith("team%torch+2.6")


def test_no_value_of_a_variable_is_a_word(engine: Any) -> None:
    """Every account can read a command line, so a secret goes in by the environment of the engine."""
    words, env = engine.command(inside())

    assert not any("secret" in word for word in words)
    assert "a secret" == env["HF_TOKEN"]


def test_the_variables_of_the_job_go_in_and_those_of_the_host_do_not(engine: Any) -> None:
    """PATH and the library path are the image's. What the job is told about its run goes in."""
    words, env = engine.command(inside())

    named = {word.removeprefix("--env=").partition("=")[0] for word in words if word.startswith("--env=")}
    goes_in = named if "docker" in engine.program or "podman" in engine.program else {*env}
    assert {"CUDA_VISIBLE_DEVICES", "GPUQUEUE_JOB_ID", "GPUQUEUE_TOKEN", "HF_TOKEN"} <= goes_in
    assert "LD_LIBRARY_PATH" not in goes_in
    assert env["PATH"] != ENV["PATH"] if engine.program == "ch-run" else "PATH" not in named


def test_directories_are_bound_at_the_same_path(engine: Any, tmp_path: Path) -> None:
    """The working directory, the run's directory and the submitter's own bind are there, and all are named."""
    work, run_dir = tmp_path / "work", tmp_path / "run"
    for each in (work, run_dir):
        each.mkdir()
    env = {**ENV, "GPUQUEUE_RUN_DIR": str(run_dir)}
    made = inside(env, cwd=str(work), binds=["/data:/mnt/data"])

    binds = {(bind.source, bind.target) for bind in made.binds}
    assert {(str(work), str(work)), (str(run_dir), str(run_dir)), ("/data", "/mnt/data")} <= binds
    words, _ = engine.command(made)
    assert any("/data" in word and "/mnt/data" in word for word in words)
    assert any(word.endswith(f"={work}") for word in words)  # it is entered


def test_a_bind_of_the_submitter_wins_over_ours() -> None:
    """Another directory at the place of the working directory is what the submitter asked for."""
    found = inside(cwd="/tmp", binds=["/data:/tmp:ro"])

    assert ["/data:/tmp:ro"] == [str(bind) for bind in found.binds if bind.target == "/tmp"]


def test_outer_binds_come_first(tmp_path: Path) -> None:
    """A bind inside another one is not hidden by it."""
    (tmp_path / "a").mkdir()
    found = inside({**ENV, "GPUQUEUE_RUN_DIR": str(tmp_path / "a")}, cwd=str(tmp_path))

    targets = [bind.target for bind in found.binds]
    assert targets.index(str(tmp_path)) < targets.index(str(tmp_path / "a"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("podman", [f"--device=nvidia.com/gpu={GPU}", f"--device=nvidia.com/gpu={OTHER}"]),
        ("docker", [f'--gpus="device={GPU},{OTHER}"']),
        ("apptainer", ["--nv"]),
        ("charliecloud", []),
    ],
)
def test_devices_are_given_by_uuid(name: str, words: list[str]) -> None:
    """Podman gets them by CDI, Docker by its option. The other two show all, and CUDA_VISIBLE_DEVICES pins."""
    found, env = ENGINES[name].command(inside(engine=name, devices=[GPU, OTHER]))

    assert words == [word for word in found if ("gpu" in word.lower() and "device" in word) or word == "--nv"]
    assert GPU == env["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_a_job_without_a_gpu_gets_none_from_the_image(name: str) -> None:
    """Images for CUDA ask for all devices by a variable, which an old hook of the engine follows."""
    words, _ = ENGINES[name].command(inside(engine=name))

    assert "--env=NVIDIA_VISIBLE_DEVICES=void" in words


def test_numbers_of_devices_count_from_zero_where_no_others_are() -> None:
    """With --visible index the host's number means nothing in a container that has only the job's devices."""
    found = inside({**ENV, "CUDA_VISIBLE_DEVICES": "3,5"})
    found.count_devices()
    assert "0,1" == found.env["CUDA_VISIBLE_DEVICES"]

    by_uuid = inside()
    by_uuid.count_devices()
    assert GPU == by_uuid.env["CUDA_VISIBLE_DEVICES"]


def test_the_hook_keeps_the_images_own_path() -> None:
    """The hook inside the job's Python comes first, the image's directories stay, and the host's are gone."""
    found = inside()
    found.add_hook({"PYTHONPATH": "/opt/lib"})

    assert f"{HOOK}{os.pathsep}/opt/lib" == found.env["PYTHONPATH"]
    assert f"{HOOK}:{HOOK}:ro" in map(str, found.binds)

    without = inside({**ENV, "PYTHONPATH": "/home/ada/lib"})
    without.add_hook({})
    assert "PYTHONPATH" not in without.variables


def test_the_home_is_hers_only_where_it_is_bound(tmp_path: Path) -> None:
    """A home that is not in the container would be a directory that nobody can write to."""
    assert containers.NO_HOME == inside().home
    assert str(tmp_path) == inside({**ENV, "HOME": str(tmp_path)}, cwd=str(tmp_path)).home


def test_a_terminal_is_asked_for() -> None:
    """A job with a terminal has one in the container, and may be typed to."""
    words, _ = ENGINES["podman"].command(inside(pty=True))

    assert {"--tty", "--interactive", "--log-driver=none"} <= {*words}


def test_docker_runs_as_the_user_without_more_rights() -> None:
    """Its daemon is root's, so user and groups are named, and a missing directory is no new one of root's."""
    words, _ = ENGINES["docker"].command(inside(engine="docker", binds=["/data:/data:ro"]))

    assert f"--user={os.getuid()}:{os.getgid()}" in words
    assert "--security-opt=no-new-privileges" in words
    assert "--mount=type=bind,source=/data,target=/data,readonly" in words
    assert not any(word.startswith(("--volume", "-v", "--privileged")) for word in words)


def test_charliecloud_refuses_what_it_cannot_do() -> None:
    """A bind that the job must not write to would be writable."""
    with pytest.raises(OSError, match="leave out :ro"):
        ENGINES["charliecloud"].command(inside(engine="charliecloud", binds=["/data:/data:ro"]))


def test_charliecloud_makes_missing_mount_points(tmp_path: Path) -> None:
    """The image needs the places of its binds. If they cannot be made, the message says what to do."""
    image, data = tmp_path / "image", tmp_path / "data"
    image.mkdir()
    data.mkdir()
    changes = {"engine": "charliecloud", "image": str(image), "binds": [f"{data}:/mnt/data"]}
    ENGINES["charliecloud"].command(inside(**changes))
    assert (image / "mnt" / "data").is_dir()

    (image / "taken").touch()
    with pytest.raises(OSError, match="the image has no /taken/data to bind there"):
        ENGINES["charliecloud"].command(inside(**{**changes, "binds": [f"{data}:/taken/data"]}))


def test_containers_have_the_name_of_their_run() -> None:
    """It has the token, so that nobody removes the container of another run."""
    assert "gpuqueue-17-1.a4" == container_name(ENV)
    with pytest.raises(OSError, match="no token"):
        container_name({**ENV, "GPUQUEUE_TOKEN": "--privileged"})


def test_what_a_killed_engine_leaves_is_removed() -> None:
    """Engines that store containers, or have a daemon, have a command for it."""
    found = {name: removal(container(engine=name), ENV) for name in ENGINES}

    assert ["docker", "podman"] == sorted(name for name, words in found.items() if words is not None)
    assert all("gpuqueue-17-1.a4" == words[-1] for words in found.values() if words is not None)
    assert removal(None, ENV) is None


def test_signals_go_to_the_first_process_where_it_passes_them_on() -> None:
    """Charliecloud becomes the job, so its processes get their signals as without a container."""
    assert {"podman": True, "docker": True, "apptainer": True, "charliecloud": False} == {
        name: forwards(container(engine=name)) for name in ENGINES
    }
    assert not forwards(None)


def test_a_launcher_takes_no_other_fields() -> None:
    """The fields come from a worker that may be taken over."""
    assert is_valid(container())
    wrong: list[object] = [
        None,
        {},
        {**container(), "more": ["--privileged"]},
        container(engine="sh"),
        container(image="--privileged"),
        container(image=7),
        container(binds=[None]),
        container(devices=['GPU-a",capabilities=all']),
    ]
    assert [] == [each for each in wrong if is_valid(each)]


def test_a_source_that_is_not_for_this_account_is_refused(tmp_path: Path) -> None:
    """The reason names it: an engine with a daemon of root would bind it."""
    with pytest.raises(FileNotFoundError) as raised:
        containers.check_binds([containers.Bind(str(tmp_path / "missing"))])
    assert str(tmp_path / "missing") == raised.value.filename
