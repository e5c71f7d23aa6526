"""The task of Celery and RQ that runs a script: a function that calls ``subprocess.run``."""

from __future__ import annotations

import os
import subprocess
import uuid


def run(words: list[str]) -> int:
    """Run a command to its end and return its exit code; each run has its own token, for the traces."""
    return subprocess.run(words, env={**os.environ, "GPUQUEUE_TOKEN": uuid.uuid4().hex}, check=False).returncode
