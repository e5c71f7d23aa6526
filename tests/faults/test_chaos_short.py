"""The short form of the chaos record, in the gate; docs/reliability.md tells of the long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos.plan import Breaks

ROOT = Path(__file__).resolve().parents[2]
#: Half a minute on an idle machine, in seconds.
MOST_S = 540


@pytest.mark.full
@pytest.mark.timeout(MOST_S + 60)
def test_everything_is_killed_and_nothing_is_lost_doubled_orphaned_or_wrong() -> None:
    """Workers, shims, jobs, store, recorder, database, host, and all at once, while forty jobs run."""
    command = [sys.executable, "-m", "benchmarks.chaos", "--short", "--seed", "7", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, told = process.communicate(timeout=MOST_S)
        finally:
            process.terminate()  # not kill: it ends what it has started

    assert 0 == process.returncode, told
    result = json.loads(out)
    assert {0} == set(result["faults"].values())
    assert 40 == result["acknowledged"]
    assert len(Breaks) - 3 <= len(result["kills"]), "a kill or two may have met nobody"
