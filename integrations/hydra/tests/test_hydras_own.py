"""Hydra's own tests of launchers, with the real Hydra and a real queue."""

from __future__ import annotations

import pytest
from hydra.test_utils.launcher_common_tests import BatchedSweeperTestSuite, IntegrationTestSuite, LauncherTestSuite

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("running_queue")]

LAUNCHER = "hydra/launcher=gpuqueue"
MEM = "hydra.launcher.mem=1M"


@pytest.fixture
def launcher_name() -> str:
    """Return the name of our launcher, for Hydra's tests."""
    return "gpuqueue"


@pytest.fixture
def overrides(request: pytest.FixtureRequest) -> list[str]:
    """Return the overrides that each of Hydra's tests adds to its own: it changes the list."""
    return [MEM, *getattr(request.cls, "more", ())]


class TestLauncher(LauncherTestSuite):
    """What every launcher must do."""


class TestBatches(BatchedSweeperTestSuite):
    """What it must do for a sweeper that launches several times."""

    more = ("hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2")


@pytest.mark.parametrize(("task_launcher_cfg", "extra_flags"), [({}, ["-m", LAUNCHER, MEM])])
class TestIntegration(IntegrationTestSuite):
    """What it must do for programs of users: names, directories, paths."""
