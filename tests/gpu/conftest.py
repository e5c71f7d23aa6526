"""The machine on which the tests of this directory run: this one with its GPUs, or the fake driver's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake_driver.fake_driver import FakeGpus, build, compiler
from fake_driver.far_backend import FarBackend
from machine_with_cards import Machine
from site_of_one import Site

from gpuqueue.text.units import GIB
from workers.devices.nvml import NvmlBackend


@pytest.fixture
def card_environ() -> dict[str, str]:
    """Return the environment for a real GPU, which is empty; skip where there is none."""
    backend = NvmlBackend.probe()  # a broken driver raises here, which is no reason to skip
    if backend is None or not backend.count():
        pytest.skip("NVML finds no GPU")
    return {}


@pytest.fixture(scope="session")
def _fake_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C compiler to build the fake driver with")
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def fake_environ(_fake_libraries: Path, tmp_path: Path) -> dict[str, str]:
    """Return the environment in which the fake driver shows two 24 GiB cards."""
    return FakeGpus.create(tmp_path / "gpus", (24 * GIB, 24 * GIB)).environ(_fake_libraries)


@pytest.fixture(params=[pytest.param("card", marks=pytest.mark.gpu), "fake"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Return this machine with its real cards, and then with the fake driver's cards."""
    environ = request.getfixturevalue(f"{request.param}_environ")
    with closing(FarBackend("gpu", environ)) as backend:
        yield Machine(real=request.param == "card", environ=environ, backend=backend)


@pytest.fixture
def gpu_site(machine: Machine, tmp_path: Path, store_url: str) -> Iterator[Site]:
    """Return a site that serves the machine's GPUs, with a recorder and no worker yet."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_DEVICES="gpu", GPUQUEUE_KILL_GRACE="0.5s")
    made.environ.update(machine.environ)
    made.start_recorder()
    yield made
    made.stop()
