"""Tests that docker-compose.yml is valid and agrees with docs/howto/docker.md. They need no Docker."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuqueue.settings.settings import SYSTEM_SOCKET, Settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
PLACE = re.compile(r"\$\{(\w+)(:-|:\?)([^}]*)\}")

Service = dict[str, Any]


def services() -> dict[str, Service]:
    """Return the services with their YAML anchors resolved."""
    found: dict[str, Service] = YAML(typ="safe", pure=True).load(COMPOSE)["services"]
    return found


def workers() -> dict[str, Service]:
    """Return the services that run jobs."""
    return {name: service for name, service in services().items() if name.startswith("worker-")}


def ours() -> dict[str, Service]:
    """Return the services that run one of gpuqueue's own programs."""
    return {name: service for name, service in services().items() if service["image"] == "gpuqueue:local"}


def devices(worker: Service) -> list[dict[str, Any]]:
    """Return the devices of a worker's container."""
    found: list[dict[str, Any]] = worker["deploy"]["resources"]["reservations"]["devices"]
    return found


def needs(service: Service) -> dict[str, str]:
    """Return the services that this one waits for, with the condition of each."""
    return {name: wait["condition"] for name, wait in service.get("depends_on", {}).items()}


def test_compose_follows_the_schema() -> None:
    """The file follows the JSON schema of the Compose specification, which check-jsonschema provides."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_acknowledged_jobs_survive_the_store() -> None:
    """The store writes every job to the disk before it answers, never evicts one, and publishes no port."""
    store = services()["store"]

    assert "--appendonly yes" in store["command"]
    assert "--appendfsync always" in store["command"]
    assert "--maxmemory-policy noeviction" in store["command"]
    assert "store:/data" in store["volumes"]
    assert "ports" not in store


@pytest.mark.parametrize("name", sorted(ours()))
def test_each_service_waits_for_what_it_needs(name: str) -> None:
    """The migration waits for the database; all other services wait for a healthy store and the tables."""
    expected = (
        {"db": "service_healthy"}
        if name == "migrate"
        else {"store": "service_healthy", "migrate": "service_completed_successfully"}
    )

    assert needs(ours()[name]) == expected


def test_what_is_waited_for_can_happen() -> None:
    """A service that must be healthy has a health check; one that must have completed never restarts."""
    everything = services()
    waits = {pair for service in everything.values() for pair in needs(service).items()}

    assert waits
    for name, condition in waits:
        if condition == "service_healthy":
            assert everything[name]["healthcheck"]["test"]
        else:
            assert everything[name]["restart"] == "no"


@pytest.mark.parametrize("name", sorted(services()))
def test_logs_are_rotated(name: str) -> None:
    """Docker keeps a bounded part of the output of each container."""
    options = services()[name]["logging"]["options"]

    assert ("json-file", {"max-size": "10m", "max-file": "3"}) == (services()[name]["logging"]["driver"], options)


@pytest.mark.parametrize("name", sorted(set(services()) - {"migrate"}))
def test_each_service_has_a_health_check_that_can_be_run(name: str) -> None:
    """Each container that stays has a health check; a check with a program of ours is one that the program takes."""
    check = services()[name]["healthcheck"]
    words = [word for word in check["test"][1:] if word != "env" and not word.startswith("GPUQUEUE_")]

    assert {"CMD", "CMD-SHELL"} >= {check["test"][0]}
    assert {"test", "interval", "timeout", "start_period"} <= set(check)
    if name in ours():
        assert words[0] in {"gpuqueue", "gpuqueue-worker"}
        installed = Path(sys.executable).with_name(words[0])
        done = subprocess.run([str(installed), *words[1:], "--help"], capture_output=True, check=False, timeout=60)
        assert 0 == done.returncode, done.stderr


def test_people_reach_the_service_and_nothing_else() -> None:
    """The service's socket is where the host's commands look for it, with the host's accounts; no port is published."""
    service = services()["service"]

    assert "gpuqueue serve" == service["command"]
    assert f"{Path(SYSTEM_SOCKET).parent}:{Path(SYSTEM_SOCKET).parent}" in service["volumes"]
    assert {"/etc/passwd:/etc/passwd:ro", "/etc/group:/etc/group:ro"} <= set(service["volumes"])
    assert "${GPUQUEUE_USER_ID:-10001}" == service["user"]  # a name would be looked for in the host's file
    assert f"unix://{SYSTEM_SOCKET}" in str(service["healthcheck"]["test"])
    assert {"pid", "userns_mode", "privileged", "network_mode"}.isdisjoint(service)
    assert not any("ports" in each for each in services().values())


