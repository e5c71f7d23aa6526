"""Tests of the reports that packing goes on."""

from __future__ import annotations

import os
import socket

import pytest

from workers.results import pack as packing
from workers.results.pack import Progress


def test_a_reader_that_is_gone_is_noticed_without_a_write() -> None:
    """The next step ends the work, whether the archive goes to a pipe or to a socket."""
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    steps = [Progress(writer, lambda: None), Progress(ours.fileno(), lambda: None)]
    os.close(reader)
    theirs.close()

    for step in steps:
        with pytest.raises(BrokenPipeError):
            step()
    os.close(writer)
    ours.close()


def test_steps_are_reported_once_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report for each of a million files would cost more than the files."""
    reports: list[None] = []
    with open(os.devnull, "wb") as output:  # noqa: PTH123 - of os
        step = Progress(output.fileno(), lambda: reports.append(None))
        monkeypatch.setattr(packing, "EVERY_S", 3600.0)
        for _ in range(1000):
            step()

    assert 1 == len(reports)
