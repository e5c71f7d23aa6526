from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.system.command_line import interpreter, missing_program, script_command
from gpuqueue.system.environment import travelling


def test_the_environment_travels_without_the_queues_own_secrets() -> None:
    """A job does not get the addresses of the store and the history, nor variables that the worker sets."""
    environ = {
        "WANDB_API_KEY": "kept",
        "GPUQUEUE_REDIS_URL": "redis://:secret@h",
        "GPUQUEUE_DATABASE_URL": "x",
        "GPUQUEUE_STATE_DIR": "/s",
        "CUDA_VISIBLE_DEVICES": "3",
        "SHLVL": "2",
    }

    assert {"WANDB_API_KEY": "kept", "GPUQUEUE_STATE_DIR": "/s"} == travelling(environ)


def test_a_python_script_runs_with_the_active_environments_python(tmp_path: Path) -> None:
    """A Python script runs with the interpreter of the active environment, as with `python train.py`."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch(mode=0o755)
    (tmp_path / "train.py").touch()

    chosen = interpreter({"VIRTUAL_ENV": str(tmp_path), "PATH": "/usr/bin"})

    assert str(python) == chosen
    assert (chosen, "train.py", "-x") == script_command("train.py", ["-x"], cwd=tmp_path, python=chosen)


def test_an_executable_file_runs_as_it_is(tmp_path: Path) -> None:
    """An executable file runs without an interpreter from gpuqueue."""
    script = tmp_path / "go.sh"
    script.touch(mode=0o755)

    assert (str(script),) == script_command("go.sh", [], cwd=tmp_path, python="python")


@pytest.mark.parametrize("name", ["missing.py", "directory", "text.txt"])
def test_what_cannot_run_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """A missing file, a directory, and a file that is neither .py nor executable are refused."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "text.txt").touch(mode=0o644)

    with pytest.raises(BadRequest, match=Path(name).stem):
        script_command(name, [], cwd=tmp_path, python="python")


def test_passwords_of_the_queues_servers_do_not_travel() -> None:
    """Ada's shell has the passwords of the history and the store, and her job's environment does not get them."""
    environ = {"PGPASSWORD": "p", "REDISCLI_AUTH": "r", "GPUQUEUE_REDIS_URL": "redis://:r@here/0", "HOME": "/home/ada"}

    assert {"HOME": "/home/ada"} == travelling(environ)


def test_the_directories_of_uv_stay_and_its_indexes_travel() -> None:
    """On another machine uv has its own cache and Pythons. Where packages come from is the user's choice."""
    environ = {
        "UV": "/home/ada/.local/bin/uv",
        "UV_CACHE_DIR": "/home/ada/cache",
        "UV_PROJECT_ENVIRONMENT": "/home/ada/envs/x",
        "UV_INDEX": "https://pypi.example.org/simple",
        "UV_OFFLINE": "1",
    }

    assert {"UV_INDEX", "UV_OFFLINE"} == set(travelling(environ, is_far=True))
    assert environ == travelling(environ)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("#!/bin/bash", ("/bin/bash",)),
        ("#!/bin/bash -e", ("/bin/bash", "-e")),
        ("#! /usr/bin/env -S python3 -u", ("/usr/bin/env", "-S python3 -u")),
        ("#!/bin/bash\r", ("/bin/bash",)),
    ],
)
def test_a_script_that_is_not_executable_runs_by_its_first_line(
    tmp_path: Path, first: str, words: tuple[str, ...]
) -> None:
    """As ``sbatch`` does it, a copy without the permission still runs. The kernel takes the rest as one argument."""
    script = tmp_path / "go.sh"
    script.write_text(f"{first}\necho\n", newline="")

    assert (*words, str(script), "a") == script_command("go.sh", ["a"], cwd=tmp_path, python="python")
    assert (*words, "./go.sh") == script_command("go.sh", [], cwd=tmp_path, python="python", travels=True)


def test_a_program_in_place_of_a_script_is_named_with_its_dashes(tmp_path: Path) -> None:
    """The file is missed first, and what helps is the command."""
    with pytest.raises(BadRequest, match=r"no such file: sh .*put it after --: -- sh -x$"):
        script_command("sh", ["-x"], cwd=tmp_path, python="python")
    with pytest.raises(BadRequest, match=r"put it after --$"):
        script_command("no-such-program", ["-x"], cwd=tmp_path, python="python")


def test_a_program_without_the_permission_is_not_called_missing(tmp_path: Path) -> None:
    """It is there, and ``chmod`` helps."""
    (tmp_path / "go.sh").touch(mode=0o644)

    assert "./go.sh is not executable (chmod +x)" == missing_program(("./go.sh",), cwd=str(tmp_path), env={})
    assert f"./gone.sh is not in {tmp_path}" == missing_program(("./gone.sh",), cwd=str(tmp_path), env={})
