"""Imports are what a person waits for at each command: about a third of a millisecond for each module of ours.

Ours are counted, and all others beside what click loads: as many as this Python's standard library needs for it. Of
those the large ones are named, too, each with the commands that may load it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from math import ceil

import pytest
from guard.bounds import Bound
from guard.one_life import uncovered

from gpuqueue.cli.main import COMMANDS

#: Modules of ours that a command loads before it does anything. Those that are typed all day are held when they work,
#: too, in tests/integration/cli/test_fast_commands.py.
OURS = {
    **dict.fromkeys(("submit", "run"), Bound(20, 45)),
    **dict.fromkeys(("queue", "show", "logs", "wait"), Bound(23, 51)),
    **dict.fromkeys(("cancel", "hold", "release", "move"), Bound(18, 39)),
    **dict.fromkeys(("edit", "limits", "drain", "resume"), Bound(18, 46)),
    **dict.fromkeys(("attach", "why", "tag", "note", "retry", "notify"), Bound(25, 60)),
    # One more since what reads the settings' values has a room of its own.
    **dict.fromkeys(("history", "estimate", "stats", "top"), Bound(30, 80)),
    "simulate": Bound(50, 96),
    # In doctor, which reads the book, three more since jobs are put together apart from SQLAlchemy, one since it
    # looks for the index of texts, and one since it breaks its lines for the terminal.
    **dict.fromkeys(("gpus", "up", "status", "down", "doctor", "db"), Bound(50, 115)),
    "completion": Bound(5, 12),
}
PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))
#: Modules of others, most of them the standard library's, on each of PYTHONS. Measured; SPARE is what the next patch
#: version of a Python or of SQLAlchemy may add.
OTHERS = {
    **dict.fromkeys(OURS, (21, 25, 26, 27)),
    "history": (23, 27, 28, 29),
    "stats": (27, 31, 32, 34),
    **dict.fromkeys(("gpus", "up", "status", "down", "db"), (23, 31, 32, 36)),
    "simulate": (152, 188, 191, 179),
    "doctor": (202, 215, 218, 204),
    "completion": (14, 15, 15, 15),
}
SPARE = 1.03
#: What takes tens of milliseconds to import, and who may: in their help already, where they do nothing without it.
LARGE = {
    "alembic": (),
    "asyncio": ("simulate", "doctor"),
    "celery": (),
    "kombu": (),
    "matplotlib": (),
    "platformdirs": (),
    "psutil": (),
    "pynvml": (),
    "redis": ("simulate",),
    "rich": (),
    "sqlalchemy": ("doctor",),
    "textual": (),
    "torch": (),
    "workers": (),
}
#: Tells on the last line of stderr what a command loads on top of click.
TELLING = """
import atexit, json, sys
import click
before = set(sys.modules)
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr))
from gpuqueue.cli.main import main
sys.argv = ["gpuqueue", sys.argv[1], "--help"]
main()
"""


def loaded_by(command: str) -> set[str]:
    """Return the modules that ``gpuqueue COMMAND --help`` loads on top of click's."""
    words = [sys.executable, "-c", TELLING, command]
    done = subprocess.run(words, env=uncovered(), capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.full
def test_no_command_loads_more_than_agreed() -> None:
    """A module at the top of a file that many commands share is in all of them at once."""
    with ThreadPoolExecutor(2) as some:
        loaded = dict(zip(COMMANDS, some.map(loaded_by, COMMANDS), strict=True))

    assert set(COMMANDS) == set(OURS), "a command is new or gone: give it a range in OURS"
    for command, modules in loaded.items():
        OURS[command].hold(sum(each.split(".")[0] == "gpuqueue" for each in modules), f"modules of ours for {command}")
        if sys.version_info[:2] in PYTHONS:
            usual = OTHERS[command][PYTHONS.index(sys.version_info[:2])]
            others = sum(each.split(".")[0] != "gpuqueue" for each in modules)
            Bound(usual // 2, ceil(usual * SPARE)).hold(others, f"modules of others for {command}")
    too_large = {(command, each) for command, modules in loaded.items() for each in LARGE if each in modules}
    assert set() == {(command, each) for command, each in too_large if command not in LARGE[each]}
