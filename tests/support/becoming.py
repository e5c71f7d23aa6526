"""A program in the place of another one, as a script that becomes it.

The path of the interpreter may have spaces, which the first line of a script (``#!``) cannot hold.
"""

from __future__ import annotations

import shlex
from pathlib import Path


def becoming(path: Path, *words: object) -> Path:
    """Make the file *path* a program that becomes the command *words*, with its own arguments behind, and return it."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    path.chmod(0o755)
    return path
