"""Tests of the notes of a log's size over time, and of a separate standard error, with real shims and a site."""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import JobState
from workers.shim.log import LogTimes

BOTH = "echo out; echo err >&2; echo more"


@pytest.mark.full
def test_a_shim_notes_when_the_log_was_how_long(shims: Any, tmp_path: Path) -> None:
    """A shim notes the size of the log over time, also at the end, and only when it has changed."""
    began_s = time.time()
    gate = tmp_path / "gate"
    # After the first note the job stays silent for longer than the time between two checks.
    shim = shims("sh", "-c", f"printf one; until [ -e {gate} ]; do sleep 0.05; done; sleep 1.2; printf two")
    until((shim.directory.path / "log.times").exists, what="a note while the job runs")
    gate.touch()
    shim.ended()

    lines = (shim.directory.path / "log.times").read_text().split("\n")
    noted = [(float(at), int(size)) for at, size in (line.split() for line in lines if line)]

    assert [3, 6] == [size for _, size in noted]
    assert began_s - 1 <= noted[0][0] <= noted[1][0] - 1.0 <= time.time()


def test_notes_become_seldom_and_stop_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's size is noted at most once a second.

    A pipe or a link in place of the notes is not written to, and nothing is raised.
    """
    monkeypatch.chdir(tmp_path)
    log, times = tmp_path / "log", LogTimes("log")
    times.check(0.0)
    for second, size in ((0.0, 1), (0.5, 2), (1.0, 3)):
        log.write_bytes(b"x" * size)
        times.check(second)
    assert ["1", "3"] == [line.split()[1] for line in (tmp_path / "log.times").read_text().splitlines()]

    (tmp_path / "log.times").unlink()
    (tmp_path / "log.times").symlink_to(tmp_path / "elsewhere")
    log.write_bytes(b"x" * 9)
    times.check(10.0)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "log.times").unlink()
    os.mkfifo(tmp_path / "log.times")
    log.write_bytes(b"x" * 10)
    times.check(20.0)


@pytest.mark.full
def test_standard_error_apart(site: Site) -> None:
    """With `--separate-stderr` each stream has its own file, and `run` prints each on its own stream."""
    site.start_recorder()
    site.start_worker()

    shown = site.cli("run", "--separate-stderr", "--mem", "1M", "--", "sh", "-c", BOTH)

    assert "out\nmore\n" == shown.stdout
    assert "err" in shown.stderr.splitlines()
    assert "out\nmore\n" == site.cli("logs", "1").stdout
    assert "err\n" == site.cli("logs", "--stderr", "1").stdout
    assert "err\n" == site.cli("logs", "--stderr", "-f", "1").stdout


@pytest.mark.full
def test_files_are_links_to_the_logs(site: Site, tmp_path: Path) -> None:
    """--output and --error are links to the logs of the last run, and each member of an array has its own."""
    site.start_recorder()
    site.start_worker()
    here = ("--mem", "1M", "--cwd", str(tmp_path))
    command = ("--", "sh", "-c", BOTH)

    site.cli("run", "--output", "out-%j.txt", "--error", "err.txt", *here, *command)
    assert ("out\nmore\n", "err\n") == ((tmp_path / "out-1.txt").read_text(), (tmp_path / "err.txt").read_text())
    assert "out\nmore\n" == site.cli("logs", "1").stdout
    site.cli("wait", site.cli("retry", "1").stdout.strip())
    assert (tmp_path / "out-2.txt").exists()
    assert str((tmp_path / "err.txt").readlink()).startswith(str(site.settings.runs_dir / "2"))

    array = site.cli("submit", "--array", "3-4", "--output", "%x_%A_%a", "--name", "n", *here, *command).stdout.strip()
    site.cli("wait", array)
    assert "out\nerr\nmore\n" == (tmp_path / f"n_{array}_4").read_text()
    assert "  output     n_%A_%a\n" in site.cli("show", array).stdout


@pytest.mark.full
def test_standard_error_that_is_not_apart(site: Site) -> None:
    """`logs --stderr` of a job with one log fails with one line that names `--separate-stderr`.

    That option cannot be combined with `--pty`, because a terminal has one output.
    """
    site.start_recorder()
    site.start_worker()
    site.cli("run", "--mem", "1M", "--", "sh", "-c", BOTH)

    assert "out\nerr\nmore\n" == site.cli("logs", "1").stdout
    refused = site.cli("logs", "--stderr", "1", check=False)
    assert (5, "") == (refused.returncode, refused.stdout)
    assert "submit --separate-stderr keeps it apart" in refused.stderr
    wrong = site.cli("submit", "--pty", "--separate-stderr", "--mem", "1M", "--", "true", check=False)
    assert (2, "") == (wrong.returncode, wrong.stdout)
    assert "choose --pty or --separate-stderr" in wrong.stderr


@pytest.mark.full
def test_a_job_that_ran_out_of_memory_says_so_on_either_stream(site: Site) -> None:
    """An out-of-memory message is recognized on either stream."""
    site.start_recorder()
    site.start_worker()
    words = (
        "--separate-stderr",
        "--mem-retries",
        "0",
        "--mem",
        "1M",
        "--",
        "sh",
        "-c",
        "echo CUDA out of memory >&2; exit 1",
    )
    site.cli("run", *words, check=False)

    assert "out of memory" in site.cli("show", "1").stdout
    assert "out_of_memory" in site.cli("history", "--json").stdout


@pytest.mark.full
def test_since(site: Site, tmp_path: Path) -> None:
    """`logs --since` shows what a job has written since a time, from the shim's notes."""
    site.start_recorder()
    site.start_worker()
    go = tmp_path / "go"
    script = f"echo early; until [ -e {go} ]; do sleep 0.1; done; echo late"
    job_id = site.cli("submit", "--mem", "1M", "--", "sh", "-c", script).stdout.strip()
    site.until_state(int(job_id), JobState.RUNNING)
    notes = f"{job_id}/*/log.times"
    noted = until(lambda: [each for each in site.settings.runs_dir.glob(notes) if each.read_text()], what="a note")
    assert noted
    early_s = float(noted[0].read_text().split()[0])
    until(lambda: time.time() > early_s + 2, timeout_s=30, what="another second")
    go.touch()
    site.cli("wait", job_id)

    between = datetime.fromtimestamp(early_s + 1).isoformat()  # noqa: DTZ006 - local, as a person writes it
    assert "early\nlate\n" == site.cli("logs", "--since", "1h", job_id).stdout
    assert "late\n" == site.cli("logs", "--since", between, job_id).stdout
    assert "" == site.cli("logs", "--since", "0.001s", job_id).stdout
    both = site.cli("logs", "--since", "1h", "--tail", "1", job_id, check=False)
    assert (2, "gpuqueue: --tail and --since both say where to begin: choose one\n") == (both.returncode, both.stderr)
    noted[0].unlink()
    whole = site.cli("logs", "--since", between, job_id)
    assert "early\nlate\n" == whole.stdout
    assert "was not noted" in whole.stderr


def test_the_last_lines_of_progress_bars_are_what_a_terminal_shows(site: Site) -> None:
    """`logs --tail`, also with --follow, and `show` print one line for a bar that was redrawn for megabytes."""
    site.start_recorder()
    site.start_worker()
    bars = 'print(*(f"epoch {n}/3: {step:5}/9000 |##########|" for step in range(9001)), sep="\\r")'
    script = f'for n in (1, 2, 3):\n    {bars}\n    print(f"loss\\t{{1 / n:.3f}}")\n'
    job_id = site.cli("submit", "--mem", "1M", "--", sys.executable, "-c", script).stdout.strip()
    site.until_recorded(int(job_id))

    last = "loss\t0.500\nepoch 3/3:  9000/9000 |##########|\nloss\t0.333\n"
    assert last == site.cli("logs", "--tail", "3", job_id).stdout
    assert last == site.cli("logs", "--tail", "3", "--follow", job_id).stdout
    shown = site.cli("show", job_id).stdout.splitlines()
    assert ["  epoch 3/3:  9000/9000 |##########|", "  loss    0.333"] == shown[-2:]
    assert len(site.cli("logs", job_id).stdout) > 500_000  # for programs: all of it
