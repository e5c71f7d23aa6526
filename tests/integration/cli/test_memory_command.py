"""Learned memory on the command line, with a worker and a simulated device."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.text.units import GIB, MIB

SUPPORT = Path(__file__).parents[2] / "support"
#: Holds as many MiB as its argument says, until the worker has the ten samples from which a peak is trusted.
HOLDS = """
import sys
sys.path.insert(0, {tests!r})
from metered import until_seen
size_bytes = int(sys.argv[1]) * 2**20
held = b"x" * size_bytes
until_seen(peak_bytes=size_bytes, samples=10)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script that holds memory."""
    path = tmp_path / "train.py"
    path.write_text(HOLDS.format(tests=str(SUPPORT)))
    return path


def run(site: Site, script: Path, mem: str, *args: str) -> int:
    """Submit the script and wait until the history has its end; return the id."""
    job_id = int(site.cli("submit", "--no-git", "--mem", mem, str(script), "--", *args).stdout)
    record = site.until_recorded(job_id)
    assert JobState.SUCCEEDED is record.job.state
    return job_id


def test_the_second_submit_of_a_script_gets_a_right_sized_request(site: Site, script: Path) -> None:
    """The first job asks for twice what it needs, as people do; the second one for what the first one needed."""
    site.start_recorder()
    site.start_worker()
    first = site.client.jobs.show(run(site, script, "6G", "300")).last_run
    assert first is not None
    peak = first.peak_bytes
    assert peak is not None
    assert 300 * MIB < peak < 400 * MIB

    done = site.cli("submit", "--no-git", "--mem", "auto", "--hold", str(script), "--", "300")
    spec = json.loads(site.cli("show", "--json", done.stdout.strip()).stdout)["job"]["spec"]

    enough = 1.1 * peak + 256 * MIB
    assert enough <= spec["mem_bytes"] <= enough + 64 * MIB
    assert "learned 1 arguments" == spec["mem_source"]
    assert "the last run peaked at" in done.stderr
    story = site.cli("show", done.stdout.strip()).stdout
    assert "(learned from 1 run with the same arguments) on" in story
    assert "(learned from 1 run with the same arguments) on" in site.cli("why", done.stdout.strip()).stdout
    why = json.loads(site.cli("why", "--json", done.stdout.strip()).stdout)
    assert spec["mem_source"] == why["job"]["spec"]["mem_source"]


@pytest.mark.full
def test_a_request_below_the_peak_gets_a_line(site: Site, script: Path) -> None:
    """A job that will probably die is queued all the same, and a line says so."""
    site.start_recorder()
    site.start_worker()
    run(site, script, "2G", "300")
    done = site.cli("submit", "--mem", "100M", "--hold", str(script), "--", "300")
    assert "gpuqueue: asking 100M, but the last run peaked at " in done.stderr
    assert "the job may die" in done.stderr
    assert 1 == len(done.stderr.splitlines())


def test_without_a_history_and_a_default_auto_is_one_clear_line(site: Site, script: Path) -> None:
    """There is no number to ask for, and the line says what to do."""
    site.make_tables()
    done = site.cli("submit", "--mem", "auto", str(script), "--", "1", check=False)
    assert (2, "") == (done.returncode, done.stdout)
    wanted = "no earlier run of train.py shows its memory, and there is no default: give --mem 6G, or find it out with"
    assert wanted in done.stderr
    assert 1 == len(done.stderr.splitlines())


def test_a_missing_history_changes_no_submit(site: Site, script: Path) -> None:
    """Without a history, a job with a request is submitted without a word, and ``auto`` takes the default."""
    done = site.cli("submit", "--mem", "1G", "--hold", str(script), "--", "1")
    assert "" == done.stderr
    site.environ["GPUQUEUE_DEFAULT_MEM"] = "2G"
    done = site.cli("submit", "--mem", "auto", "--hold", str(script), "--", "1")
    assert "gpuqueue: asking 2G, the default: the history does not answer\n" == done.stderr
    queued = site.queue.jobs.get(int(done.stdout))
    assert queued is not None
    assert (2 * GIB, "default") == (queued.spec.mem_bytes, queued.spec.mem_source)


def test_an_estimate_counts_where_there_is_no_history(
    site: Site, script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The result of a dry run on this machine comes before the default."""
    from gpuqueue.client import estimates  # noqa: PLC0415 - reads the environment of the test

    site.make_tables()
    site.environ |= {"GPUQUEUE_DEFAULT_MEM": "2G", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    estimates.remember(script, ("7",), 3 * GIB)
    done = site.cli("submit", "--mem", "auto", "--hold", str(script), "--", "7")
    line = "gpuqueue: asking 3G, estimated by a dry run: no earlier run of train.py shows its memory\n"
    assert line == done.stderr
    assert "asked      3G (estimated by a dry run) on" in site.cli("show", done.stdout.strip()).stdout


def advised(site: Site, script: Path, job_id: int) -> tuple[str, str]:
    """Return the one size that `show`, `estimate` and ``--mem auto`` name for the script, and its reason."""
    shown = re.search(r"(\S+) would do \((.+)\)\n", site.cli("show", str(job_id)).stdout)
    line = site.cli("submit", "--mem", "auto", "--hold", str(script), "--", "300").stderr
    auto = re.search(r"asking (\S+): (.+)\n", line)
    estimated = site.cli("estimate", str(script), "--history-only", "--", "300").stdout
    size, reason = (re.search(form, estimated) for form in (r"ask for  --mem (\S+)", r"needs \S+: (.+)\n"))
    assert shown is not None
    assert auto is not None
    assert size is not None
    assert reason is not None
    found = {shown.groups(), auto.groups(), (size[1], reason[1])}
    assert 1 == len(found), f"{found}"
    return size[1], reason[1]


def test_all_commands_advise_one_size_with_the_runs_behind_it(site: Site, script: Path) -> None:
    """A script that peaked at 307M was advised 512M, 448M, 640M and 448M by four commands."""
    site.environ["GPUQUEUE_GIT"] = "false"
    site.start_recorder()
    site.start_worker()

    job_id = run(site, script, "2G", "300")
    one = advised(site, script, job_id)
    probed = site.cli("probe", str(script), "--flat", "0", "--", "300").stdout
    two = advised(site, script, job_id)
    three = advised(site, script, run(site, script, "2G", "300"))

    assert one[1].startswith("the last run peaked at 3")
    assert two[1].startswith("the last 2 runs peaked at 3")
    assert three[1].startswith("the last 3 runs peaked at 3")
    assert f"ask for  --mem {two[0]} --time " in probed
    assert f"The memory is what --mem auto asks for: {two[1]}." in probed
