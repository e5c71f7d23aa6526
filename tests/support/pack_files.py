"""Packs files in the place of ``gpuqueue-worker pack``, for tests of the service: real files, simple patterns.

A file ``trouble`` in the run directory makes it fail, unless it reads an earlier archive: a line with the exit code and
the message, for the end of the archive, or ``before`` and the same for its beginning. While there is a file ``search``
there, it writes nothing.
"""

from __future__ import annotations

import fnmatch
import json
import sys
import tarfile
import time
from pathlib import Path


def main(words: list[str]) -> int:
    """Write the archive to standard output."""
    asked = json.load(sys.stdin)
    run, source = Path(asked["directory"]), asked["source"]
    patterns = [each.removeprefix("/") for each in asked["patterns"]]
    kept = None if source is None else run / source
    trouble = run / "trouble"
    when, _, what = trouble.read_text().partition(" ") if trouble.exists() and kept is None else ("", "", "0 ")
    code, _, message = what.partition(" ")
    tree = run / "code" / "tree"
    if words != ["pack"] or (kept is None and not tree.is_dir()):
        print("there is no copy of the code", file=sys.stderr)  # noqa: T201
        return 3
    while (run / "search").exists():
        time.sleep(0.02)
    if when != "before":
        _write(tree, kept, patterns)
    print(message, end="", file=sys.stderr)  # noqa: T201
    return int(code)


def _write(tree: Path, kept: Path | None, patterns: list[str]) -> None:
    def is_wanted(name: str) -> bool:
        return not patterns or any(fnmatch.fnmatch(name, each.removeprefix("/")) for each in patterns)

    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        if kept is not None:
            with tarfile.open(kept) as before:
                for each in filter(lambda one: is_wanted(one.name), before):
                    archive.addfile(each, before.extractfile(each))
            return
        for path in sorted(each for each in tree.rglob("*") if each.is_file()):
            if is_wanted(str(path.relative_to(tree))):
                archive.add(path, str(path.relative_to(tree)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
