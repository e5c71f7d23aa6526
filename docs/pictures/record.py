#!/usr/bin/env python3
"""Takes the terminal pictures of the documentation: a real walk through gpuqueue, typed into a real shell.

    .venv/bin/python docs/pictures/record.py [DIRECTORY]

It starts a queue with two simulated devices in a temporary directory, types the steps of tests/support/walk.py, which
the acceptance tests type too, and writes first-steps.svg, a film, and top.svg, the screen of `gpuqueue top`. Only the
account's name and the path of the directory are replaced. tests/acceptance/test_pictures.py fails when the pictures
show an old table.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import pyte.screens  # noqa: E402 - behind the path
from svg import Cell, Frame, film, still  # noqa: E402 - as above
from walk import Shell, walk  # noqa: E402 - as above

BIN = Path(sys.executable).parent
#: The rows hold all steps up to `why`, so that the picture without animation shows the whole story.
COLUMNS, ROWS = 96, 28
#: Steps of the walk that are shown, and for how many seconds.
SHOWN = {"up": 5.0, "submit": 3.5, "queue": 4.5, "why": 6.0, "top": 6.0, "logs": 4.0, "history": 7.0}
#: The step that a viewer without animation shows.
STILL = "why"
#: Number of empty rows that remain in the picture of one screen.
EMPTY = 4
NAME = "ada"
DIRECTORY = "/home/ada/.local/state/gpuqueue"


def main(target: Path) -> int:
    """Take the walk and write the pictures into *target*."""
    state, place = (Path(mkdtemp(prefix=f"gpuqueue-{name}-")) for name in ("picture", "walk"))
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GPUQUEUE_")},
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "GPUQUEUE_STATE_DIR": str(state),
        "GPUQUEUE_HOST": "lab1",
        "COLORTERM": "truecolor",
    }
    frames: dict[str, Frame] = {}
    try:
        with Shell(environ, place, columns=COLUMNS, rows=ROWS) as shell:
            for halt in walk(shell, place):
                print(halt)
                frames[halt] = cells_of(shell.screen, str(state))
    finally:
        down = [str(BIN / "gpuqueue"), "down", "--cancel-jobs"]
        subprocess.run(down, env=environ, capture_output=True, check=False, timeout=100)
        shutil.rmtree(state, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
    shown = [(frames[halt], seconds) for halt, seconds in SHOWN.items()]
    title = "gpuqueue: three jobs on two devices, why the third waits, and what became of them"
    write(target / "first-steps.svg", film(shown, title, shown=list(SHOWN).index(STILL)))
    write(target / "top.svg", still(shorter(frames["top"]), "gpuqueue top"))
    return 0


def shorter(frame: Frame) -> Frame:
    """Return *frame* as a lower terminal would show it: with at most EMPTY of consecutive equal rows."""
    return [
        row for at, row in enumerate(frame) if at < EMPTY or any(row != frame[at - back] for back in range(EMPTY + 1))
    ]


def write(path: Path, text: str) -> None:
    """Write a picture."""
    path.write_text(text)
    print(f"{path.name}: {len(text.encode()) / 1000:.0f} kB")


def cells_of(screen: pyte.screens.Screen, state: str) -> Frame:
    """Return the cells of *screen*, with other names for the account and the directory *state*."""
    rows = [[cell_of(screen.buffer[y][x]) for x in range(screen.columns)] for y in range(screen.lines)]
    return [renamed(row, state) for row in rows]


def cell_of(char: pyte.screens.Char) -> Cell:
    """Return one cell as it is drawn."""
    front, back = (char.bg, char.fg) if char.reverse else (char.fg, char.bg)
    return Cell(char.data or " ", front, back, char.bold)


def renamed(row: list[Cell], state: str) -> list[Cell]:
    """Return a line with the account's name and the directory *state* replaced, cut to its old length."""
    text = "".join(cell.text for cell in row).replace(state, DIRECTORY)
    account = getpass.getuser()
    for before in (f" {account} ", f"({account})", f"({account},"):
        after = before.replace(account, NAME)
        after = after.ljust(len(before)) if before.startswith(" ") else after
        text = text.replace(before, after)
    text = text.ljust(len(row))[: len(row)]
    return [replace(cell, text=letter) for cell, letter in zip(row, text, strict=True)]


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:] or [str(HERE)])))
