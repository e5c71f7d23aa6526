"""Which paths of the store are read as logs of this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpuqueue.client.run_logs import own_log
from gpuqueue.model.run import Run
from gpuqueue.settings.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of host `here`."""
    return Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_HOST": "here"})


@pytest.fixture
def run(settings: Settings) -> Run:
    """Return a run of host `here` with a log."""
    path = settings.runs_dir / "7" / "1.abc" / "log"
    path.parent.mkdir(parents=True)
    path.touch()
    return Run(
        job_id=7,
        attempt=1,
        token="1.abc",
        host="here",
        worker="w",
        devices=(),
        claimed_at=datetime.now(timezone.utc),
        log_path=str(path),
    )


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_the_log_of_a_run_is_in_its_directory(settings: Settings, run: Run, host: str) -> None:
    """A host that shares the directory of the runs has its logs there, too."""
    assert own_log(settings, replace(run, host=host)) == Path(run.log_path or "")


@pytest.mark.parametrize("host", ["here", "elsewhere"])
@pytest.mark.parametrize(
    "path",
    [
        "/etc/gpuqueue/config.toml",
        "{runs}/../history.db",
        "{runs}/8/1.abc/log",
        "{runs}/7/1.other/log",
        "{runs}/7/1.abc/spec",
        "{runs}/7/../7/1.abc/log",
    ],
)
def test_the_service_opens_no_other_file_that_the_store_names(
    settings: Settings, run: Run, host: str, path: str
) -> None:
    """Each worker host can write to the store, and the service can read settings and history, which a host cannot."""
    named = replace(run, host=host, log_path=path.format(runs=settings.runs_dir))

    assert None is own_log(settings, named)
