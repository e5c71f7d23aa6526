"""A success that is none has a note, wherever a person reads of its end: with a real worker, shim and processes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Record

SUPPORT = Path(__file__).parents[2] / "support"
BACKGROUND = """#!/bin/bash
nohup sleep 600 > /dev/null 2>&1 &
echo started
"""
#: Holds memory until its peak would be trusted, and fails as torch does, in front of a pipe.
FAILS = """
import sys
sys.path.insert(0, {support!r})
from metered import until_seen
held = b"x" * (300 * 2**20)
until_seen(peak_bytes=len(held), samples=10)
if sys.argv[1] == "fail":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")
"""
PIPE = f"""#!/bin/bash
{shlex.quote(sys.executable)} train.py $1 2>&1 | tee train.log
"""


@pytest.fixture
def working(site: Site, tmp_path: Path) -> Site:
    """Return a site with a worker, a recorder, and the scripts in *tmp_path*."""
    site.start_recorder()
    site.start_worker()
    for name, text in {"background.sh": BACKGROUND, "pipe.sh": PIPE}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.py").write_text(FAILS.format(support=str(SUPPORT)))
    return site


def run(site: Site, where: Path, script: str, *args: str) -> tuple[subprocess.CompletedProcess[str], Record]:
    """Run a script in the foreground, and return what was printed, and its record."""
    done = site.cli("run", "--no-git", "--cwd", str(where), "--mem", "2G", script, "--", *args)
    return done, site.until_recorded(int(done.stderr.split()[2]))


def places(site: Site, done: subprocess.CompletedProcess[str], record: Record) -> list[str]:
    """Return what is printed of the only note where its end is read, each as the sentence."""
    job = str(record.job.id)
    lines = site.cli("show", job).stdout.splitlines()
    shown = [line.removeprefix("  note       ") for line in lines if line.startswith("  note")]
    plain = json.loads(site.cli("show", "--json", job).stdout)["runs"][-1]["notes"]
    return [
        done.stderr.splitlines()[-1].removeprefix(f"gpuqueue: job {job}: "),
        site.cli("wait", job).stderr.removeprefix(f"gpuqueue: job {job}: ").rstrip("\n"),
        site.cli("logs", job).stdout.splitlines()[-1].removeprefix("gpuqueue: "),
        *shown,
        *(note["words"] for note in plain),
    ]


def test_what_ran_on_in_the_background_is_named(working: Site, tmp_path: Path) -> None:
    """The job succeeds at once, its training is ended, and each place says so in the same sentence."""
    done, record = run(working, tmp_path, "./background.sh")

    assert JobState.SUCCEEDED is record.job.state
    assert record.last_run is not None
    (note,) = record.last_run.notes
    assert note.words.startswith("ended 1 process that was still running: sleep 600 (pid ")
    assert note.words.endswith("); run it in the foreground, or put `wait` at the end of the script")
    assert [note.words] * 5 == places(working, done, record)


def test_a_failure_behind_a_pipe_is_named_and_teaches_nothing(working: Site, tmp_path: Path) -> None:
    """The job succeeds as before. The next one must not ask for the memory with which this one failed."""
    done, record = run(working, tmp_path, "./pipe.sh", "fail")

    assert JobState.SUCCEEDED is record.job.state
    assert record.last_run is not None
    (note,) = record.last_run.notes
    error = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free"
    assert note.words.startswith(f"exit 0, but a program in it failed: {error}; `set -eo pipefail` at the start of ")
    assert [note.words] * 5 == places(working, done, record)
    assert "a complete run may need more" in working.cli("show", str(record.job.id)).stdout
    auto = ("submit", "--no-git", "--cwd", str(tmp_path), "--mem", "auto", "--hold", "./pipe.sh", "--")
    refused = working.cli(*auto, "fail", check=False)
    assert (2, True) == (refused.returncode, "no earlier run of pipe.sh shows its memory" in refused.stderr)

    _, whole = run(working, tmp_path, "./pipe.sh", "succeed")

    assert whole.last_run is not None
    assert () == whole.last_run.notes
    assert "the last run" in working.cli(*auto, "succeed").stderr
