"""An error of the system that names no file, and a clock that is far off, give a line that says where and what."""

from __future__ import annotations

import errno
import sys
import time

import click
import pytest

from gpuqueue.console import run
from gpuqueue.embedded.machine import Machine
from gpuqueue.errors import Refused
from gpuqueue.settings.settings import Settings


def line_of(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints that ends with *error*."""

    @click.group()
    def group() -> None:
        pass

    @group.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["gpuqueue", "fail"])
    monkeypatch.setattr("gpuqueue.console._close_stdout", lambda: None)
    assert 1 == run(group, "gpuqueue")
    return capsys.readouterr().err


def test_an_error_without_a_file_names_the_operation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was only "Invalid argument"."""
    line = line_of(OSError(errno.EINVAL, "Invalid argument"), monkeypatch, capsys)
    assert f"gpuqueue: the system refused an operation of {__name__}.fail: Invalid argument\n" == line


@pytest.mark.parametrize("now_s", [-(10 * 365 * 86400.0), 400 * 365 * 86400.0])
def test_a_clock_that_is_far_off_is_named(
    now_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process under faketime gets errors from many calls of the system."""
    monkeypatch.setattr(time, "time", lambda: now_s)
    for error in (OSError(errno.EINVAL, "Invalid argument"), OverflowError("timestamp too large")):
        line = line_of(error, monkeypatch, capsys)
        assert ". The clock here is in the year " in line
        assert line.endswith(": set it, or run without faketime\n")


def test_up_refuses_a_clock_before_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's own error was shown, "invalid expire time"."""
    machine = Machine(Settings.load({"GPUQUEUE_REDIS_URL": "redis://127.0.0.1:1/0", "GPUQUEUE_CONFIG": "/dev/null"}))
    monkeypatch.setattr(time, "time", lambda: -1e9)
    with pytest.raises(Refused, match="the clock of this machine is in the year 1938, and the store counts from 1970"):
        machine.start_store()
