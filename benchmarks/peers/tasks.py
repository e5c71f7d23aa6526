"""What a user of Celery, RQ or Huey writes to run a program: a function that calls ``subprocess.run``."""

from __future__ import annotations

import subprocess


def run(words: list[str]) -> int:
    """Run a command to its end and return its exit code."""
    return subprocess.run(words, check=False).returncode
