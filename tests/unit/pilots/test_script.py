"""The batch script of a pilot, run by a real bash with a program of the test in the place of gpuqueue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until

from gpuqueue.pilots.script import PilotScript

TOKEN = "gq_k3v9m2xq_" + "s" * 43


def made(tmp_path: Path, program: str, ca: str | None = None, prepare: str = "") -> subprocess.Popen[str]:
    """Start the script, whose directory is below tmp_path/node, with the shell script *program*."""
    (tmp_path / "node").mkdir()
    path = tmp_path / "pro gram"
    path.write_text(f"#!/bin/bash\n{program}\n")
    path.chmod(0o755)
    script = PilotScript(
        key="k3v9m2xqab",
        token=TOKEN,
        ca=ca,
        program=str(path),
        prepare=prepare,
        directory="$NODE",
        words=("--url", "https://gpu:1", "--seconds", "60"),
    )
    environ = {**os.environ, "NODE": str(tmp_path / "node")}
    text = tmp_path / "script"
    text.write_text(script.text())
    return subprocess.Popen(["/bin/bash", str(text)], stdout=subprocess.PIPE, text=True, env=environ)


def test_the_script_makes_its_directory_private_and_removes_it(tmp_path: Path) -> None:
    """Token and certificate are there for nobody else. The exit code is that of the program."""
    program = """
    stat -c %a "$4" "$4/token" "$4/ca.pem"; cat "$4/token" "$4/ca.pem"; echo "$@" | sed "s,$4,PLACE,"; exit 3"""
    process = made(tmp_path, program, ca="-----BEGIN\nxx\n-----END\n")
    lines = process.communicate(timeout=30)[0].splitlines()

    assert 3 == process.returncode
    assert ["700", "600", "600", TOKEN, "-----BEGIN", "xx", "-----END"] == lines[:-1]
    assert "burst serve --place PLACE --url https://gpu:1 --seconds 60" == lines[-1]
    assert [] == [*(tmp_path / "node").iterdir()]


@pytest.mark.parametrize("how", ["early", "late"])
def test_the_signal_of_the_engine_is_passed_on(tmp_path: Path, how: str) -> None:
    """Also one that comes before the program runs. The script waits for the program, however often it is signalled."""
    wait = f"touch {tmp_path}/began; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    program = f"""exec {sys.executable} -c 'if True:
    import signal, time
    time.sleep(0.5)
    signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
    signals = []
    open("{tmp_path}/serving", "w").close()
    while not signals:
        time.sleep(0.05)
    time.sleep(1.5)
    print("handed back")'"""
    process = made(tmp_path, program, prepare=wait if how == "early" else "")
    until((tmp_path / ("began" if how == "early" else "serving")).exists, what="the script")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()

    assert ("handed back\n", 0) == (process.communicate(timeout=30)[0], process.returncode)
    assert [] == [*(tmp_path / "node").iterdir()]


def test_a_program_that_is_missing_ends_the_script(tmp_path: Path) -> None:
    """It says which one, and leaves nothing."""
    process = made(tmp_path, "exec /no/such/gpuqueue 2>&1")
    assert "/no/such/gpuqueue" in process.communicate(timeout=30)[0]
    assert 127 == process.returncode
    assert [] == [*(tmp_path / "node").iterdir()]
