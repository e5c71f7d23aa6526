#!/usr/bin/env python3
"""Brings the third-party parts of the web page from npm into gpuqueue/web/vendor. Needs Node.js with npm.

python3 page_parts.py           bring the parts, unless they are there
python3 page_parts.py --tests   also what checks the page: axe-core and the TypeScript compiler

npm checks each package against the hash in package-lock.json, and runs no script of a package. A wheel is built with
the parts, so that its users need no Node.js.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
#: File of a package -> its name in the page. The types are for the check by TypeScript only.
PARTS = {
    "preact/dist/preact.mjs": "preact.js",
    "preact/hooks/dist/hooks.mjs": "hooks.js",
    "htm/dist/htm.module.js": "htm.js",
    "preact/LICENSE": "preact.LICENSE.txt",
    "htm/LICENSE": "htm.LICENSE.txt",
}
#: How a part names another package -> the file of the page. Browsers find no bare name without an inline script.
NAMES = {"preact": "./preact.js"}
TYPES = {
    "preact.d.ts": 'export * from "preact";\n',
    "hooks.d.ts": 'export * from "preact/hooks";\n',
    "htm.d.ts": 'export { default } from "htm";\n',
}
_IMPORT = re.compile(r"""(from|import)\s*(["'])([^"'./][^"']*)\2""")


class NoParts(Exception):
    """The parts cannot be brought here."""


def bring(root: Path = ROOT, *, with_tests: bool = False) -> bool:
    """Bring the parts into *root*, and return whether anything was done.

    Raises:
        NoParts: npm is missing, or it failed.

    """
    vendor, lock = root / "gpuqueue" / "web" / "vendor", root / "package-lock.json"
    stamp, mark = vendor / ".lock", hashlib.sha256(lock.read_bytes()).hexdigest()
    is_there = stamp.is_file() and stamp.read_text(encoding="ascii") == mark
    if is_there and not (with_tests and not (root / "node_modules" / "axe-core").is_dir()):
        return False
    npm = shutil.which("npm")
    if npm is None:
        raise NoParts("npm is not installed, so there is no web page: install Node.js 20 or newer")
    words = [npm, "ci", "--no-progress", *([] if with_tests else ["--omit=dev"])]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoParts(f"npm ci failed, so there is no web page: {(done.stderr or done.stdout).strip()[-500:]}")
    try:
        _copy(root / "node_modules", vendor)
        stamp.write_text(mark, encoding="ascii")
    except OSError as error:
        raise NoParts(f"{vendor} cannot be written, so there is no web page: {error.strerror}") from error
    return True


def _copy(packages: Path, vendor: Path) -> None:
    shutil.rmtree(vendor, ignore_errors=True)
    vendor.mkdir(parents=True)
    for source, name in PARTS.items():
        text = (packages / source).read_text(encoding="utf-8")
        if name.endswith(".js"):
            text = _IMPORT.sub(lambda found: f"{found[1]}{found[2]}{NAMES[found[3]]}{found[2]}", text)
            text = re.sub(r"\n//# sourceMappingURL=.*", "", text)
        (vendor / name).write_text(text, encoding="utf-8")
    for name, text in TYPES.items():
        (vendor / name).write_text(text, encoding="utf-8")


def main(words: list[str]) -> int:
    """Bring the parts, and say so."""
    if words not in ([], ["--tests"]):
        print(__doc__)
        return 2
    try:
        done = bring(with_tests=bool(words))
    except NoParts as error:
        print(f"page_parts: {error}", file=sys.stderr)
        return 1
    print("page_parts: the parts of the page are " + ("in gpuqueue/web/vendor" if done else "there already"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
