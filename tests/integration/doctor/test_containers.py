"""What the doctor says about the container engine of a host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.settings.settings import Settings
from workers.doctor.containers import containers


def found(root: Path, setting: str, **more: str) -> list[Finding]:
    """Return the findings on a host with this setting, whose system files are below *root*."""
    environ = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_CONTAINER_ENGINE": setting}
    return list(containers(Settings.load({**environ, **more}), root))


def put(root: Path, path: str, text: str = "") -> None:
    """Write a file below *root*."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def engine(root: Path, name: str, words: str = "") -> str:
    """Return a setting that names an engine whose program is there, and runs *words* of a shell."""
    put(root, "bin/engine", f"#!/bin/sh\n{words}\n")
    (root / "bin/engine").chmod(0o755)
    return f"{name}={root}/bin/engine"


def test_without_the_setting_nothing_is_said(tmp_path: Path) -> None:
    """Most sites run no containers."""
    assert [] == found(tmp_path, "")


def test_a_missing_engine_is_a_problem(tmp_path: Path) -> None:
    """No job with a container starts, and the remedy names the setting."""
    (finding,) = found(tmp_path, f"podman={tmp_path}/missing")

    assert Grade.PROBLEM is finding.grade
    assert "setting container_engine" in str(finding.remedy)


@pytest.mark.parametrize(
    ("name", "words"),
    [("docker", "its daemon answers; no container was started"), ("apptainer", "has started a container, without")],
)
def test_an_engine_that_works_is_named(tmp_path: Path, name: str, words: str) -> None:
    """The finding says what was tried and what was not."""
    (finding,) = found(tmp_path, engine(tmp_path, name))

    assert Grade.OK is finding.grade
    assert finding.seen.startswith(f"{name} is {tmp_path}/bin/engine, and ")
    assert words in finding.seen


@pytest.mark.parametrize("name", ["podman", "docker", "apptainer", "charliecloud"])
def test_an_engine_that_starts_no_container_is_a_problem(tmp_path: Path, name: str) -> None:
    """The finding has its last words. Nothing of the trial is left."""
    asked = tmp_path / "asked"
    (finding,) = [
        finding
        for finding in found(tmp_path, engine(tmp_path, name, f'echo "$@" >> {asked}; echo no cgroups >&2; exit 126'))
        if finding.grade is Grade.PROBLEM
    ]

    assert "starts no container as" in finding.seen
    assert finding.seen.endswith(": no cgroups")
    trees = [word for word in asked.read_text().split() if word.endswith("/tree")]
    assert (name != "docker") == bool(trees)
    assert [] == [tree for tree in trees if Path(tree).exists()]


@pytest.mark.full
def test_a_real_engine_starts_the_smallest_container(tmp_path: Path) -> None:
    """It needs no image: the programs of this host do. Podman without root was tried by hand, with crun and runc."""
    if shutil.which("ch-run", path="/usr/bin:/bin") is None:
        pytest.skip("needs ch-run (apt install charliecloud)")

    (finding,) = found(tmp_path, "charliecloud")

    assert Grade.OK is finding.grade, finding.seen
    assert finding.seen.endswith("has started a container, without an image and without a GPU")


def test_an_engine_that_hangs_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor does not wait for it."""
    monkeypatch.setattr("workers.doctor.containers.TRIAL_S", 0.2)

    (finding,) = found(tmp_path, engine(tmp_path, "apptainer", "exec sleep 60"))

    assert Grade.PROBLEM is finding.grade
    assert "it did not end within" in finding.seen


@pytest.mark.parametrize("path", ["proc/sys/user/max_user_namespaces", "proc/sys/kernel/unprivileged_userns_clone"])
def test_a_kernel_without_user_namespaces_is_named(tmp_path: Path, path: str) -> None:
    """Charliecloud and Podman need them."""
    put(tmp_path, path, "0\n")

    finding, _ = found(tmp_path, engine(tmp_path, "charliecloud"))

    assert Grade.WARNING is finding.grade
    assert f"/{path}" in finding.seen


def test_in_system_mode_the_engine_that_needs_no_helper_is_named(tmp_path: Path) -> None:
    """Podman needs a set-user-ID program for accounts with further ids."""
    system = {"GPUQUEUE_RUN_AS": "submitter", "GPUQUEUE_LAUNCHER": "/run/gpuqueue-launcher/launcher.sock"}

    finding, untried = found(tmp_path, engine(tmp_path, "podman"), **system)

    assert Grade.NOTE is finding.grade
    assert "set container_engine to charliecloud" in str(finding.remedy)
    assert Grade.NOTE is untried.grade
    assert "no container was started" in untried.seen


def test_gpus_without_a_description_are_a_problem(tmp_path: Path) -> None:
    """Podman finds devices by the files of CDI."""
    put(tmp_path, "dev/nvidiactl")
    setting = engine(tmp_path, "podman")
    assert any("nvidia-ctk cdi generate" in str(each.remedy) for each in found(tmp_path, setting))

    put(tmp_path, "etc/cdi/nvidia.yaml")
    assert not any("nvidia-ctk" in str(each.remedy) for each in found(tmp_path, setting))


@pytest.mark.parametrize("setting", ["rkt", "podman=bin/podman", "podman --privileged", "=x"])
def test_other_settings_are_refused(tmp_path: Path, setting: str) -> None:
    """The message has the names that are known."""
    with pytest.raises(BadRequest, match="apptainer"):
        found(tmp_path, setting)
