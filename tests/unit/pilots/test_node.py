"""What a pilot decides on its node without a service: how much time it has, and what earlier ones have left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gpuqueue.pilots import node
from gpuqueue.pilots.node import NodePilot, PilotWork


def pilot(place: Path, environ: dict[str, str]) -> NodePilot:
    """Return a pilot with an hour of time."""
    (place / "token").write_text("gq_k3v9m2xq_" + "s" * 43)
    (place / "token").chmod(0o600)
    work = PilotWork(
        place=place,
        url="https://gpu.example.org:8443",
        duration_s=3600.0,
        devices="gpu",
        pool="",
        idle_s=600.0,
        has_ca=False,
        jobs_of_all=False,
    )
    return NodePilot(work, environ)


@pytest.mark.parametrize(
    ("says", "least_s", "most_s"),
    [("echo 10:00", 600, 600), ("echo 2-00:00:00", 3590, 3600), ("echo UNLIMITED", 3590, 3600), ("exit 1", 3590, 3600)],
)
def test_the_shorter_time_counts(
    says: str, least_s: float, most_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may have given less than was asked for. A squeue that does not say so changes nothing."""
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\n{says}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    assert least_s <= pilot(tmp_path, {"SLURM_JOB_ID": "7"})._left_s("slurm-k3v9m2xqab") <= most_s
    assert 3590 <= pilot(tmp_path, {"SLURM_JOB_ID": "7"})._left_s("kubernetes-k3v9m2xqab") <= 3600


@pytest.mark.parametrize(("off_s", "ahead_s"), [(-180.0, 180.0), (0.0, 0.0), (180.0, 0.0)])
def test_a_clock_that_is_ahead_costs_its_difference(off_s: float, ahead_s: float) -> None:
    """The service compares by its own clock: a node that is ahead would announce its end too late."""
    site_now = datetime.now(timezone.utc) + timedelta(seconds=off_s)
    assert ahead_s <= node.ahead_s(site_now) < ahead_s + 10


def test_what_a_killed_pilot_left_is_removed(tmp_path: Path) -> None:
    """Not that of one that lives, nor what is none of a pilot."""
    mine, dead, lives, none = (
        tmp_path / f"gpuqueue-{name}"
        for name in ("mineabcd-aaaaaa", "deadabcd-bbbbbb", "liveabcd-cccccc", "queue-dddddd")
    )
    for each in (mine, dead, lives, none):
        each.mkdir()
        (each / "token").touch()
    os.close(node.hold(dead))
    locks = [node.hold(mine), node.hold(lives)]
    node.remove_left(mine)

    assert {mine, lives, none} == {*tmp_path.iterdir()}
    for lock in locks:
        os.close(lock)


def test_the_time_before_a_worker_serves_is_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pilot with a short idle time left before its first claim, and the rule asked for the next one, without end."""
    monkeypatch.setattr(node, "POLL_S", 0.01)
    own = pilot(tmp_path, {})
    own._work = replace(own._work, idle_s=0.05)
    script = (
        "import os, sys, time\n"
        "while time.monotonic() < float(sys.argv[2]): time.sleep(0.01)\n"
        "os.makedirs(sys.argv[1])\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: pass\n"
    )
    ready_s = time.monotonic() + 1
    words = [sys.executable, "-c", script, str(tmp_path / "state" / "runs"), str(ready_s)]
    with subprocess.Popen(words) as up:
        assert 0 == own._watch(up)

    assert time.monotonic() > ready_s
