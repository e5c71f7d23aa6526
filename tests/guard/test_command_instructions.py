"""Instructions of the processor: what a command takes of what ``import click`` takes, however busy the machine is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from factories import make_offer, make_spec, serve
from guard.bounds import Bound
from guard.one_life import uncovered
from own_store import OwnStore

from gpuqueue.queue.jobqueue import JobQueue

VALGRIND = shutil.which("valgrind")
pytestmark = [
    pytest.mark.skipif(VALGRIND is None, reason="no valgrind here to count instructions: apt install valgrind"),
    pytest.mark.timeout(400),
]
#: Of a whole process, in those of ``python -c "import click"``; the aim is two. Measured on Python 3.11:
#: 1.69, 1.81, 1.55. Values' classes, patterns and modules are what they go into: ``python -X importtime`` names them.
RATIOS = {
    ("submit", "--mem", "1M", "--", "true"): Bound(1.2, 1.86),
    ("queue",): Bound(1.2, 1.98),
    ("cancel", "ID"): Bound(1.2, 1.7),
}
GPUQUEUE = "from gpuqueue.cli.main import main; main()"
COUNT = (str(VALGRIND), "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def test_a_command_takes_as_many_instructions_as_agreed(own_store: OwnStore, tmp_path: Path) -> None:
    """Each is done to one job, so that all is compiled, and counted with another."""
    queue = JobQueue(own_store.url)
    queue.open(0)
    serve(queue, make_offer())
    jobs = [str(queue.submit(make_spec()).id) for _ in range(2)]
    queue.close()
    environ = {
        **{name: value for name, value in uncovered().items() if name != "PYTHONDONTWRITEBYTECODE"},
        "GPUQUEUE_STATE_DIR": str(own_store.settings.state_dir),
        "GPUQUEUE_HOST": make_offer().host,
        "PYTHONHASHSEED": "0",
        "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"),
    }

    def instructions(code: str, words: Sequence[str] = ()) -> int:
        commands = [[sys.executable, "-c", code, *(job if word == "ID" else word for word in words)] for job in jobs]
        subprocess.run(commands[0], env=environ, cwd=tmp_path, capture_output=True, check=True)
        done = subprocess.run(
            [*COUNT, *commands[1]], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
        assert found is not None, done.stderr
        return int(found[1].replace(",", ""))

    floor = instructions("import click")
    for words, ratio in RATIOS.items():
        ratio.hold(instructions(GPUQUEUE, words) / floor, f"instructions of {' '.join(words)}")
