"""Tests that each benchmark refuses unusable values on its command line."""

from __future__ import annotations

import argparse
import importlib
import sys

import pytest

from benchmarks.measure.options import devices, duration_s, how_many


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, ["--jobs", "-1"]) for name in ("submit", "corridor", "placement", "recording", "history", "kills")),
        *((name, ["--rounds", "0"]) for name in ("commands", "corridor", "fetch", "pack", "shim", "snapshot", "warm")),
        ("corridor", ["--devices", "bogus"]),
        ("array", ["--members", "0"]),
        ("array", ["--singles", "-1"]),
        ("claim", ["--pending", "1000", "-5"]),
        ("claim", ["--claims", "0"]),
        ("scale", ["--days", "-1"]),
        ("scale", ["--pending", "0"]),
        ("recording", ["--width", "0"]),
        ("kills", ["--kills", "x"]),
        *((name, ["--postgres-url", "foo://x"]) for name in ("recording", "history")),
        ("recording", ["--postgres-url", "sqlite:///x.db"]),
        ("recording", ["--postgres-url", "postgresql://ada:secret@127.0.0.1:1/x?connect_timeout=2"]),
        ("sampling", ["--seconds", "nan"]),
        ("workers", ["--seconds", "-1"]),
    ],
)
def test_a_number_that_measures_nothing_is_refused(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unusable value is refused before anything is started.

    Regression: it gave a traceback after the servers were up, or an empty table.
    """
    monkeypatch.setattr(sys, "argv", [f"bench_{name}", *words])

    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.bench_{name}").main()

    assert 2 == ended.value.code
    output = capsys.readouterr().err
    assert f"error: argument {words[0]}: " in output
    assert "secret" not in output


def test_what_can_be_measured_is_taken() -> None:
    """A count from 1 on, a positive duration and any device that this machine can serve are accepted."""
    assert (1, 0.5, "sim:2x8G", "cpu") == (how_many("1"), duration_s("0.5"), devices("sim:2x8G"), devices("cpu"))
    with pytest.raises(argparse.ArgumentTypeError, match="sim:4x24G"):
        devices("")
