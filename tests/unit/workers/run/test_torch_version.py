"""Tests of the version of torch that an interpreter would import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.run import environment
from workers.run.environment import torch_version_of


def venv(place: Path, *versions: str, config: str = "include-system-site-packages = false\n") -> str:
    """Create a fake virtual environment with these torch versions, and return an interpreter that cannot run."""
    packages = place / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    for version in versions:
        (packages / f"torch-{version}.dist-info").mkdir()
    (place / "pyvenv.cfg").write_text(config)
    (place / "bin").mkdir()
    python = place / "bin" / "python"
    python.symlink_to("/no/such/python")
    return str(python)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.9.1", (2, 9)),
        ("2.10.0", (2, 10)),
        ("2.10.0a0+b558c986e8.nv25.11", (2, 9)),
        ("2.11.0.dev20260101+cu130", (2, 10)),
        ("2.10.0rc3", (2, 9)),
        ("1.13.1", (1, 13)),
        ("nonsense", None),
    ],
)
def test_a_closed_environment_is_read_without_running_anything(
    tmp_path: Path, version: str, expected: tuple[int, int] | None
) -> None:
    """The version is read from the files of a closed environment, without its interpreter, which cannot run here.

    A pre-release counts as the version before it.
    """
    assert expected == torch_version_of(venv(tmp_path, version))


def test_no_torch_and_leftovers_of_two(tmp_path: Path) -> None:
    """Without torch the version is None.

    Of two versions the older counts, because it fails with the variable of the newer.
    """
    assert torch_version_of(venv(tmp_path / "none")) is None
    assert (2, 9) == torch_version_of(venv(tmp_path / "two", "2.13.0", "2.9.0"))


def test_torchvision_is_not_torch(tmp_path: Path) -> None:
    """A package whose name starts with torch is not torch."""
    python = venv(tmp_path)
    (tmp_path / "lib" / "python3.12" / "site-packages" / "torch_geometric-2.99.0.dist-info").mkdir()

    assert torch_version_of(python) is None


def asking(place: Path, *versions: str) -> tuple[str, dict[str, str]]:
    """Return a real interpreter that must be run, and an environment in which it finds these torch versions."""
    place.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (place / f"torch-{version}.dist-info").mkdir()
        (place / f"torch-{version}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
    return sys.executable, {"PYTHONPATH": str(place)}


def test_an_open_environment_is_asked(tmp_path: Path) -> None:
    """With a PYTHONPATH the interpreter is run, because the files of the environment are incomplete."""
    assert (2, 7) == torch_version_of(*asking(tmp_path, "2.7.1"))


def test_an_upgrade_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is valid as long as its source files exist."""
    python, env = asking(tmp_path, "2.13.0")
    assert (2, 13) == torch_version_of(python, env)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", None)  # the interpreter is not run again
        assert (2, 13) == torch_version_of(python, env)

    (tmp_path / "torch-2.13.0.dist-info" / "METADATA").unlink()
    (tmp_path / "torch-2.13.0.dist-info").rmdir()
    asking(tmp_path, "2.9.0")

    assert (2, 9) == torch_version_of(python, env)


def test_a_torch_that_comes_later_is_seen_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing answer expires.

    Regression: a busy disk, or a torch that was not installed yet, disabled the cap until a restart.
    """
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntest -e {tmp_path}/installed && printf '2.11.0\\n{tmp_path}\\n'\n")
    python.chmod(0o755)
    assert torch_version_of(str(python)) is None
    (tmp_path / "installed").touch()

    assert torch_version_of(str(python)) is None  # not asked again for each job
    monkeypatch.setattr(environment, "AGAIN_S", 0.0)

    assert (2, 11) == torch_version_of(str(python))


def test_only_so_many_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of cached answers is limited, and the oldest is dropped.

    Each job may have its own PYTHONPATH, and a worker runs for months.
    """
    monkeypatch.setattr(environment, "MAX_ANSWERS", 2)
    monkeypatch.setattr(environment, "_answers", {})

    for number in (7, 8, 9):
        assert (2, number) == torch_version_of(*asking(tmp_path / str(number), f"2.{number}.0"))

    assert [(2, 8), (2, 9)] == [answer[0] for answer, _ in environment._answers.values() if answer is not None]


@pytest.mark.parametrize("script", ["exit 1", "echo what", "sleep 60", "kill -9 $$"])
def test_an_interpreter_that_does_not_answer_is_no_trouble(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that fails or hangs gives an unknown version in bounded time."""
    monkeypatch.setattr("workers.run.environment.ASK_S", 0.5)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script.replace('sleep', 'exec sleep')}\n")
    python.chmod(0o755)

    assert torch_version_of(str(python)) is None
    assert torch_version_of(str(tmp_path / "missing")) is None


def test_this_very_interpreter() -> None:
    """The version of the running interpreter's torch matches the package metadata."""
    metadata = pytest.importorskip("importlib.metadata")
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        pytest.skip("torch is not installed here")

    assert tuple(int(word) for word in version.split(".")[:2]) == torch_version_of(sys.executable, dict(os.environ))
