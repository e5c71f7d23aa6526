"""Finds the version of torch that an interpreter would import, without importing it."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from workers.threads.timeout import TIMEOUT

#: How long an interpreter may take to answer, in seconds. The usual time is 0.1 s, and longer on a slow disk.
ASK_S = 5.0
#: How long the answer "no torch" or a missing answer is cached, in seconds. torch may be installed later.
AGAIN_S = 300.0
#: Most cached answers. Each PYTHONPATH has its own.
MOST = 256
#: Prints the version of torch, and the directory that it is installed in.
ASK = "import importlib.metadata as m; d = m.distribution('torch'); print(d.version); print(d.locate_file(''))"
#: Variables that change what an interpreter finds.
MATTERS = ("HOME", "PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONUSERBASE")

Version = tuple[int, int]

#: The cache of answers, the oldest first: the version and the metadata directory that must still exist for the answer
#: to be valid (or None without torch), and the time of the answer on the monotonic clock.
_answers: dict[tuple[object, ...], tuple[tuple[Version, Path] | None, float]] = {}
_lock = threading.Lock()


def torch_version_of(interpreter: str, env: Mapping[str, str] | None = None) -> Version | None:
    """Return the major and minor version of the torch that *interpreter* would import, or None if unknown or absent.

    A virtual environment without system packages is read from disk. Any other interpreter is started once and asked. A
    pre-release counts as the previous minor version, because it may lack features of the release.
    """
    env = env or {}
    python = Path(interpreter)
    prefix = python.parent.parent
    if _is_closed(prefix) and not env.get("PYTHONPATH"):
        found = prefix.glob("lib*/python*/site-packages/torch-*.dist-info")
        versions = [version for each in found if (version := _version(each.name.removeprefix("torch-")))]
        return min(versions, default=None)
    return _asked(python, env)


def _is_closed(prefix: Path) -> bool:
    """Return whether *prefix* is a virtual environment without system packages (and so without user packages)."""
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^include-system-site-packages\s*=\s*true", text, re.MULTILINE | re.IGNORECASE) is None


def _asked(python: Path, env: Mapping[str, str]) -> Version | None:
    try:
        stamp = python.stat().st_mtime_ns
    except OSError:
        return None
    matters = {name: env[name] for name in MATTERS if name in env}
    key = (python, stamp, *matters.items())
    answer, at_s = _answers.get(key, (None, -AGAIN_S))
    # An upgrade of torch removes the metadata directory of the old version.
    holds = answer[1].exists() if answer is not None else time.monotonic() - at_s < AGAIN_S
    if not holds:
        answer = _ask(python, matters)
        with _lock:
            _answers.pop(key, None)
            while len(_answers) >= MOST:
                del _answers[next(iter(_answers))]
            _answers[key] = answer, time.monotonic()
    return answer[0] if answer is not None else None


def _ask(python: Path, env: Mapping[str, str]) -> tuple[Version, Path] | None:
    try:
        answer = subprocess.run(
            [TIMEOUT, str(ASK_S), str(python), "-c", ASK],
            env={"PATH": "/usr/bin:/bin", **env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
        )
        version, place = answer.stdout.splitlines()[-2:]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    parsed = _version(version)
    return None if parsed is None else (parsed, Path(place, f"torch-{version}.dist-info"))


def _version(text: str) -> Version | None:
    match = re.match(r"(\d+)\.(\d+)(?:\.\d+)*(a|b|rc|\.?dev)?", text)
    if match is None:
        return None
    major, minor = int(match[1]), int(match[2])
    return (major, minor - 1) if match[3] else (major, minor)
