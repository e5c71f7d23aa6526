#!/usr/bin/env python3
"""What a contributor does every day, with nothing but Python 3.10 or newer.

python3 dev.py demo         set up .venv, run a real training job through the queue, show its history
python3 dev.py test         set up .venv, then lint, types, layers and the quick tests: about 12 minutes on 2 cores
python3 dev.py test --full  the same with every test, coverage of the quick ones, and the other Pythons: 50 minutes
python3 dev.py lint         only lint, types, layers and the links of the documentation
python3 dev.py docs         bring the reference pages up to the code, and build the site of docs/ into build/site
python3 dev.py unit         only the tests that need no process, socket or file
python3 dev.py dist         build the wheel and the source archive into dist/, and check them
python3 dev.py gpu          a plan of ten minutes on a real card, with a report to send; exit code 3: no GPU answers
python3 dev.py version      print the version of the package
python3 dev.py pythons      only unit and Celery tests, on every other Python from 3.10 to 3.13 that is installed
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import page_parts

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
MIN_PYTHON = (3, 10)
#: Prints nothing if .venv is whole: its making may have been stopped, or another Python may have made it.
IS_WHOLE = f"import pip, sys; sys.exit(sys.version_info < {MIN_PYTHON})"
#: The plug-in whose packages do not go with those of the tests. It is tested in an environment of its own.
SNAKEMAKE = ROOT / "integrations" / "snakemake"
#: The other packages of integrations/. They are installed with what the tests need.
PLUGINS = tuple(sorted({path.parent for path in ROOT.glob("integrations/*/pyproject.toml")} - {SNAKEMAKE}))
#: What is installed in .venv: a line for each set of extras, with the digest of what decides it.
INSTALLED = VENV / "installed.txt"
#: The demo's own state: it never touches a queue that you use.
DEMO_STATE = ROOT / ".demo"
#: Tools of tests/guard -> what is not tested where the tool is missing, since those tests are skipped then.
COUNTS = {"valgrind": "instructions of a claim and of each command", "gcc": "allocations of a claim"}
#: Programs of tests that are marked as full -> what is not tested without them, and the packages of Debian.
SERVERS = {"slurmctld": ("engines and pilots in a real Slurm", "slurmctld slurmd slurm-client munge")}
#: The other Pythons, each with the Celery that is tried there: every version that we say we support.
PYTHONS = {"3.10": "5.5", "3.11": "5.7", "3.12": "5.6", "3.13": "5.7"}
PYTEST = (BIN / "python", "-m", "pytest")
#: Most of the time of a test goes into waiting for processes, so that more of them run at once than there are cores.
IN_PARALLEL = ("-n", "4", "--dist", "worksteal", "-rs", "--durations", "10")
#: The commands that have failed. They are shown again at the end, below thousands of lines of the tests.
FAILED: list[str] = []
#: What those tests need beside the package itself.
NEEDS = ("flower", "hypothesis", "psycopg[binary]", "pytest", "pytest-timeout", "pytest-xdist", "ruamel.yaml", "tqdm")


def main(words: list[str]) -> int:
    """Run one of the verbs above."""
    if sys.version_info[:2] < MIN_PYTHON:
        print(f"gpuqueue needs Python 3.10 or newer, and this is {sys.version.split()[0]}: name another, as python3.12")
        return 1
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the tests start hundreds of processes of the same code
    os.umask(0o022)  # the tests run programs of .venv as other accounts
    verbs = {
        "demo": demo,
        "test": test,
        "test --full": test_full,
        "lint": lint,
        "docs": docs,
        "unit": unit,
        "pythons": pythons,
        "dist": dist,
        "gpu": gpu,
        "version": version,
    }
    verb = verbs.get(" ".join(words))
    if verb is None:
        print(__doc__)
        return 2
    code = verb()
    for command in FAILED:
        print(f"\nFAILED: {command}", flush=True)
    return code


def demo() -> int:
    """Run examples/train.py through the queue and show what the history knows of it."""
    set_up("examples")
    DEMO_STATE.mkdir(exist_ok=True)
    with_venv = {
        **os.environ,
        "VIRTUAL_ENV": str(VENV),
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "GPUQUEUE_STATE_DIR": str(DEMO_STATE),
    }
    steps = (
        "gpuqueue up",
        "gpuqueue run examples/train.py --mem 2G --name demo -- --epochs 3",
        "gpuqueue history",
        "gpuqueue down",
    )
    code = 0
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which asks what to do with the job
    for step in steps:
        if code == 0:
            print(f"\n$ {step}", flush=True)
            code = subprocess.run(shlex.split(step), cwd=ROOT, env=with_venv, check=False).returncode
    if code:
        print("\n$ gpuqueue down --cancel-jobs", flush=True)
        subprocess.run([BIN / "gpuqueue", "down", "--cancel-jobs"], cwd=ROOT, env=with_venv, check=False)
    else:
        print("\nThat was a real job. For your own: source .venv/bin/activate, gpuqueue up, gpuqueue submit --help")
    return code


def test() -> int:
    """Run lint, types, layers and the quick tests."""
    set_up("docs", "examples", "test")
    page()
    return worst(lint_and_compile(), run(*PYTEST, "-m", "not full", *IN_PARALLEL))


def test_full() -> int:
    """Run everything that must be green: every test, on every store server and every Python.

    Coverage is measured with the quick tests only: it doubles the time of each process, and the other tests start
    thousands.
    """
    set_up("docs", "examples", "test")
    page()
    code = worst(
        lint_and_compile(),
        run(BIN / "coverage", "erase"),
        run(*PYTEST, "-m", "not full", *IN_PARALLEL, "--cov", "--cov-report=term"),
        run(*PYTEST, "-m", "full", *IN_PARALLEL),
        other_servers(),
        pythons(),
        snakemake(),
    )
    for tool, what in COUNTS.items():
        if shutil.which(tool) is None:
            print(f"\nNOT TESTED: {what}. Their tests need {tool}: apt install {tool}", flush=True)
    for program, (what, packages) in SERVERS.items():
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            print(f"\nNOT TESTED: {what}. Their tests need {program}: apt install {packages}", flush=True)
    return code


def other_servers() -> int:
    """Run the tests of the queue on each store server that is on PATH, beside the bundled one."""
    codes = [0]
    for name in ("redis-server", "valkey-server"):
        program = shutil.which(name)  # no walrus here: Python 3.7 must be able to read this file, to be refused
        if program:
            os.environ["STORE_SERVER"] = program
            codes.append(run(*PYTEST, "tests/integration/queue", "tests/contract/test_store_clients.py", *IN_PARALLEL))
            del os.environ["STORE_SERVER"]
        else:
            print(f"\nNOT TESTED: the queue on {name}: it is not installed here", flush=True)
    return worst(*codes)


def lint() -> int:
    """Check style, types and floors."""
    set_up("docs", "examples", "test")
    page()
    return lint_only()


def lint_and_compile() -> int:
    """Check style, types and floors, while pytest compiles the tests.

    pytest compiles a test when it collects it, which takes most of a minute for all of them. Without this, each process
    of the run that follows would compile all tests. That run reports the errors in test files.
    """
    command = [*map(str, PYTEST), "--collect-only"]
    with ThreadPoolExecutor(1) as beside:
        beside.submit(subprocess.run, command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        return lint_only()


def lint_only() -> int:
    """Check style, types and floors; everything is installed. mypy takes the longest, and runs beside the others."""
    with ThreadPoolExecutor(1) as beside:
        types = beside.submit(subprocess.run, [BIN / "mypy"], cwd=ROOT, capture_output=True, text=True, check=False)
        code = worst(
            run(BIN / "ruff", "check", "."),
            run(BIN / "ruff", "format", "--check", "."),
            run(BIN / "lint-imports"),
            page_types(),
            site(),
        )
        found = types.result()
    print(f"\n$ .venv/bin/mypy\n{found.stdout}{found.stderr}", end="", flush=True)
    if found.returncode:
        FAILED.append(".venv/bin/mypy")
    return worst(code, found.returncode)


def page() -> None:
    """Bring the third-party parts of the web page, and what checks it. Without Node.js, all but the page works."""
    try:
        page_parts.bring(with_tests=True)
    except page_parts.NoParts as error:
        print(f"\nNOT TESTED: the web page: {error}", flush=True)


def page_types() -> int:
    """Check the types of the page's modules, if TypeScript is there."""
    compiler = ROOT / "node_modules" / ".bin" / "tsc"
    return run(compiler, "-p", "gpuqueue/web/tsconfig.json") if compiler.exists() else 0


