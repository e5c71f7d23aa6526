"""Tests of the sweep, the last resort after a shim was killed. It must miss no process of the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until

from workers.run import process_tree
from workers.run.environment import TOKEN


@pytest.mark.full
def test_a_process_in_the_middle_of_exec_is_not_missed(tmp_path: Path) -> None:
    """A process that is in the middle of an exec is not missed.

    Between the new program and its new environment a scan sees no token. One in twenty of such processes used to
    survive.
    """
    script = tmp_path / "restless.sh"
    script.write_text(f"exec /bin/sh {script}\n")
    missed = []
    for number in range(100):
        token = f"{number}.restless"
        with subprocess.Popen(["/bin/sh", str(script)], env={TOKEN: token}) as process:
            process_tree.sweep(TOKEN, token)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                missed.append(number)
                process.kill()

    assert [] == missed


def test_a_process_without_any_environment_is_no_riddle(tmp_path: Path) -> None:
    """A process without any environment, as after `env -i`, is not waited for and belongs to no run."""
    ready = tmp_path / "ready"
    words = f"open({str(ready)!r}, 'w').close(); import signal; signal.pause()"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", words], env={}) as process:
        until(ready.exists)

        assert not process_tree._in_exec(process.pid)
        assert 0 == process_tree.sweep(TOKEN, "nobody's")

        assert process.poll() is None
        process.kill()
