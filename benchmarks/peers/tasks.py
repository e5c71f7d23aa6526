"""The task of Celery, RQ and Huey that runs a program: a function that calls ``subprocess.run``."""

from __future__ import annotations

import subprocess


def run(words: list[str]) -> int:
    """Run a command to its end and return its exit code."""
    return subprocess.run(words, check=False).returncode