@pytest.mark.parametrize("name", sorted(workers()))
def test_worker_sees_the_pids_of_the_host(name: str) -> None:
    """A worker shares the host's pid namespace and has no init.

    Without the host's pids, GPU memory cannot be attributed to jobs.
    """
    worker = workers()[name]

    assert worker["pid"] == "host"
    assert "init" not in worker
    assert "ipc" not in worker
    assert "shm_size" in worker
    assert worker["restart"] == "unless-stopped"
    assert {volume.rpartition(":")[2] for volume in worker["volumes"]} == {"/var/lib/gpuqueue", "/work"}


def test_one_device_for_each_worker() -> None:
    """Each worker of the profile per-gpu has one card of its own."""
    given = [(worker["command"], devices(worker)) for worker in workers().values() if worker["profiles"] == ["per-gpu"]]
    ids = [device["device_ids"] for _, reserved in given for device in reserved]

    assert ids == [["0"], ["1"]]
    assert all(len(reserved) == 1 for _, reserved in given)
    names = [worker["environment"]["GPUQUEUE_HOST"][-5:] for worker in workers().values()]
    assert names[:2] == ["-gpu0", "-gpu1"]
    assert all(device["capabilities"] == ["gpu"] for _, reserved in given for device in reserved)
    assert {command for command, _ in given} == {"gpuqueue-worker host --devices gpu --no-recorder"}


def test_all_gpus_is_the_other_choice() -> None:
    """The profile all-gpus has one container with every card, and each worker is in exactly one profile."""
    whole = workers()["worker-all-gpus"]

    assert whole["command"] == "gpuqueue-worker host --devices gpu --no-recorder"
    assert devices(whole) == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert [worker["profiles"] for worker in workers().values()] == [["per-gpu"], ["per-gpu"], ["all-gpus"]]


def test_no_password_in_the_file() -> None:
    """The password comes from .env, each use fails without it, and no URL contains one."""
    text = "\n".join(
        line.split(" #")[0] for line in COMPOSE.read_text().splitlines() if not line.lstrip().startswith("#")
    )
    passwords = [(how, rest) for name, how, rest in PLACE.findall(text) if name == "POSTGRES_PASSWORD"]

    assert passwords == [(":?", "set POSTGRES_PASSWORD in .env")] * 2
    assert re.findall(r"PASSWORD: (.{20})", text) == ["${POSTGRES_PASSWORD:"] * 2
    assert not re.search(r"://[^/\s]*:[^/\s]*@", text)
    assert "${" not in PLACE.sub("", text)


@pytest.mark.parametrize("name", sorted(ours()))
def test_environment_is_what_settings_read(name: str) -> None:
    """Every GPUQUEUE_ variable of a container is a setting, and the settings accept its value."""
    given = {"GPUQUEUE_HOST": "gpu-server", "GPUQUEUE_NOTIFY": "team=json://secret"}
    environ = {key: PLACE.sub(given.get(key, "secret"), value) for key, value in ours()[name]["environment"].items()}
    settings = Settings.load(environ)
    read = {origin.removeprefix("environment ") for origin in settings.origins.values() if origin != "default"}

    assert read == {key for key in environ if key.startswith("GPUQUEUE_")}
    assert "/var/lib/gpuqueue" == str(settings.state_dir)
    assert settings.host.startswith("gpu-server")
    assert not settings.embedded


def test_volumes_are_declared() -> None:
    """Each named volume that a service mounts is declared, and each declared volume is mounted."""
    declared = YAML(typ="safe", pure=True).load(COMPOSE)["volumes"]
    mounted = {volume.split(":")[0] for service in services().values() for volume in service.get("volumes", [])}

    assert {name for name in mounted if re.fullmatch(r"\w+", name)} == set(declared)


@pytest.mark.parametrize("command", sorted({service["command"] for service in ours().values()}))
def test_command_is_one_that_the_programs_take(command: str) -> None:
    """The installed program accepts the command and the options of the file."""
    program, *arguments = shlex.split(command)
    installed = Path(sys.executable).with_name(program)
    if not installed.exists() and not os.environ.get("CI"):
        pytest.skip(f"{program} is not installed beside this Python")
    done = subprocess.run(
        [str(installed), *arguments, "--help"], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
