"""Runs the short form of the chaos benchmark. docs/internals/reliability.md describes the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos.plan import Breaks

ROOT = Path(__file__).resolve().parents[2]
#: Longest time of the run, in seconds. On an idle machine it takes half a minute.
MOST_S = 540


@pytest.mark.full
@pytest.mark.timeout(MOST_S + 60)
def test_everything_is_killed_and_nothing_is_lost_doubled_orphaned_or_wrong() -> None:
    """While forty jobs run, each kind of process and then all at once are killed, without any fault.

    They are workers, shims, jobs, the store, the recorder, the database and the host.
    """
    command = [sys.executable, "-m", "benchmarks.chaos", "--short", "--seed", "7", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, reported = process.communicate(timeout=MOST_S)
        finally:
            process.terminate()  # not SIGKILL: the process must end its own children

    assert 0 == process.returncode, reported
    result = json.loads(out)
    assert {0} == set(result["faults"].values())
    assert 40 == result["acknowledged"]
    assert len(Breaks) - 3 <= len(result["kills"]), "a kill or two may have met nobody"
