"""The line of ``gpuqueue notebook`` for a browser on another machine."""

from __future__ import annotations

import pytest

from gpuqueue.cli.commands.notebook import way_there


@pytest.mark.parametrize(
    ("service", "line"),
    [
        (None, "ssh -N -L 8899:127.0.0.1:8899 gpu1"),
        ("unix:///run/gpuqueue/api.sock", "ssh -N -L 8899:127.0.0.1:8899 gpu1"),
        ("https://gpu.example.org:8443", "gpuqueue forward 17 8899"),
    ],
)
def test_no_ssh_is_needed_where_the_service_is_reached(service: str | None, line: str) -> None:
    assert line == way_there(service, 17, "gpu1", "8899")
