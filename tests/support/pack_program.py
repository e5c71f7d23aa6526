"""Packs the copy of the code of a run, in the place of ``gpuqueue-worker pack``, in tests of those who call it.

A pattern ``exit=N`` ends it with that code after some bytes. With ``while=PATH`` it waits before its last bytes as long
as that file is there.
"""

from __future__ import annotations

import json
import sys
import tarfile
import time
from pathlib import Path


def main() -> int:
    """Write the archive to standard output."""
    asked = json.load(sys.stdin)
    tree, patterns = Path(asked["directory"]) / "code" / "tree", asked["patterns"]
    chosen = dict(each.split("=", 1) for each in patterns if "=" in each)
    if not tree.is_dir():
        sys.stderr.write("gpuqueue-worker: there is no copy of the code of this run any more\n")
        return 3
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            if path.is_file() and (not patterns or any(path.match(each) for each in patterns)):
                archive.add(path, path.relative_to(tree), recursive=False)
        if "exit" in chosen:
            sys.stdout.buffer.write(bytes(100_000))
            sys.stdout.buffer.flush()
            sys.stderr.write("a warning\ngpuqueue-worker: the disk has failed\n")
            return int(chosen["exit"])
        sys.stdout.buffer.flush()
        while "while" in chosen and Path(chosen["while"]).exists():
            time.sleep(0.02)
    return 0


sys.exit(main())
