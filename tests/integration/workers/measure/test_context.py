"""Tests of the measured CUDA context, on the fake driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_driver.fake_driver import FakeGpus, build, compiler
from fake_driver.far_backend import FarBackend

from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB, MIB
from workers.measure import context
from workers.measure.context import known_bytes, with_context

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the fake driver with")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Return two cards of two models, which the programs of this process see."""
    fake = FakeGpus.create(tmp_path / "state", (8 * GIB, 16 * GIB), context_bytes=300 * MIB)
    for name, value in fake.environ(build(tmp_path)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(context, "_driver_version", lambda: "550.1")
    return fake


@pytest.fixture
def backend(fake: FakeGpus, tmp_path: Path) -> Iterator[FarBackend]:
    """Return the backend that a worker would use."""
    with contextlib.closing(FarBackend("gpu", fake.environ(build(tmp_path)))) as made:
        yield made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a host without runs."""
    return Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path / "state_dir")})


def test_a_context_is_measured_once_for_each_driver(
    fake: FakeGpus, backend: FarBackend, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker measures what a context takes; later ones read that, until the driver has another version."""
    device = backend.devices()[0]
    assert 300 * MIB == with_context(settings, backend, device).context_bytes
    assert {} == backend.reading(device).processes

    fake.state.gpus[0].context = 400 * MIB
    assert 300 * MIB == with_context(settings, backend, device).context_bytes
    monkeypatch.setattr(context, "_driver_version", lambda: "560.2")
    assert 400 * MIB == with_context(settings, backend, device).context_bytes


def test_a_card_in_use_is_measured_later(fake: FakeGpus, backend: FarBackend, settings: Settings) -> None:
    """Nothing is measured on a card where a process is, and nothing is written down."""
    device = backend.devices()[0]
    fake.hold(0, 4_000_001, GIB, always_alive=True)
    assert device == with_context(settings, backend, device)
    fake.let_go(0, 4_000_001)
    assert 300 * MIB == with_context(settings, backend, device).context_bytes


def test_the_largest_context_of_a_run_counts(fake: FakeGpus, backend: FarBackend, settings: Settings) -> None:
    """A run on cards of several models has the largest context of them; it is unknown if one was not measured."""
    fake.state.gpus[1].context = 500 * MIB
    first, second = backend.devices()
    with_context(settings, backend, first)
    assert (300 * MIB, None) == (
        known_bytes(settings, [first.name]),
        known_bytes(settings, [first.name, second.name]),
    )
    with_context(settings, backend, second)
    assert 500 * MIB == known_bytes(settings, [first.name, second.name])


def test_a_process_that_the_driver_does_not_list_is_asked_for_again(
    backend: FarBackend, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker in a container asks at each start, until the container has the pids of its host.

    The state directory outlives the container: a device that was written down as not listed stayed so after the remedy.
    """
    device, reading = backend.devices()[0], backend.reading
    with monkeypatch.context() as in_container:
        in_container.setattr(backend, "reading", lambda _: replace(reading(device), processes={}))
        assert with_context(settings, backend, device).unlisted
        assert known_bytes(settings, [device.name]) is None

    found = with_context(settings, backend, device)

    assert not found.unlisted
    assert found.context_bytes == known_bytes(settings, [device.name]) is not None


def test_a_driver_that_makes_no_context_in_time_is_tried_once(
    backend: FarBackend, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of the other cards do not wait for it again, and nothing is said about its list of processes."""
    tries = tmp_path / "tries"
    program = tmp_path / "hangs.py"
    program.write_text(f"import sys\nopen({str(tries)!r}, 'a').write('.')\nsys.stdin.read()\n")
    monkeypatch.setattr(context, "PROGRAM", program)
    monkeypatch.setattr(context, "READY_S", 0.5)
    device = backend.devices()[0]

    assert [device, device] == [with_context(settings, backend, device) for _ in range(2)]
    assert known_bytes(settings, [device.name]) is None
    assert len(tries.read_text() if tries.exists() else "") <= 1


def test_a_site_with_mps_measures_none(backend: FarBackend, settings: Settings) -> None:
    """With MPS the contexts are in its server, so none is measured."""
    with_mps = replace(settings, mps=True)
    assert with_context(with_mps, backend, device := backend.devices()[0]) == device
