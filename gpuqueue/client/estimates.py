"""Results of ``gpuqueue estimate``, remembered on this machine for the submits of the same script.

Each is a small file in the user's cache directory. It counts as long as the script has not changed.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.script_args import words_before_args
from gpuqueue.system.account import cache_directory
from gpuqueue.text.units import MAX_BYTES


def known(spec: JobSpec) -> int | None:
    """Return the memory that was estimated for the script of *spec* with its arguments, in bytes, or None."""
    directory = cache_directory() / "estimates"
    if spec.script is None or not directory.is_dir():
        return None
    script = Path(spec.cwd, spec.script)
    path = directory / _name(script, spec.argv[words_before_args(spec) :])
    try:
        found = json.loads(path.read_bytes())
        is_of_this_file = found["changed_ns"] == script.stat().st_mtime_ns
        size_bytes = found["mem_bytes"]
    except (OSError, ValueError, KeyError, TypeError):  # no estimate, or no longer a readable one
        return None
    return size_bytes if is_of_this_file and isinstance(size_bytes, int) and 0 < size_bytes <= MAX_BYTES else None


def remember(script: Path, args: tuple[str, ...], mem_bytes: int) -> None:
    """Store the estimate *mem_bytes* for *script* with *args*. Without a place to write, nothing is stored."""
    directory = cache_directory() / "estimates"
    path = directory / _name(script, args)
    made = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    with suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        made.write_text(json.dumps({"changed_ns": script.stat().st_mtime_ns, "mem_bytes": mem_bytes}))
        made.replace(path)


def _name(script: Path, args: tuple[str, ...]) -> str:
    import hashlib  # noqa: PLC0415 - lazy import: few submits have an estimate

    words = [os.path.normpath(script), *args]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
