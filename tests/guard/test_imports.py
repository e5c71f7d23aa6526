"""Tests that bound the modules that each command imports.

A user waits for them at each command, about a third of a millisecond for each module of gpuqueue. Modules of gpuqueue
are counted. All other modules are counted beyond those that click loads, which depend on this Python's standard
library. Large libraries are listed by name, with the commands that may load them.
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

#: Modules of gpuqueue that a command loads before it does anything. The frequent commands are also bounded while they
#: work, in tests/integration/cli/test_fast_commands.py.
OURS = {
    **dict.fromkeys(("submit", "run", "shell", "notebook", "probe", "exec"), Bound(20, 58)),
    **dict.fromkeys(("queue", "show", "logs", "fetch", "wait"), Bound(23, 60)),
    **dict.fromkeys(("cancel", "hold", "release", "extend", "move", "forward"), Bound(18, 49)),
    **dict.fromkeys(("edit", "limits", "drain", "lost", "resume", "reserve"), Bound(18, 56)),
    **dict.fromkeys(("attach", "why", "tag", "note", "retry", "notify", "cron"), Bound(25, 80)),
    **dict.fromkeys(("history", "estimate", "stats", "top"), Bound(30, 94)),
    "simulate": Bound(25, 56),
    **dict.fromkeys(("gpus", "up", "status", "down"), Bound(40, 115)),
    "web": Bound(18, 66),
    "db": Bound(13, 61),
    **dict.fromkeys(("install", "join", "uninstall"), Bound(40, 90)),
    "doctor": Bound(50, 132),
    "completion": Bound(5, 16),
    **dict.fromkeys(
        ("login", "logout", "whoami", "token", "audit", "serve", "snapshots", "mcp", "burst"), Bound(18, 66)
    ),
}
PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))
#: Modules of other packages, most of them of the standard library, on each of PYTHONS. Measured; SPARE is what the next
#: patch version of a Python or of SQLAlchemy may add.
OTHERS = {
    **dict.fromkeys(OURS, (21, 25, 26, 27)),
    "history": (23, 27, 28, 29),
    "stats": (27, 31, 32, 34),
    **dict.fromkeys(("gpus", "up", "status", "down", "db"), (25, 33, 34, 38)),
    "simulate": (28, 32, 33, 35),
    **dict.fromkeys(("install", "join", "uninstall"), (34, 42, 43, 45)),
    "doctor": (202, 215, 218, 204),
    "completion": (14, 15, 15, 15),
}
SPARE = 1.03
#: Libraries that take tens of milliseconds to import, and the commands that load them even for their help text.
LARGE = {
    "alembic": (),
    "asyncio": ("doctor",),
    "celery": (),
    "kombu": (),
    "matplotlib": (),
    "platformdirs": (),
    "psutil": (),
    "pynvml": (),
    "redis": (),
    "rich": (),
    "sqlalchemy": ("doctor",),
    "textual": (),
    "torch": (),
    "workers": (),
}
#: Prints on the last line of stderr what a command loads in addition to click.
REPORTING = """
import atexit, json, sys
import click
before = set(sys.modules)
atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr))
from gpuqueue.cli.main import main
sys.argv = ["gpuqueue", sys.argv[1], "--help"]
main()
"""


def loaded_by(command: str) -> set[str]:
    """Return the modules that ``gpuqueue COMMAND --help`` loads in addition to click's."""
    words = [sys.executable, "-c", REPORTING, command]
    done = subprocess.run(words, env=uncovered(), capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.full
def test_no_command_loads_more_than_agreed() -> None:
    """No command loads more modules than agreed.

    An import in a shared module reaches many commands at once.
    """
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
