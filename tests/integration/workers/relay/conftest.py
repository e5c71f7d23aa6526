"""A small service and the settings of a host that uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_service import TOKEN, HostService, host_service

from gpuqueue.settings.settings import Settings


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HostService]:
    """Return a running service."""
    with host_service(tmp_path / "service") as made:
        yield made


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return the file with the token of the host."""
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def settings(tmp_path: Path, service: HostService, token_file: Path) -> Settings:
    """Return the settings of a host of the service."""
    (tmp_path / "host").mkdir()
    return Settings.load(
        {
            "GPUQUEUE_STATE_DIR": str(tmp_path / "host"),
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_HOST": "gpu2",
            "GPUQUEUE_SERVICE_URL": service.url,
            "GPUQUEUE_SERVICE_TOKEN_FILE": str(token_file),
        }
    )
