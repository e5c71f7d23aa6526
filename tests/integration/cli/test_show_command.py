"""The ``show`` command: a job's details, including the end of its log."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

GIT = [shutil.which("git") or "git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk"]
SUPPORT = Path(__file__).parents[2] / "support"
#: Waits until the worker has measured the memory of the job.
PYTHON = shlex.join(["env", f"PYTHONPATH={SUPPORT}", sys.executable])
MEASURED = f"{PYTHON} -c 'from metered import until_seen; until_seen(peak_bytes=1)'"
WRITES = f"{MEASURED}; seq 100; printf 'a\\033[31mb\\033[0m\\n 10%%|#  | 1/10\\r100%%|###| 10/10\\n'"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a repository with one commit."""
    made = tmp_path / "code"
    made.mkdir()
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*GIT, *words], cwd=made, check=True)
    return made


@pytest.mark.full
def test_show_prints_the_commit_the_memory_and_the_end_of_the_log(site: Site, code: Path) -> None:
    """``show`` has the commit, the memory and the last log lines.

    A redrawn progress bar appears once, and escape sequences of the log are removed.
    """
    site.start_recorder()
    site.start_worker()
    job_id = site.cli("submit", "--mem", "1G", "--cwd", str(code), "--", "sh", "-c", WRITES).stdout.strip()
    site.cli("wait", job_id)

    lines = site.cli("show", job_id).stdout.splitlines()

    (git,) = [line for line in lines if line.startswith("  git ")]
    assert " on trunk, " in git
    (memory,) = [line for line in lines if line.startswith("memory: ")]
    assert memory.startswith("memory: asked 1G, used ")
    assert [f"the end of its log (gpuqueue logs {job_id}):", "  95"] == lines[-9:-7]
    assert ["  100", "  ab", "  100%|###| 10/10"] == lines[-3:]
    reported = json.loads(site.cli("show", "--json", job_id).stdout)["job"]["spec"]["git"]
    assert ("trunk", 40) == (reported["branch"], len(reported["commit"]))


@pytest.mark.full
def test_a_note_of_several_lines_is_shown_in_them(site: Site) -> None:
    """A note with several lines is shown with its line breaks, not with replacement characters."""
    site.make_tables()
    job_id = site.cli("submit", "--mem", "1G", "--", "true").stdout.strip()
    site.cli("note", job_id, "diverges\nat step 12")

    assert "  note       diverges\n             at step 12\n" in site.cli("show", job_id).stdout


