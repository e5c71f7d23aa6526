"""Tests of the values of options, and of commands that are refused where the machine has a service."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest

from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.own_queue import refuse_beside_service
from gpuqueue.client import Client
from gpuqueue.errors import Refused, ServiceUnreachable
from gpuqueue.settings.settings import Settings


@pytest.mark.parametrize("text", ["17_2", "1_0", "٢", "²", "", " ", "1e3", "0x1", "--1"])
def test_a_number_has_digits_only(text: str) -> None:
    """``history --array 10_7`` once listed the members of array 107, since Python reads 10_7 as 107."""
    with pytest.raises(click.BadParameter):
        Count().convert(text, None, None)


@pytest.mark.parametrize(("text", "number"), [("17", 17), ("+3", 3), (" 4 ", 4)])
def test_a_number_is_read(text: str, number: int) -> None:
    """Other ways to write a number are read as before."""
    assert number == Count().convert(text, None, None)


def test_up_starts_no_second_queue_beside_the_one_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine has a service, ``gpuqueue up`` is refused and says what the administrator types."""
    path = tmp_path / "run" / "api.sock"
    monkeypatch.setattr("gpuqueue.settings.settings.SYSTEM_SOCKET", str(path))
    settings = Settings.load({"GPUQUEUE_CONFIG": "/dev/null"})
    refuse_beside_service(settings, "up")
    path.parent.mkdir()
    with pytest.raises(Refused, match="gpuqueue up is for its administrator: sudo -u gpuqueue"):
        refuse_beside_service(settings, "up")
    own = Settings.load({"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_STATE_DIR": str(tmp_path)})
    refuse_beside_service(own, "up")
    refuse_beside_service(replace(settings, url=f"unix://{path}"), "up")


def test_a_service_that_is_down_is_still_the_queue_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it was stopped, people got the messages of a queue of their own, and could have started one."""
    monkeypatch.setattr("gpuqueue.settings.settings.SYSTEM_SOCKET", str(tmp_path / "api.sock"))
    client = Client(Settings.load({"GPUQUEUE_CONFIG": "/dev/null"}))

    with pytest.raises(ServiceUnreachable, match="Ask the administrator to start it"):
        client.jobs.list()
