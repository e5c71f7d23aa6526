#!/usr/bin/env python3
"""Brings the third-party parts of the web page from npm into gpuqueue/web/vendor. Needs Node.js with npm.

python3 page_parts.py            bring the parts, unless they are there
python3 page_parts.py --tests    also what checks the page: axe-core and the TypeScript compiler
python3 page_parts.py --bundle   also the page in a few files, gpuqueue/web/built, as a wheel has it

npm checks each package against the hash in package-lock.json, and runs no script of a package. A wheel is built with
the parts and the bundle, so that its users need no Node.js. A bundle counts only for the modules that it was made of:
after a change of a module, the service serves the modules.
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
#: Where the bundle is, below the files of the page, and its file with the hash of the modules that it was made of.
BUILT, OF_TREE = "built", ".tree"
#: Types of the files that browsers load: those of gpuqueue/service/web/files.py.
SERVED = frozenset({".js", ".css", ".html", ".svg", ".txt"})
_SHEET = re.compile(r'<link rel="stylesheet" href="static/@tree@/([^"]+)">\n')
_PRELOAD = re.compile(r'<link rel="modulepreload" [^>]*>\n')
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
    _install(root, with_tests=with_tests)
    try:
        _copy(root / "node_modules", vendor)
        stamp.write_text(mark, encoding="ascii")
    except OSError as error:
        raise NoParts(f"{vendor} cannot be written, so there is no web page: {error.strerror}") from error
    return True


def bundle(root: Path = ROOT) -> bool:
    """Put the modules and the style sheets of the page into one file each. Return whether anything was done.

    Raises:
        NoParts: npm is missing, or it or the bundler failed.

    """
    web = root / "gpuqueue" / "web"
    built, tree = web / BUILT, tree_of(web)
    stamp = built / OF_TREE
    if stamp.is_file() and stamp.read_text(encoding="ascii") == tree:
        return False
    program = root / "node_modules" / ".bin" / "esbuild"
    if not program.exists():
        _install(root, lacks="so the page is not bundled")
    page = (web / "index.html").read_text(encoding="utf-8")
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir()
    sheets = "\n".join(f'@import "./{name}";' for name in _SHEET.findall(page))
    for words, text in (
        (["app.js", "--format=esm", f"--outfile={BUILT}/app.js"], None),
        (["--loader=css", f"--outfile={BUILT}/app.css"], sheets),
    ):
        command = [
            str(program),
            *words,
            "--bundle",
            "--minify",
            "--charset=utf8",
            "--target=es2022",
            "--log-level=error",
        ]
        try:
            done = subprocess.run(command, cwd=web, input=text, capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoParts(f"the page was not bundled: {program}: {error.strerror}") from error
        if done.returncode:
            raise NoParts(f"the page was not bundled: {done.stderr.strip()[-500:]}")
    page = _PRELOAD.sub("", page).replace("static/@tree@/app.js", f"static/@tree@/{BUILT}/app.js")
    one = iter([f'<link rel="stylesheet" href="static/@tree@/{BUILT}/app.css">\n'])
    page = _SHEET.sub(lambda _: next(one, ""), page)
    (built / "index.html").write_text(page, encoding="utf-8")
    stamp.write_text(tree, encoding="ascii")
    return True


def tree_of(web: Path) -> str:
    """Return the hash of the files of the page, as the service computes it."""
    digest = hashlib.sha256()
    for path in sorted(each for each in web.rglob("*") if each.suffix in SERVED and each.is_file()):
        name, content = path.relative_to(web).as_posix(), path.read_bytes()
        if not name.startswith(f"{BUILT}/"):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:20]


def _install(root: Path, *, with_tests: bool = False, lacks: str = "so there is no web page") -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NoParts(f"npm is not installed, {lacks}: install Node.js 20 or newer")
    words = [npm, "ci", "--no-progress", *([] if with_tests else ["--omit=dev"])]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoParts(f"npm ci failed, {lacks}: {(done.stderr or done.stdout).strip()[-500:]}")


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
    if words not in ([], ["--tests"], ["--bundle"]):
        print(__doc__)
        return 2
    try:
        done = bring(with_tests=words == ["--tests"])
        if words == ["--bundle"] and bundle():
            print(f"page_parts: the bundle of the page is in gpuqueue/web/{BUILT}")
    except NoParts as error:
        print(f"page_parts: {error}", file=sys.stderr)
        return 1
    print("page_parts: the parts of the page are " + ("in gpuqueue/web/vendor" if done else "there already"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
