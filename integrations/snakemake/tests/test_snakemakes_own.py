"""Snakemake's own tests of executor plug-ins: a workflow of single jobs, and one of groups, on a real queue."""

from __future__ import annotations

import pytest
from site_of_one import Site
from snakemake.common.tests import TestWorkflowsLocalStorageBase
from snakemake.settings.types import ResourceSettings

pytestmark = pytest.mark.filterwarnings("default")  # of Snakemake, which is not ours


class TestOfSnakemake(TestWorkflowsLocalStorageBase):
    """The tests are inherited."""

    __test__ = True

    @pytest.fixture(autouse=True)
    def _queue(self, running_queue: Site) -> None:
        """Let this process use a queue of one simulated GPU."""

    def get_executor(self) -> str:
        """Return the name of the plug-in."""
        return "gpuqueue"

    def get_executor_settings(self) -> None:
        """Return no settings: the plug-in has none."""

    def get_resource_settings(self) -> ResourceSettings:
        """Return that the rules of these workflows, which ask for no GPU, get some memory of one."""
        return ResourceSettings(default_resources={"gpuqueue_mem": "64M", "mem": "100MB"})