@pytest.mark.full
def test_no_commit_is_recorded_if_it_is_turned_off(site: Site, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is not recorded with ``--no-git`` or if the setting forbids it."""
    site.make_tables()
    words = ("submit", "--mem", "1G", "--cwd", str(code))
    monkeypatch.setitem(site.environ, "GPUQUEUE_GIT", "true")
    wanted, unwanted = (site.cli(*words, *more, "--", "true").stdout.strip() for more in ((), ("--no-git",)))
    monkeypatch.setitem(site.environ, "GPUQUEUE_GIT", "false")
    not_set = site.cli(*words, "--", "true").stdout.strip()

    noted = {str(job["id"]): job["spec"]["git"] for job in json.loads(site.cli("queue", "--json").stdout)["jobs"]}

    assert "trunk" == noted[wanted]["branch"]
    assert noted[unwanted] is noted[not_set] is None


@pytest.mark.full
def test_the_end_of_a_separate_standard_error_is_shown(site: Site) -> None:
    """With a separate standard error its end is shown too, because it has the traceback."""
    site.start_recorder()
    site.start_worker()
    script = "echo out; echo the reason >&2; exit 3"
    job_id = site.cli("submit", "--separate-stderr", "--mem", "1M", "--", "sh", "-c", script).stdout.strip()
    site.cli("wait", job_id, check=False)

    lines = site.cli("show", job_id).stdout.splitlines()

    assert [f"the end of its standard error (gpuqueue logs --stderr {job_id}):", "  the reason"] == lines[-2:]
    assert "  out" in lines


@pytest.mark.full
def test_without_the_store_show_reads_the_history(site: Site) -> None:
    """Without the store ``show`` uses the history. If the history lacks the job, the error is about the store."""
    site.start_recorder()
    site.start_worker()
    job_id = site.cli("submit", "--mem", "1M", "--", "true").stdout.strip()
    array = site.cli("submit", "--mem", "1M", "--array", "0-1", "--", "true").stdout.strip()
    site.cli("wait", job_id, array)
    site.until_recorded(int(array))
    site.environ["GPUQUEUE_REDIS_URL"] = "unix:///nowhere/store.sock"

    for name in (job_id, array, f"{array}_1"):
        shown = site.cli("show", name)
        assert "state      succeeded" in shown.stdout
        assert "does not answer" in shown.stderr
        assert shown.stderr.endswith(". The following is from the history\n")
    assert "succeeded" == json.loads(site.cli("show", "--json", f"{array}_0").stdout)["job"]["state"]
    for unknown in ("99", f"{array}_7"):
        missing = site.cli("show", unknown, check=False)
        assert (missing.returncode, missing.stdout) in ((4, ""), (3, ""))
        assert 1 == missing.stderr.count("\n")


def test_without_the_store_logs_and_wait_of_an_ended_job_read_the_history(site: Site) -> None:
    """They said that the store does not answer, where `show` printed the end of the same log."""
    site.start_recorder()
    site.start_worker()
    well = site.cli("submit", "--mem", "1M", "--", "echo", "well").stdout.strip()
    bad = site.cli("submit", "--mem", "1M", "--array", "0-1", "--", "sh", "-c", "echo {index}; exit 3").stdout.strip()
    waiting = site.cli("submit", "--mem", "1M", "--hold", "--", "true").stdout.strip()
    site.cli("wait", well, bad, check=False)
    for job_id in (well, bad):
        site.until_recorded(int(job_id))
    site.environ["GPUQUEUE_REDIS_URL"] = "unix:///nowhere/store.sock"

    for words in ((), ("--tail", "1"), ("--run", "1"), ("--follow",)):
        assert "well\n" == site.cli("logs", *words, well).stdout
    assert "1\n" == site.cli("logs", f"{bad}_1").stdout
    assert [0, 3, 3] == [site.cli("wait", name, check=False).returncode for name in (well, bad, f"{bad}_0")]
    assert f"{well}\n" == site.cli("wait", "--any", well, waiting).stdout
    for command in ("logs", "wait"):
        away = site.cli(command, waiting, check=False)
        assert (4, "", 1) == (away.returncode, away.stdout, away.stderr.count("\n"))
        assert "does not answer" in away.stderr


def test_an_ended_job_without_a_log_is_refused_when_it_is_followed_too(site: Site) -> None:
    """`logs -f` of a job that was cancelled before it ran printed nothing, with exit code 0."""
    job_id = site.cli("submit", "--mem", "1M", "--hold", "--", "true").stdout.strip()
    site.cli("cancel", job_id)

    for words in ((), ("--follow",)):
        done = site.cli("logs", *words, job_id, check=False)
        assert (5, "") == (done.returncode, done.stdout)
        assert f"job {job_id} (cancelled) has no log yet: it has not run" in done.stderr


@pytest.mark.full
def test_show_prints_the_current_state_of_a_running_job(site: Site) -> None:
    """For a running job ``show`` has the time, memory and progress that ``queue`` has.

    It used to print ``took -`` and ``peak - (not measured)``.
    """
    site.make_tables()
    site.start_worker()
    writes = "printf ' epoch 1/1:  50%%|#####     | 5/10 [00:05<00:05]\\r'; sleep 600"
    job_id = site.cli("submit", "--mem", "1G", "--", "sh", "-c", writes).stdout.strip()

    def story() -> str | None:
        shown = site.cli("show", job_id).stdout
        return shown if "epoch 1/1, 50 %" in shown else None

    shown = until(story, timeout_s=30, what="its progress in its story")
    site.cli("cancel", job_id)

    assert shown is not None
    assert re.search(r"^  took       \S+ so far$", shown, re.MULTILINE), shown
    assert re.search(r"^  memory     \S+/1G now$", shown, re.MULTILINE), shown
    assert "not measured" not in shown
    assert "its peak is reported at the end" in shown
