"""Tests of what packing loads: it runs in the launcher, as a user who may not be able to read this installation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from results_copy import Copy

ROOT = Path(__file__).parents[4]
PROGRAM = """
import os, sys
sys.path.insert(0, {root!r})
import workers.launcher.main
from workers.results.pack import pack
from workers.results.pack import ArchiveRequest
before = set(sys.modules)
request = ArchiveRequest.read(ArchiveRequest.of(["*"], [("^(?:.+/)?[^/]+$", True)]).text())
for each in (request, request._replace(rules=None)):
    notes = pack(os.open({code!r}, os.O_RDONLY), each, os.open(os.devnull, os.O_WRONLY), lambda: None)
print(len(notes), *sorted(set(sys.modules) - before))
print(*sorted(each for each in before if each.split(".")[0] not in sys.stdlib_module_names))
"""


def test_packing_loads_nothing_after_the_launcher_has_started(tmp_path: Path) -> None:
    """All that it needs is loaded by then, and is the standard library or a small part of gpuqueue."""
    copy = Copy(tmp_path / "code")
    copy.write("same", b"x")
    copy.take()
    copy.write("Größe/" + "long" * 40, b"x")
    copy.write("back\\slash")
    copy.link("out", "/etc")

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", PROGRAM.format(root=str(ROOT), code=str(copy.code))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    loaded_later, ours = done.stdout.splitlines()
    assert "2" == loaded_later
    packages = {".".join(each.split(".")[:2]) for each in ours.split()}
    parts = ("errors", "files", "lazy", "model", "system", "text", "version")
    gpuqueue = {"gpuqueue", *(f"gpuqueue.{each}" for each in parts)}
    launcher = {"workers", *(f"workers.{each}" for each in ("launcher", "results", "run", "shim"))}
    assert {"__main__"} >= packages - gpuqueue - launcher
