"""Jobs that bring their code: a real service, worker and shim, and the time after the run."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from bounded import until
from git_trees import make
from site_of_one import BIN, Site

from gpuqueue.files.blob_store import blob_store_of, directory_of
from gpuqueue.files.errors import SnapshotNotHeld
from gpuqueue.model.job import JobState
from workers.services.prune import delete_code
from workers.services.snapshot_prune import collect_snapshots

NEVER = threading.Event()


@pytest.fixture
def served(site: Site, tmp_path: Path) -> Site:
    """Return a site with a worker, a recorder and a service, which its commands use."""
    path = tmp_path / "api.sock"
    site.start_recorder()
    site.start_worker()
    site.spawn_command([str(BIN / "gpuqueue"), "serve", "--socket", str(path)])
    site.environ["GPUQUEUE_URL"] = f"unix://{path}"
    until(lambda: site.cli("queue", check=False).returncode == 0, what="the service")
    return site


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory with a script that reads a file of another directory, and writes one."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "train.py").write_text("print(open('../data').read()); open('made', 'w').write('result')\n")
    (root / "data").write_text("first")
    return root


def submitted(site: Site, project: Path, *options: str) -> int:
    """Submit the script with the code of the project."""
    words = ("--mem", "1M", "--cwd", str(project / "src"), "--snapshot", str(project))
    done = site.cli("submit", "train.py", *words, *options)
    assert done.stderr.startswith("gpuqueue: code: 2 files of ")
    return int(done.stdout)


def test_a_job_runs_the_code_as_it_was_at_submit(served: Site, project: Path) -> None:
    """What is edited after the submit, or deleted, changes nothing; a retry runs the same code again."""
    first = submitted(served, project, "--hold")
    (project / "data").write_text("second")
    second = submitted(served, project, "--hold")
    shutil.rmtree(project)
    served.cli("release", str(first), str(second))

    assert ["first", "second"] == [_output(served, each) for each in (first, second)]
    again = int(served.cli("retry", str(first)).stdout.split()[-1])
    assert "first" == _output(served, again)
    assert "code       a copy of its own, snapshot " in served.cli("show", str(first)).stdout


def _output(site: Site, job: int) -> str:
    """Return the output of a job that succeeds."""
    site.until_recorded(job)
    assert JobState.SUCCEEDED is site.client.jobs.get(job).state, site.cli("logs", str(job), check=False)
    return site.cli("logs", str(job)).stdout.strip()


@pytest.mark.full
def test_a_host_without_the_code_is_no_failure_of_the_job(served: Site, project: Path) -> None:
    """The claim is released, the host is excluded for the job, and the reason says what is missing."""
    job = submitted(served, project, "--hold")
    shutil.rmtree(directory_of(served.settings))
    served.cli("release", str(job))

    held = served.until_state(job, JobState.HELD)
    assert "this host has no copy of the job's code" in str(held.because)


@pytest.mark.full
def test_code_goes_after_its_time_and_the_log_keeps_its_own(served: Site, project: Path) -> None:
    """The directory of the code is deleted some time after the run. The log of the run stays, and so do newer runs."""
    job = submitted(served, project)
    run = served.until_recorded(job).runs[-1]
    directory = Path(str(run.log_path)).parent
    kept = {"log", "log.times", "user", "code"}
    until(lambda: {each.name for each in directory.iterdir()} == kept, what="the settlement")
    assert "result" == (directory / "code" / "tree" / "src" / "made").read_text()
    settled = directory.stat().st_mtime

    assert 0 == delete_code(served.settings.runs_dir, settled - 1, None, NEVER, set(), lambda *_: False)
    assert 1 == delete_code(served.settings.runs_dir, settled + 1, None, NEVER, set(), lambda *_: False)

    assert kept - {"code"} == {each.name for each in directory.iterdir()}
    assert settled == directory.stat().st_mtime


@pytest.mark.full
def test_a_snapshot_stays_as_long_as_a_job_needs_it(served: Site, project: Path) -> None:
    """What a waiting job uses is never collected, nor its difference from the commit; what ended jobs used is."""
    make(project)
    waiting = submitted(served, project, "--hold")
    (project / "data").write_text("other")
    ended = submitted(served, project)
    served.until_recorded(ended)
    used, unused = (_address(served, each) for each in (waiting, ended))
    month_ago = time.time() - 31 * 86400
    store = blob_store_of(served.settings)
    for path in store.blobs.rglob("*"):
        os.utime(path, (month_ago, month_ago))

    # The manifest, the changed file and the difference of the second job.
    assert 3 == collect_snapshots(served.settings, served.queue, served.client.database)

    assert store.manifest_text(used)
    assert b"no difference to commit " == served.client.snapshots.diff(waiting)[:24]
    with pytest.raises(SnapshotNotHeld):
        store.manifest_text(unused)
    served.cli("release", str(waiting))
    assert "first" == _output(served, waiting)


def _address(site: Site, job: int) -> str:
    return str(site.client.jobs.get(job).spec.snapshot).partition(":")[0].partition("+")[0]


@pytest.mark.parametrize(
    "script", ["open('data/train.bin')", "import os, sys; os.execlp('cat', 'cat', os.path.abspath('data/train.bin'))"]
)
def test_a_file_that_stayed_with_the_submitter_is_named_before_and_after(
    served: Site, tmp_path: Path, script: str
) -> None:
    """A job lacked a file that git ignores, and no command said that the file had not travelled."""
    root = make(tmp_path / "repository", "train.py", ".gitignore")
    (root / "train.py").write_text(script)
    (root / ".gitignore").write_text("data/\n")
    (root / "data").mkdir()
    (root / "data" / "train.bin").write_bytes(bytes(1_150_000))

    done = served.cli("submit", "train.py", "--mem", "1M", "--cwd", str(root), "--snapshot", str(root))
    failed = served.until_recorded(int(done.stdout))

    assert "gpuqueue: 1 ignored file stays here: data/train.bin 1.1M\n" in done.stderr
    assert JobState.FAILED is failed.job.state
    line = f"{root}/data/train.bin is here, where the job was submitted, but not where it ran: ignored and newer files"
    assert line in served.cli("show", done.stdout.strip()).stdout
    (root / "data" / "train.bin").unlink()
    assert "is here" not in served.cli("show", done.stdout.strip()).stdout