def docs() -> int:
    """Bring the reference pages up to the code, and build the site."""
    set_up("docs", "examples", "test")
    return run(BIN / "python", "docs/reference/generate.py") or site()


def site() -> int:
    """Build the site of docs/; a link or an anchor that leads nowhere fails it."""
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # the theme's advice, in every run
    return run(BIN / "python", "-m", "mkdocs", "build", "--strict")  # with --quiet it would not count


def unit() -> int:
    """Run the quick tests."""
    set_up("examples", "test")
    return run(BIN / "python", "-m", "pytest", "tests/unit", "-q")


def pythons() -> int:
    """Run the unit tests and those of the hand-over to Celery on the other Pythons, each in its own environment."""
    codes = [0]
    for version, celery in PYTHONS.items():
        interpreter = find_python(version)
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            continue
        if interpreter is None:
            print(f"\nPython {version} is not installed here: skipped", flush=True)
            continue
        home = VENV.with_name(f".venv-{version}")
        if not (home / "bin" / "python").exists():
            run(interpreter, "-m", "venv", home)
        python = home / "bin" / "python"
        code = install(python, "-e", f"{ROOT}[python,service]", f"celery[redis]~={celery}.0", *NEEDS)
        tests = ("tests/unit", "tests/integration/workers/test_celery.py")
        codes.append(code or run(python, "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider", *IN_PARALLEL))
    return worst(*codes)


