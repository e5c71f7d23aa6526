"""A card that fails or hangs takes no other card with it: it is listed as closed, and served when it answers."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from bounded import until
from fake_driver.fake_driver import UNKNOWN, FakeGpus, build, compiler
from own_home import Home

from gpuqueue.text.units import GIB

pytestmark = [pytest.mark.full, pytest.mark.skipif(compiler() is None, reason="no C compiler for the fake driver")]

#: The words of the driver's error 999, and of a card that hangs.
FAILED, HANGS = r"closed: the NVIDIA driver failed .*\(NVML error 999\)", r"closed: GPU 1 (is stale|has not answered)"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeGpus]:
    """Return the state of a fake driver with four cards."""
    made = FakeGpus.create(tmp_path / "gpus", (24 * GIB,) * 4)
    yield made
    made.state.gpus[1].hang = made.state.gpus[1].error = 0  # a process in a call that hangs does not end


@pytest.fixture
def machine(home: Home, fake: FakeGpus, tmp_path: Path) -> Iterator[Home]:
    """Return a machine with these cards; nothing runs there yet."""
    home.environ |= {"GPUQUEUE_HEARTBEAT": "0.5s", "GPUQUEUE_POLL": "0.5s", "GPUQUEUE_HEADROOM": "0"}
    home.environ |= fake.environ(build(tmp_path))
    yield home
    fake.state.gpus[1].hang = 0


def devices(machine: Home) -> dict[str, Any]:
    """Return the devices of the queue by UUID."""
    return {each["device"]["uuid"]: each for each in json.loads(machine.output_of("gpus", "--json"))}


def worker_of(uuid: str) -> int | None:
    """Return the pid of the worker of the device *uuid*."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "run" in words and words[words.index("run") :][3:5] == ["--device", uuid]:
            return int(process.pid)
    return None


def submit(machine: Home, gate: Path, card: int) -> str:
    """Submit a job that runs on *card* until *gate* is there, and wait for its start."""
    script = f"echo $$ >> {gate}.pids; while [ ! -e {gate} ]; do sleep 0.05; done"
    others = [f"{machine.state.name}:{each}" for each in range(4) if each != card]
    for other in others:
        machine("drain", other)
    job = machine("submit", "--mem", "1G", "--", "sh", "-c", script).split()[0]
    until(lambda: gate.with_name(f"{gate.name}.pids").exists(), what="the start of the job")
    for other in others:
        machine("resume", other)
    return job


def restarted(uuid: str) -> int:
    """Kill the worker of the device *uuid*, and return the pid of the next one."""
    first = until(lambda: worker_of(uuid), what=f"the worker of {uuid}")
    os.kill(first, signal.SIGKILL)
    return until(lambda: (pid := worker_of(uuid)) is not None and pid != first and pid, what="the next worker") or 0


@pytest.mark.parametrize(("fault", "value", "words"), [("error", UNKNOWN, FAILED), ("hang", 1, HANGS)])
def test_a_card_that_never_answered_is_closed_and_served_when_it_answers(
    machine: Home, fake: FakeGpus, tmp_path: Path, fault: str, value: int, words: str
) -> None:
    """The other cards are served, ``up`` and ``gpus`` name the card, and a killed worker of another card comes back."""
    setattr(fake.state.gpus[1], fault, value)

    started = machine("up")

    closed = f"card-1-{machine.state.name}"
    assert re.search(words, re.sub(r"\s+", " ", started)), started
    assert {fake.uuid(0), closed, fake.uuid(2), fake.uuid(3)} == set(devices(machine))
    assert re.search(words, re.sub(r"\s+", " ", machine("gpus")))
    assert "✗ device 1" in machine.output_of("doctor")

    job = submit(machine, tmp_path / "gate", 0)
    before = devices(machine)[fake.uuid(0)]["worker"]
    restarted(fake.uuid(0))
    until(lambda: devices(machine)[fake.uuid(0)]["worker"] != before, what="the next worker announced")
    setattr(fake.state.gpus[1], fault, 0)
    until(lambda: devices(machine).get(fake.uuid(1), {}).get("slots"), what="card 1 is served", timeout_s=120)
    until(lambda: closed not in devices(machine), what="the unknown GPU is gone")
    (tmp_path / "gate").touch()
    machine("wait", job)

    assert 1 == len((tmp_path / "gate.pids").read_text().split())


@pytest.mark.parametrize(("fault", "value", "words"), [("error", UNKNOWN, FAILED), ("hang", 1, HANGS)])
def test_a_known_card_that_fails_when_its_worker_restarts_keeps_its_job(
    machine: Home, fake: FakeGpus, tmp_path: Path, fault: str, value: int, words: str
) -> None:
    """The card keeps its name and its job, takes no other, and goes on when it answers."""
    machine("up")
    job = submit(machine, tmp_path / "gate", 1)
    before = devices(machine)[fake.uuid(1)]["worker"]
    setattr(fake.state.gpus[1], fault, value)

    restarted(fake.uuid(1))
    until(lambda: devices(machine)[fake.uuid(1)]["worker"] != before, what="the next worker announced")

    assert re.search(words, re.sub(r"\s+", " ", machine("gpus")))
    assert [int(job)] == devices(machine)[fake.uuid(1)]["jobs"]
    setattr(fake.state.gpus[1], fault, 0)
    until(lambda: devices(machine)[fake.uuid(1)]["slots"], what="card 1 is served", timeout_s=120)
    (tmp_path / "gate").touch()
    machine("wait", job)
    assert 1 == len((tmp_path / "gate.pids").read_text().split())


def test_a_card_that_is_left_out_is_not_asked(machine: Home, fake: FakeGpus) -> None:
    """``--devices gpu:0,2,3`` serves the others, and doctor still reports the card."""
    fake.state.gpus[1].hang = 1
    machine.environ["GPUQUEUE_DEVICES"] = "gpu:0,2,3"

    machine("up")

    assert {fake.uuid(card) for card in (0, 2, 3)} == set(devices(machine))
    assert all(each["trouble"] is None for each in devices(machine).values())