def snakemake() -> int:
    """Run the tests of the plug-in for Snakemake, which needs Python 3.11 or newer, in an environment of its own."""
    interpreter = next(filter(None, map(find_python, ("3.11", "3.12", "3.13"))), None)
    if interpreter is None:
        print("\nNOT TESTED: the plug-in for Snakemake: no Python from 3.11 to 3.13 is installed here", flush=True)
        return 0
    python = VENV.with_name(".venv-snakemake") / "bin" / "python"
    if not python.exists():
        run(interpreter, "-m", "venv", python.parents[1])
    code = install(python, "-e", str(ROOT), "-e", f"{SNAKEMAKE}[test]", *NEEDS)
    return code or run(python, "-m", "pytest", SNAKEMAKE, "-q", "-p", "no:cacheprovider", *IN_PARALLEL)


def gpu() -> int:
    """Run the plan for a real card, whose report is in build/gpu-report.txt. 3: no NVIDIA GPU answers."""
    set_up("test")
    return subprocess.run([BIN / "python", "tests/gpu/plan.py"], cwd=ROOT, check=False).returncode


def dist() -> int:
    """Build what a release publishes, and check that it has the web page and that a package index will take it."""
    try:
        page_parts.bring()
        page_parts.bundle()
    except page_parts.NoParts as error:
        print(f"nothing is built: {error}", flush=True)
        return 1
    set_up("test")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    code = run(BIN / "python", "-m", "build", "--outdir", "dist")
    for wheel in (ROOT / "dist").glob("*.whl"):
        names = zipfile.ZipFile(wheel).namelist()
        if not {"gpuqueue/web/vendor/preact.js", "gpuqueue/web/built/app.js"} <= {*names}:
            print(f"{wheel.name} has no web page: the source archive lacks its parts", flush=True)
            code = 1
    return code or run(BIN / "twine", "check", "--strict", *sorted((ROOT / "dist").iterdir()))


def version() -> int:
    """Print the version."""
    match = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    print(match[1] if match else "unknown")
    return int(match is None)


def worst(*codes: int) -> int:
    """Return 0 only if all went well: a negative code is a process that a signal ended."""
    return int(any(codes))


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that works: on PATH, or one that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for candidate in (shutil.which(f"python{version}"), *sorted(map(str, kept.glob(f"{version}*/bin/python")))):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def set_up(*extras: str) -> None:
    """Make .venv if need be, and bring what is installed there up to pyproject.toml."""
    python = BIN / "python"
    if not python.exists() or subprocess.run([python, "-c", IS_WHOLE], capture_output=True, check=False).returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        print(f"making {VENV}", flush=True)
        try:
            venv.create(VENV, symlinks=True, with_pip=True)  # as `python -m venv` does
        except subprocess.CalledProcessError:
            shutil.rmtree(VENV, ignore_errors=True)
            print("this Python cannot make environments: on Debian and Ubuntu, apt install python3-venv")
            sys.exit(1)
    decisive = ("pyproject.toml", "hatch_build.py", "gpuqueue/version.py")
    files = (*(ROOT / name for name in decisive), *(plugin / "pyproject.toml" for plugin in PLUGINS))
    digest = hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest()
    line = f"{','.join(extras)} {digest}"
    known = INSTALLED.read_text().splitlines() if INSTALLED.exists() else []
    if line in known:
        return
    # Python compiles a module at its first import. Most modules of torch are never imported, so pip compiles none.
    plugins = [word for plugin in PLUGINS for word in ("-e", f"{plugin}[test]")] if "test" in extras else []
    # This package comes first: pip looks for what a plug-in needs of it among the packages that it knows already.
    code = install(python, "--no-compile", "-e", f"{ROOT}[{','.join(extras)}]", *plugins)
    if code:
        sys.exit(code)
    valid = [other for other in known if other.endswith(digest)]
    INSTALLED.write_text("\n".join([*valid, line]))


def install(python: str | Path, *words: str) -> int:
    """Install with pip, and return its exit code. What pip prints is shown only if it fails."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *words]
    shown = shlex.join(command).replace(f"{ROOT}{os.sep}", "")
    print(f"\n$ {shown}", flush=True)
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    if done.returncode:
        print(done.stdout, end="", flush=True)
        FAILED.append(shown)
    return done.returncode


def run(*command: str | Path) -> int:
    """Show a command, run it in the repository, return its exit code."""
    words = [str(word) for word in command]
    shown = shlex.join(words).replace(f"{ROOT}{os.sep}", "")
    print(f"\n$ {shown}", flush=True)
    code = subprocess.run(words, cwd=ROOT, check=False).returncode
    if code:
        FAILED.append(shown)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
